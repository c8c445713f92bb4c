"""Which method, and what does it cost? The ways to share models compared in closed form, in words, with the command.

The comparison is the one that method `auto` begins with: `coterie.methods.closed_form`.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.data import Defaults
from coterie.errors import ConfigError, CoterieError
from coterie.federation import Federation
from coterie.methods import FedAvg, Method, make_method
from coterie.methods.closed_form import Sharing, compare_sharing
from coterie.runs import Model, Run, RunConfig, assemble, make_federation
from coterie.runs.records import to_json

NOT_TO_COPY = frozenset({"method", "out", "quiet"})
"""Options that the next command does not take over."""


@dataclass(frozen=True)
class Cost:
    """What the advised run will take, from one round of it."""

    seconds: float
    bytes: int
    fedavg_bytes: int
    """The same of FedAvg."""


@dataclass(frozen=True)
class Advice:
    """What to run next, and why; `str` of it is sentences."""

    sharing: Sharing | None
    """The evidence; None where the ways to share models cannot be solved in closed form."""
    method: str
    rounds: int
    cost: Cost
    command: str
    refused: dict[str, str]
    """Methods that would have come first but cannot run here, with the reason."""
    probe_seconds: float

    def words(self) -> list[str]:
        """The advice in sentences: what to do, the evidence, what it costs, and the command."""
        more = "" if self.method == "fedavg" else f" (FedAvg: {_size(self.cost.fedavg_bytes)})"
        return [
            f"Run {self.method}: {reason(self.sharing)}.",
            "",
            *evidence_lines(self.sharing),
            *(f"  {name} cannot run here: {why}" for name, why in self.refused.items()),
            "",
            f"Cost of {self.rounds} rounds: about {_duration(self.cost.seconds)} on this machine, "
            f"{_size(self.cost.bytes)} sent{more}. The probe took {_duration(self.probe_seconds)}.",
            "",
            "Next:",
            f"  {self.command}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.words())

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        return dict(to_json(self) | {"words": self.words()})


def evidence_lines(sharing: Sharing | None) -> list[str]:
    """What held-out data says of the ways to share models: the same lines before a run and after one."""
    if sharing is None:
        return ["Before training nothing can be compared: samples are no vectors or images with one target each."]
    title = f"Before training, {sharing.clients} clients, each way solved in closed form and judged on held-out data:"
    return [title, *(f"  {line}" for line in sharing.words())]


def reason(sharing: Sharing | None) -> str:
    """Why a method comes first."""
    if sharing is None:
        return "it decides while it trains, where nothing can be compared before"
    if sharing.advised is None:
        return "nothing surely serves these clients better than one model"
    return f"held-out data surely says {sharing.advised.name}"


def methods_for(sharing: Sharing | None) -> list[str]:
    """The methods that share models as held-out data says, the best first; FedAvg always can run."""
    if sharing is None:
        return ["auto", "fedavg"]
    if sharing.advised is None:
        return ["fedavg"]
    if sharing.clusters:
        return [f"ifca:k={len(sharing.clusters)}", "cfl", "fedavg"]
    private = ["fedper", "ditto", "local", "fedavg"]
    return private if sharing.advised.kind == "own" else ["auto", "fedavg"]


def advise(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Advice:
    """Compare ways to serve the clients, and recommend a method.

    The ways are compared on a model that is solved in closed form, on training data; test data is not looked at. One
    round of the method that is recommended shows what it costs.

    Args:
        config: the run that is planned; its method does not count.
        federation: the clients, in place of those that the configuration names.
        model: the model, in place of the configuration's.
        say: is called with a line of text for every step.

    Returns:
        The advice; its `method` can be given to `coterie.run`.

    Raises:
        ConfigError: an option is out of range or does not go with another one.
        DataError: the data is not at hand, or there is one client only.
    """
    began = time.process_time()
    clients, defaults = (federation, Defaults()) if federation is not None else make_federation(config)
    if len(clients) < 2:
        raise ConfigError(f"{len(clients)} client: advice is about sharing between clients, give at least two")
    say(f"comparing ways to share models on {len(clients)} clients")
    plain = _prepared(config, clients, model, FedAvg(), defaults)
    with contextlib.closing(plain.engine):
        server = plain.server
        sharing = compare_sharing(server)
        refused: dict[str, str] = {}
        for method in methods_for(sharing):
            say(f"one round of {method}, to see what it costs")
            try:
                seconds, sent = _one_round(config, clients, model, method, defaults)
                break
            except CoterieError as problem:
                refused[method] = str(problem)
        fedavg = len(server.participants(1)) * 2 * 4 * server.layout.size
        rounds = server.rounds
    cost = Cost(rounds * seconds, rounds * sent, rounds * fedavg)
    command = next_command(config, method, in_python=federation is not None)
    return Advice(sharing, method, rounds, cost, command, refused, time.process_time() - began)


def _prepared(config: RunConfig, clients: Federation, model: Model | None, method: Method, defaults: Defaults) -> Run:
    return assemble(config, federation=clients, model=model, method=method, defaults=defaults)[0]


def _one_round(
    config: RunConfig, clients: Federation, model: Model | None, method: str, defaults: Defaults
) -> tuple[float, int]:
    """CPU seconds and bytes of one round of a method and of evaluating it; what it starts with is left out."""
    run = _prepared(config, clients, model, make_method(method), defaults)
    with contextlib.closing(run.engine):
        state = run.method.start(run.server)
        run.server.traffic.drain()
        began = time.process_time()
        state, _ = run.method.round(state, 1, run.server)
        down, up = run.server.traffic.drain()
        run.score(run.method.assignment(state, run.server), 1, part="validation")
        return time.process_time() - began, down + up


def next_command(config: RunConfig, method: str, *, in_python: bool = False) -> str:
    """The command (or the call) that does the advised run, with the options that were given."""
    given = {
        key: value
        for key, value in config.model_dump(exclude_unset=True).items()
        if value is not None and key not in NOT_TO_COPY and value != RunConfig.model_fields[key].default
    }
    if in_python:
        options = ", ".join(f"{key}={value!r}" for key, value in given.items())
        return f"coterie.run({method!r}, federation{', ' if options else ''}{options})"
    words = ["coterie", "run", "--method", method]
    for key, value in given.items():
        if key == "task":
            words.append(f"--{value}")
        elif value is True:
            words.append("--" + key.replace("_", "-"))
        else:
            words += ["--" + key.replace("_", "-"), str(value)]
    return shlex.join(words)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
