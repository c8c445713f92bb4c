"""Run folders with spoilt files: found and named, or harmless, and never another result."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coterie
from coterie.runs import loop
from coterie.runs.records import to_json

from .harness import Finding, Trial, command
from .mutations import JSON_TEXTS, spoilt

OPTIONS: dict[str, Any] = {
    "scenario": "digits-permuted",
    "clients": 4,
    "samples": 40,
    "groups": 2,
    "model": "mlp:hidden=4",
    "rounds": 4,
    "workers": 1,
}


class _Killed(BaseException):
    pass


class _KillAfter:
    def on_start(self, run: Any, done: int) -> None: ...

    def on_event(self, t: int, event: Any) -> None: ...

    def on_round(self, record: Any) -> None:
        if record.round == 2:
            raise _Killed

    def on_end(self, result: Any) -> None: ...


class Folders:
    """A finished run or one that was killed; one of its files is spoilt; then it is resumed and read."""

    name = "folders"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """A finished run, a killed one, and a killed one of another seed."""
        usual = loop.checkpoint_pause
        loop.checkpoint_pause = lambda cost: 0.0
        try:
            expected = told(coterie.run("ifca:k=2", **OPTIONS, out=folder / "whole"))
            for name, seed in (("killed", 0), ("other", 1)):
                with contextlib.suppress(_Killed):
                    coterie.run("ifca:k=2", **OPTIONS, seed=seed, out=folder / name, callbacks=[_KillAfter()])

            def trial(random: random.Random) -> str:
                run = folder / "tried"
                shutil.rmtree(run, ignore_errors=True)
                shutil.copytree(folder / random.choice(["whole", "killed", "killed"]), run)
                what = spoil(run, folder / "other", random)
                if random.random() < 0.3:
                    return command(random.choice(["report", "tree"]), str(run))
                if told(coterie.resume(run, workers=1)) != expected:
                    raise Finding(f"{what}: resumed to another result")
                if told(coterie.load(run)) != expected:
                    raise Finding(f"{what}: another result is stored")
                return "accepted"

            yield trial
        finally:
            loop.checkpoint_pause = usual


def told(result: Any) -> Any:
    """All of a result that must not change: not the time it took."""
    history = [{**to_json(record), "seconds": 0} for record in result.history]
    files = {name: vector.numpy().tobytes() for name, vector in result.files.items()}
    return {**to_json(result.summary), "seconds": 0}, history, to_json(result.clients), files


def spoil(run: Path, other: Path, random: random.Random) -> str:
    """Damage one of the run's files, take it away, or put that of another run in its place; what was done, in words."""
    file = random.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    way = random.choice(["bytes", "bytes", "bytes", "lines", "json", "remove", "other", "link", "folder", "pipe"])
    name = file.relative_to(run)
    if way == "bytes":
        file.write_bytes(spoilt(file.read_bytes(), random))
    elif way == "lines":
        lines = file.read_bytes().split(b"\n")
        random.shuffle(lines)
        file.write_bytes(b"\n".join(lines[: random.randint(0, len(lines))]))
    elif way == "json":
        file.write_text(random.choice(JSON_TEXTS) + random.choice(["", "\n"]))
    elif way == "other" and (other / name).exists():
        shutil.copy(other / name, file)
    elif way in ("remove", "link", "folder", "pipe"):
        file.unlink()
        if way == "pipe":
            os.mkfifo(file)
        if way == "link":
            file.symlink_to("/nowhere")
        if way == "folder":
            file.mkdir()
    return f"{way} of {name}"
