"""Rows that time what people wait for: whole commands, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.errors import RunError
from coterie.runs import load
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread, cpu_seconds, seconds_of, two_at_once

HELP_SECONDS = Limit("s for `coterie --help`", 0.4, at_most=True)
IMPORT_RATIO = Limit("× `import torch` for `import coterie`", 1.15, at_most=True)
DEMO_SECONDS = Limit("s for `coterie run`", 8.0, at_most=True)
COMPARE_RATIO = Limit("× with two processes", 1.8)
DEPLOY_SECONDS = Limit("s per round", 2.5, at_most=True)
COMMAND = "import sys; from coterie.cli import main; sys.exit(main())"
COMPARED = "fedavg,local,ifca:k=4,cfl"
NODES = 4


class Time(NamedTuple):
    """Seconds on the clock, and of all processors."""

    wall: float
    cpu: float


def timed(arguments: Sequence[str]) -> Time:
    """How long Python takes with these arguments, from its start to its end; RunError where it fails.

    It may keep what it compiled, as it does where nobody forbids it: else every start compiles our modules again.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def work() -> None:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise RunError(f"{' '.join(arguments)}: ended with {done.returncode}: {last}")

    before = cpu_seconds()
    wall = seconds_of(work)
    return Time(wall, cpu_seconds() - before)


def coterie(*arguments: str) -> list[str]:
    """Python's arguments for a command of coterie."""
    return ["-c", COMMAND, *arguments]


def interleaved_times(
    commands: dict[str, Callable[[], Time]], options: BenchOptions, finding: Finding, repeat: int | None = None
) -> dict[str, list[Time]]:
    """The commands in turn, several times; their seconds go into the finding."""
    found: dict[str, list[Time]] = {name: [] for name in commands}
    for repetition in range(repeat or options.repeat):
        for name, measure in commands.items():
            found[name].append(measure())
        last = ", ".join(f"{name} {times[-1].wall:.3g} s" for name, times in found.items())
        options.log(f"repetition {repetition + 1} of {repeat or options.repeat}: {last}")
    finding.seconds = {name: [time.wall for time in times] for name, times in found.items()}
    finding.details["cpu_seconds"] = {name: [time.cpu for time in times] for name, times in found.items()}
    return found


def walls(times: Sequence[Time]) -> Spread:
    """Median, lowest and highest of the seconds on the clock."""
    return Spread.of([time.wall for time in times])


def cpus(times: Sequence[Time]) -> float:
    """The median of the processor seconds."""
    return Spread.of([time.cpu for time in times]).median


def time_start(options: BenchOptions) -> Finding:
    """How long the command and the package take to start, beside torch."""
    finding = Finding("start: `coterie --help`; `import coterie` against `import torch`")
    calls = {"help": coterie("--help"), "coterie": ["-c", "import coterie"], "torch": ["-c", "import torch"]}
    for arguments in calls.values():
        timed(arguments)  # files come into memory
    found = interleaved_times({name: lambda a=a: timed(a) for name, a in calls.items()}, options, finding)  # type: ignore[misc]
    finding.judge(HELP_SECONDS, walls(found["help"]), ours=walls(found["help"]).median, ours_cpu=cpus(found["help"]))
    ratios = [ours.wall / theirs.wall for ours, theirs in zip(found["coterie"], found["torch"], strict=True)]
    finding.judge(
        IMPORT_RATIO,
        Spread.of(ratios),
        ours=walls(found["coterie"]).median,
        theirs=walls(found["torch"]).median,
        ours_cpu=cpus(found["coterie"]),
        theirs_cpu=cpus(found["torch"]),
    )
    return finding


def time_demo(options: BenchOptions) -> Finding:
    """What `make demo` does once everything is installed."""
    rounds = [] if options.full else ["--rounds", "10"]
    finding = Finding("`coterie run`: FedAvg and CFL on digits")

    def run() -> Time:
        with tempfile.TemporaryDirectory() as folder:
            return timed(coterie("run", "--quiet", *rounds, "--out", str(Path(folder) / "demo")))

    found = interleaved_times({"coterie run": run}, options, finding)["coterie run"]
    finding.judge(DEMO_SECONDS, walls(found), ours=walls(found).median, ours_cpu=cpus(found))
    return finding


def time_compare(options: BenchOptions) -> Finding:
    """A comparison of four methods and two seeds in one process and in two."""
    rounds = "30" if options.full else "5"
    finding = Finding(f"`coterie compare`: four methods, two seeds, {rounds} rounds")

    def compare(workers: str) -> Time:
        with tempfile.TemporaryDirectory() as folder:
            what = ["--methods", COMPARED, "--scenario", "digits-permuted", "--seeds", "2", "--rounds", rounds]
            return timed(coterie("compare", *what, "--workers", workers, "--out", str(Path(folder) / "compared")))

    found = interleaved_times({"one": lambda: compare("1"), "two": lambda: compare("2")}, options, finding)
    ratios = [one.wall / two.wall for one, two in zip(found["one"], found["two"], strict=True)]
    finding.judge(
        COMPARE_RATIO,
        Spread.of(ratios),
        ours=walls(found["two"]).median,
        theirs=walls(found["one"]).median,
        ours_cpu=cpus(found["two"]),
        theirs_cpu=cpus(found["one"]),
        why="both include starting, importing and checking, which one process does before the runs begin",
    )
    finding.notes.append(f"two processes that only multiply matrices do {two_at_once():.2f} times as much as one here")
    return finding


def time_deploy(options: BenchOptions) -> Finding:
    """Rounds over a real SuperLink with four SuperNodes on this machine."""
    rounds = 12 if options.full else 3
    finding = Finding(f"`coterie deploy --local {NODES}`: FedAvg on digits, {rounds} rounds")
    per_round: list[float] = []

    def deploy() -> Time:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "deployed"
            what = ["--scenario", "digits-iid", "--rounds", str(rounds), "--method", "fedavg", "--local", str(NODES)]
            time = timed(coterie("deploy", *what, "--out", str(out)))
            seconds = [record.seconds for record in load(out / "run").history]
            per_round.append(sum(seconds) / len(seconds))
            return time

    found = interleaved_times({"deploy": deploy}, options, finding, min(options.repeat, 3))["deploy"]
    finding.judge(DEPLOY_SECONDS, Spread.of(per_round), ours=Spread.of(per_round).median, ours_cpu=cpus(found) / rounds)
    finding.notes.append(f"the whole command, with starting and stopping Flower: {walls(found).median:.3g} s")
    return finding
