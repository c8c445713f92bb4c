"""What secure sums cost on a real network: rounds on a SuperLink with six SuperNodes, plain, secure, choices hidden.

Every run is `coterie deploy --local`, one after the other, so that all have the machine to themselves.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from coterie import load
from coterie.errors import RunError
from coterie_recipes.base import Findings, Row, Study, recipe

NODES, ROUNDS = 6, 3
SECURE = ("--secure-sums", "--secure-minimum", "2", "--secure-limit", "4")
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg, plain": ("fedavg", ()),
    "fedavg, secure sums": ("fedavg", SECURE),
    "ifca, plain": ("ifca:k=2,init=random", ()),
    "ifca, secure sums": ("ifca:k=2,init=random", SECURE),
    "ifca, secure sums, choices hidden": ("ifca:k=2,init=random,hide_choice=true", SECURE),
}


def command_of(way: str, hidden: int, seed: int, out: Path) -> list[str]:
    """The command of one run, of a network with so many hidden units."""
    method, options = WAYS[way]
    scenario = ["--scenario", "digits-permuted", "--groups", "2", "--samples", "100", "--seed", str(seed)]
    rounds = ["--rounds", str(ROUNDS), "--evaluate-every", str(ROUNDS)]
    start = ["coterie", "deploy", "--local", str(NODES), "--method", method, "--model", f"mlp:hidden={hidden}"]
    return [*start, *scenario, *rounds, "--quiet", "--out", str(out), *options]


def measure(way: str, hidden: int, seed: int) -> dict[str, Any]:
    """One run: seconds and bytes of its rounds. The last round is evaluated too, so its seconds do not count."""
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(way, hidden, seed, Path(folder) / "app")
        program = shutil.which(command[0], path=str(Path(sys.executable).parent)) or command[0]
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
        found = load(Path(folder) / "app" / "run")
    accuracy = found.summary.accuracy.mean
    assert accuracy is not None
    return {
        "seconds": [record.seconds for record in found.history[:-1]],
        "bytes_up": [record.bytes.up for record in found.history],
        "bytes_down": [record.bytes.down for record in found.history],
        "faults": sum(len(record.faults) for record in found.history),
        "accuracy": accuracy,
        "sizes": sorted(found.summary.sizes),
    }


@recipe("secure-network", "seconds and bytes of a round on a SuperLink: plain, on secure sums, and with choices hidden")
def secure_network(study: Study) -> Findings:
    """Five ways, a network of 1,210 numbers (full: also one of 15,010)."""
    rows = []
    for hidden in (16, 200) if study.full else (16,):
        for way in WAYS:
            cells = [study.cell(f"{way} {hidden} {seed}", partial(measure, way, hidden, seed)) for seed in study.seeds]
            where = f"{way}, {75 * hidden + 10:,} numbers"
            rows += [
                Row(where, "seconds of a round", [statistics.median(cell["seconds"]) for cell in cells]),
                Row(where, "kB up in a round", [statistics.median(cell["bytes_up"]) / 1000 for cell in cells]),
                Row(where, "kB down in a round", [statistics.median(cell["bytes_down"]) / 1000 for cell in cells]),
                Row(where, "accuracy %", [100 * cell["accuracy"] for cell in cells]),
                Row(where, "faults", [float(cell["faults"]) for cell in cells]),
            ]
    notes = [
        f"One SuperLink and {NODES} SuperNodes on this machine's loopback, {ROUNDS} rounds; medians over the rounds, "
        "of the seconds without the last round, in which clients are evaluated.",
        f"Each run is {' '.join(command_of('fedavg, plain', 16, 0, Path('OUT')))}, with its method and options.",
    ]
    return Findings(rows, notes)
