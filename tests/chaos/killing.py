"""A kill at any moment, then `coterie resume`: the final models are those of the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = ["run", "--method", "fedavg", "--scenario", "xor", "--clients", "6", "--samples", "20",
       "--rounds", "40", "--workers", "1",
       "--participation", "0.5", "--lr-schedule", "decay:0.99", "--seed", "3", "--quiet"]  # fmt: skip
KILLS = 10

context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")


def command(words, die_at=None, started=None):
    """The `coterie` command in this process, with a checkpoint every round; it may kill itself at a file operation."""
    import torch

    from coterie.cli import main
    from coterie.runs import loop

    torch.set_num_threads(1)
    loop.checkpoint_pause = lambda cost: 0.0
    if die_at is not None:
        count = 0
        for name in ("fsync", "replace"):
            real = getattr(os, name)

            def deadly(*arguments, real=real):
                nonlocal count
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            setattr(os, name, deadly)
    if started is not None:
        started.set()
    main(words)


def run_to_end(words, die_at=None):
    process = context.Process(target=command, args=(words, die_at))
    process.start()
    process.join(60)
    return process.exitcode


def go_on(out):
    """The words that continue a killed run; before its config was written, that is the first command again."""
    return ["resume", str(out), "--quiet"] if (out / "config.json").exists() else [*RUN, "--out", str(out)]


def outcome(folder):
    summary = json.loads((folder / "summary.json").read_text())
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for content in (summary, *records):
        del content["seconds"], content["checksum"]  # the checksum is also of the seconds
    del summary["seal"]  # of the history, and so of the seconds too
    models = {p.name: p.read_bytes() for p in (folder / "models").iterdir()}
    return models, summary, records, (folder / "clients.json").read_bytes()


def uninterrupted(folder):
    """The outcome of a run that nobody kills (twice, to be sure that it repeats), and how long it takes."""
    assert run_to_end([*RUN, "--out", str(folder / "whole")]) == 0
    began = time.monotonic()
    assert run_to_end([*RUN, "--out", str(folder / "again")]) == 0
    seconds = time.monotonic() - began
    expected = outcome(folder / "whole")
    assert expected == outcome(folder / "again")
    assert [record["round"] for record in expected[2]] == list(range(1, 41))
    return expected, seconds


def kill_at_random_moments(tmp_path):
    """Kill runs and their resumptions ten times in all; each run ends as if nothing had happened."""
    expected, seconds = uninterrupted(tmp_path)
    rng = random.Random(10)
    kills = runs = 0
    began = set()
    while kills < KILLS:
        out = tmp_path / f"run-{runs}"
        runs += 1
        assert runs < 4 * KILLS, "the runs end before they can be killed"
        for _ in range(4 * KILLS):
            if (out / "summary.json").exists():
                break
            started = context.Event()
            process = context.Process(target=command, args=(go_on(out), None, started))
            process.start()
            assert started.wait(60)
            if kills < KILLS:
                process.join(rng.uniform(0, 0.6 * seconds))
                if process.is_alive():
                    process.kill()
            process.join(60)
            assert process.exitcode in (0, -signal.SIGKILL)
            if process.exitcode:
                kills += 1
                history = out / "history.jsonl"
                began.add(len(history.read_bytes().splitlines()) if history.exists() else 0)
        assert outcome(out) == expected
    assert len(began) > 3  # the kills hit different rounds


def kill_at_each_file_operation(tmp_path):
    """Not by chance: die before the 1st, 2nd, … sync or rename until a run gets through, and go on each time."""
    short = [*RUN]
    short[short.index("40")] = "3"
    assert run_to_end([*short, "--out", str(tmp_path / "whole")]) == 0
    expected = outcome(tmp_path / "whole")
    at = 0
    while True:
        at += 1
        out = tmp_path / f"run-{at}"
        code = run_to_end([*short, "--out", str(out)], die_at=at)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        again = ["resume", str(out), "--quiet"] if (out / "config.json").exists() else [*short, "--out", str(out)]
        assert run_to_end(again) == 0
        assert outcome(out) == expected
        assert not list(out.rglob(".*.tmp"))
    assert at > 15


def survives(check, folder):
    """Do a check in a process of its own: its fork server must have torch loaded before it makes the first child."""
    done = subprocess.run([sys.executable, __file__, check.__name__, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    if hasattr(context, "set_forkserver_preload"):
        # All that a run imports: a child would otherwise spend most of its time on importing.
        context.set_forkserver_preload(["torch", "coterie.cli.running", "coterie.runs.api", "coterie.cli.progress"])
    globals()[sys.argv[1]](Path(sys.argv[2]))
