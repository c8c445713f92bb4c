"""Options of methods and models: `name:key=value,…`; those that are accepted run, twice, with one result."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coterie
from coterie.methods import make_method, method_classes
from coterie.option_types import describe_options
from coterie.runs.assemble import describe_method

from .harness import Finding, Trial
from .mutations import value

SMALL: dict[str, Any] = {"scenario": "xor", "clients": 4, "samples": 8, "rounds": 2, "workers": 1, "lr": 0.1}
MODELS = [
    "mlp",
    "mlp:hidden=4",
    "mlp:hidden=0",
    "mlp:hidden=-3",
    "mlp:hidden=1e3",
    "mlp:hidden=4,hidden=5",
    "logistic:a=1",
]


class Options:
    """A method with options, most of which are known to it."""

    name = "options"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """The methods and their options as they describe themselves."""
        # Other tests of the same process define methods of their own.
        ours = {
            name: cls
            for name, cls in method_classes().items()
            if cls.__module__.startswith(("coterie.", "coterie_field."))
        }
        known = {name: describe_options(cls) for name, cls in ours.items()}

        def trial(random: random.Random) -> str:
            name = random.choice(sorted(known))
            some = random.sample(known[name], min(len(known[name]), random.randint(0, 3)))
            words = [f"{option.name}={_value(option.default, random)}" for option in some]
            if random.random() < 0.1:
                words.append(random.choice(["", "=", "k", "k=1=2", "k=2,k=2", "nosuch=1", "k=(", "k=[1,2"]))
            spec = f"{name}:{','.join(words)}"
            method = make_method(spec)
            again = make_method(describe_method(method))
            if again != method:
                raise Finding(f"{spec!r} describes itself as {describe_method(method)!r}, which is another method")
            model = random.choice(MODELS) if random.random() < 0.2 else "mlp:hidden=4"
            first, second = (coterie.run(method, model=model, **SMALL, seed=random_seed) for random_seed in (1, 1))
            if [r.metrics for r in first.history] != [r.metrics for r in second.history]:
                raise Finding(f"{spec!r}: two results from one seed")
            return "accepted"

        yield trial


def _value(default: str, random: random.Random) -> str:
    if random.random() < 0.4:
        return default
    if random.random() < 0.6:
        return str(random.choice([0, 1, 2, 0.1, 0.5, 0.9, 1.0, 3, 5, "auto", "none", "true", "false", "last"]))
    return str(value(random))
