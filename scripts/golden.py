"""Record what small runs compute, `PYTHONPATH=tests golden.py record FILE`, or `compare` two such files.

Recorded are digests of the final models, of every round's assignment and of the bytes that were sent. A change of the
code that should change no result is compared with the commit before it: record in a checkout of each.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import coterie
from coterie.data.scenarios import find_scenario
from coterie.flower.server import run_on
from flower.flower_trials import QUICK, TRAINING, grid_of
from method_specs import METHODS, spec_of

SIZES = {"clients": 6, "groups": 2, "samples": 40}
BASE = {**TRAINING, **SIZES, "scenario": "digits-permuted", "rounds": 5, "workers": 1}
PAPER = spec_of("cfl")
VARIANTS = ["cfl", "cfl:as=paper", f"{PAPER},compare=gradient", "flt:encoder=pca", "ifca:k=auto", "ifca:k=2,as=paper"]
VARIANTS += [f"ifca:k=2,init={start}" for start in ("random,restarts=2", "perturbed", "redrawn(0.1)")]
VARIANTS += ["ifca:k=2,clustered=last", "ifca:k=2,averaging=gradient"]
SECURE = ("fedavg", "fedcuau:clusters=2", "ifca:k=2,init=random", "ifca:k=2,init=random,hide_choice=true")
PROJECTED = {"secure_sums": True, "privacy": "projection"}
NOISY = ("fedavg:weighting=uniform", "fedprox:weighting=uniform", "ifca:k=2,init=random")
EVERY = {"": {}, "seed 1": {"seed": 1}, "two workers": {"workers": 2}, "half": {"participation": 0.5}, "resumed": {}}
SOME = {"Ray": {"engine": "ray", "workers": 2}, "permutation": {"privacy": "permutation"}, "Flower": {}}


class Stop(coterie.Callback):
    """Ends a run after its second round, as Ctrl-C does."""

    def on_round(self, record: coterie.RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, circumstance and options of every run."""
    yield from ((spec, name, given) for spec in [*map(spec_of, METHODS), *VARIANTS] for name, given in EVERY.items())
    yield from ((spec, "secure sums", {"secure_sums": True}) for spec in SECURE)
    yield "cfl:compare=projection(64)", "secure sums", PROJECTED
    yield from ((spec, "differential privacy", {"dp_noise": 1.0}) for spec in NOISY)
    yield from ((spec, name, given) for spec in ("fedavg", "ifca:k=2", PAPER) for name, given in SOME.items())


def done(spec: str, circumstance: str, options: dict[str, Any]) -> coterie.Result:
    """Do one run."""
    if circumstance == "Flower":
        grid = grid_of(find_scenario("digits-permuted").build(**SIZES, seed=3))
        return run_on(grid, TRAINING | QUICK | {"method": spec, "rounds": 5})
    if circumstance != "resumed":
        return coterie.run(spec, **BASE | options)
    with tempfile.TemporaryDirectory() as folder:
        with suppress(KeyboardInterrupt):
            coterie.run(spec, **BASE, out=f"{folder}/run", callbacks=[Stop()])
        return coterie.resume(f"{folder}/run", workers=1)


def digests(result: coterie.Result) -> dict[str, str]:
    """What is compared of a run."""
    tensors = sorted([*result.files.items(), *result.private.items()])
    models = [name.encode() + tensor.detach().numpy().tobytes() for name, tensor in tensors]
    assignments = [sorted(map(str, record.assignment.items())) for record in result.history]
    sent = [(record.bytes.up, record.bytes.down) for record in result.history]
    found = {"models": b"".join(models), "assignments": str(assignments).encode(), "bytes": str(sent).encode()}
    return {key: hashlib.sha256(value).hexdigest()[:16] for key, value in found.items()}


def record(out: Path) -> None:
    """Do the runs that the file does not have yet."""
    found = json.loads(out.read_text()) if out.exists() else {}
    for spec, circumstance, options in cases():
        if (name := f"{spec} | {circumstance}") not in found:
            try:
                kept = (
                    ("bytes",) if "dp_noise" in options else ("models", "assignments", "bytes")
                )  # no seed repeats noise
                made = digests(done(spec, circumstance, options))
                found[name] = {key: made[key] for key in kept}
            except (coterie.CoterieError, TypeError) as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def compare(one: Path, other: Path) -> None:
    """Print every run that differs, and in what."""
    before, after = json.loads(one.read_text()), json.loads(other.read_text())
    differing = [name for name in before | after if before.get(name) != after.get(name)]
    for name in differing:
        pairs = before.get(name, {}).items() ^ after.get(name, {}).items()
        print(f"{name}: {', '.join(sorted({key for key, _ in pairs}))}")
    print(f"{len(before | after) - len(differing)} of {len(before | after)} runs are equal")


if __name__ == "__main__":
    {"record": record, "compare": compare}[sys.argv[1]](*map(Path, sys.argv[2:]))
