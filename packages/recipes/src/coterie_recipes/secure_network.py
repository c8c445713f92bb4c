"""What secure sums cost: rounds on a SuperLink with six SuperNodes, and the protocol alone, all in one process.

On a SuperLink every run is `coterie deploy --local`, one after the other, so that all have the machine to themselves.
In one process Flower's grid carries copies of the messages, with keys, masks and signatures as on a network.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from coterie import Callback, RoundRecord, load
from coterie.data import find_scenario
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


class CpuTimes(Callback):
    """Reads this process's CPU seconds after every round."""

    def __init__(self) -> None:
        self.read: list[float] = []
        self.records: list[RoundRecord] = []

    def on_round(self, record: RoundRecord) -> None:
        """Read them."""
        self.read.append(time.process_time())
        self.records.append(record)


def measure_here(secure: bool, nodes: int, hidden: int, seed: int) -> dict[str, Any]:
    """A run of FedAvg on that many nodes in this process: CPU seconds and bytes of its rounds after the first."""
    from flwr.app import Context, RecordDict

    from coterie.flower import InProcessGrid, client_app, server_app

    model, times = f"mlp:hidden={hidden}", CpuTimes()
    federation = find_scenario("digits-iid").build(clients=nodes, samples=20, seed=seed)
    grid = InProcessGrid(client_app(model, federation), node_configs=[{"client": name} for name in federation.ids])
    options = {"method": "fedavg", "model": model, "rounds": ROUNDS, "seed": seed, "evaluate_every": ROUNDS + 1}
    network = {"min_nodes": nodes, "timeout": 60.0, "poll": 0.01}
    server = server_app(options | network | {"secure_sums": secure, "secure_limit": 4.0}, callbacks=[times])
    server(grid, Context(1, 0, {}, RecordDict(), {}))
    return {
        "cpu_seconds": [after - before for before, after in zip(times.read, times.read[1:], strict=False)],
        "bytes_up": [record.bytes.up for record in times.records],
        "bytes_down": [record.bytes.down for record in times.records],
        "faults": sum(len(record.faults) for record in times.records),
    }


@recipe("secure-sums", "CPU seconds and bytes of a round of FedAvg, plain and on secure sums, all in one process")
def secure_sums(study: Study) -> Findings:
    """Networks of 6, 9 and 20 nodes (full: also 50), and models of 1,210 and 15,010 numbers."""
    rows = []
    sizes = [(6, 16), (9, 16), (9, 200), (20, 200), *([(50, 200)] if study.full else [])]
    for nodes, hidden in sizes:
        for way, secure in {"plain": False, "secure sums": True}.items():
            jobs = {seed: partial(measure_here, secure, nodes, hidden, seed) for seed in study.seeds}
            cells = [study.cell(f"{way} {nodes} {hidden} {seed}", job) for seed, job in jobs.items()]
            where = f"{nodes} nodes, {75 * hidden + 10:,} numbers, {way}"
            rows += [
                Row(where, "CPU seconds of a round", [statistics.median(cell["cpu_seconds"]) for cell in cells]),
                Row(where, "kB up in a round", [statistics.median(cell["bytes_up"]) / 1000 for cell in cells]),
                Row(where, "kB down in a round", [statistics.median(cell["bytes_down"]) / 1000 for cell in cells]),
                Row(where, "faults", [float(cell["faults"]) for cell in cells]),
            ]
    return Findings(rows, [f"{ROUNDS} rounds each; medians over the rounds, of CPU seconds without the first."])
