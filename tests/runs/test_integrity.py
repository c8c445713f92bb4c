"""A run folder knows itself: any damage is found and named, or harmless, and never gives another result."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import CoterieError, RunError
from coterie.runs.folder import LATEST, PREVIOUS, RunFolder
from coterie.runs.records import RoundRecord
from coterie_views.report import write_report

OPTIONS: dict[str, Any] = {
    "scenario": "digits-permuted",
    "clients": 4,
    "samples": 40,
    "groups": 2,
    "model": "mlp:hidden=4",
    "rounds": 5,
    "workers": 1,
}
FLIPS = 200
RESUMED = 80
"""Of runs that are resumed after each flip."""


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


class KillAfter:
    """Ends a run in the middle, after a round that is checkpointed."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_start(self, run: Any, done: int) -> None: ...

    def on_event(self, t: int, event: Any) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.t:
            raise Killed

    def on_end(self, result: Any) -> None: ...


@pytest.fixture(autouse=True)
def checkpoints_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: 0.0)


def interrupted(path: Path, method: str = "ifca:k=2", **changed: Any) -> Path:
    with pytest.raises(Killed):
        coterie.run(method, out=path, callbacks=[KillAfter(3)], **(OPTIONS | changed))
    return path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def outcome(path: Path) -> Any:
    """What a resumed run ends with, to the bit; the time it took aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coterie.resume(path, workers=1)
    result = coterie.load(path)
    models = {name: vector.numpy().tobytes() for name, vector in result.files.items()}
    rounds = [(r.round, r.metrics, r.assignment, r.bytes, r.clusters) for r in result.history]
    return models, result.clients, rounds, result.summary.metrics, result.summary.clusters


def test_no_flipped_bit_of_an_unfinished_run_gives_another_result(tmp_path: Path) -> None:
    whole = interrupted(tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "expected")
    expected = outcome(tmp_path / "expected")
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert {"config.json", "history.jsonl", LATEST, PREVIOUS} <= {str(path) for path in files}
    draw, found, harmless = random.Random(5), 0, 0
    for trial in range(RESUMED):
        folder, name = tmp_path / f"trial-{trial}", files[trial % len(files)]
        shutil.copytree(whole, folder)
        flip(folder / name, draw.randrange(8 * (folder / name).stat().st_size))
        try:
            after = outcome(folder)
        except CoterieError as problem:
            named, after = str(folder) in str(problem), None
            found += named
        else:
            harmless += after == expected
        assert found + harmless == trial + 1, name
        shutil.rmtree(folder)
    assert found > RESUMED / 4
    assert harmless > 0  # the previous checkpoint takes the place of a damaged one


def test_no_flipped_bit_of_a_finished_run_is_read_as_something_else(tmp_path: Path) -> None:
    coterie.run("ifca:k=2", out=tmp_path / "whole", **OPTIONS)
    whole = tmp_path / "whole"
    before = coterie.load(whole)
    draw = random.Random(6)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    for trial in range(FLIPS):
        folder, name = tmp_path / "damaged", files[trial % len(files)]
        shutil.copytree(whole, folder)
        flip(folder / name, draw.randrange(8 * (folder / name).stat().st_size))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                after = coterie.load(folder)
        except CoterieError as problem:
            same = str(folder) in str(problem)
        else:
            same = (after.summary, after.clients, after.history) == (before.summary, before.clients, before.history)
            same = same and all(after.files[key].equal(before.files[key]) for key in before.files)
        assert same, name
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["history.jsonl", "environment.json"])
@pytest.mark.parametrize("way", ["cut", "emptied", "deleted", "a pipe"])
def test_a_finished_run_without_its_whole_history_or_environment_is_damaged(
    tmp_path: Path, name: str, way: str
) -> None:
    folder = tmp_path / "run"
    coterie.run("ifca:k=2", out=folder, **OPTIONS)
    file = folder / name
    content = file.read_bytes()
    file.unlink()
    if way == "cut":  # whole lines, so that each that is left fits the one before
        file.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    elif way == "emptied":
        file.touch()
    elif way == "a pipe":
        os.mkfifo(file)
    for read in (coterie.load, write_report, coterie.resume, lambda path: RunFolder(path).history()):
        with pytest.raises(RunError, match=re.escape(str(file))):
            read(folder)


@pytest.mark.parametrize("name", ["history.jsonl", "environment.json"])
def test_every_flipped_bit_of_a_finished_runs_records_is_found(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    coterie.run("fedavg", out=folder, **OPTIONS | {"rounds": 2})
    content = (folder / name).read_bytes()
    draw = random.Random(7)
    for _ in range(FLIPS):
        flip(folder / name, draw.randrange(8 * len(content)))
        with pytest.raises(RunError, match=re.escape(str(folder / name))):
            RunFolder(folder).history()
        (folder / name).write_bytes(content)


def test_a_damaged_environment_is_named_when_the_run_is_resumed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    file = folder / "environment.json"
    file.write_text(file.read_text().replace("cores", "Cores"))
    with pytest.raises(RunError, match=r"environment\.json: damaged"):
        coterie.resume(folder)
    file.unlink()  # as a run leaves it that was killed at its start
    coterie.resume(folder, workers=1)
    assert coterie.load(folder).summary.rounds == OPTIONS["rounds"]


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    flip(folder / LATEST, 8 * (folder / LATEST).stat().st_size - 3)
    with pytest.warns(UserWarning, match="checkpoint before it, of round 2"):
        assert RunFolder(folder).checkpoint().round == 2  # type: ignore[union-attr]
    flip(folder / PREVIOUS, 8 * (folder / PREVIOUS).stat().st_size - 3)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: damaged.*checkpoint-previous\.safetensors: damaged"):
        RunFolder(folder).checkpoint()


def test_files_of_another_seed_are_refused(tmp_path: Path) -> None:
    one, other = interrupted(tmp_path / "one", seed=1), interrupted(tmp_path / "other", seed=2)
    for name in (LATEST, PREVIOUS):
        shutil.copy(other / name, one / name)
    with pytest.raises(RunError, match="belongs to another run"):
        coterie.resume(one)
    third = interrupted(tmp_path / "third", seed=1)
    shutil.copy(other / "history.jsonl", third / "history.jsonl")
    with pytest.raises(RunError, match=r"history\.jsonl, line 1: damaged"):
        coterie.resume(third)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_history_that_lost_a_line_is_refused(tmp_path: Path, lost: int) -> None:
    folder = interrupted(tmp_path / "run")
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:lost] + lines[lost + 1 :]))
    with pytest.raises(RunError, match=r"history\.jsonl"):
        coterie.resume(folder)


def test_a_last_line_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    shutil.copytree(folder, tmp_path / "copy")
    with open(folder / "history.jsonl", "a") as file:
        file.write('{"round": 4, "clus')
    assert outcome(folder) == outcome(tmp_path / "copy")


def test_a_history_that_is_removed_while_the_run_goes_on_is_written_anew(tmp_path: Path) -> None:
    class Remover(KillAfter):
        def on_round(self, record: RoundRecord) -> None:
            if record.round == 2:
                os.unlink(tmp_path / "run" / "history.jsonl")

    coterie.run("ifca:k=2", out=tmp_path / "run", callbacks=[Remover(0)], **OPTIONS)
    assert [record.round for record in RunFolder(tmp_path / "run").history()] == [1, 2, 3, 4, 5]


def test_a_folder_is_locked_whatever_is_removed_from_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted(path)
    with RunFolder.open(path):
        for name in list(path.iterdir()):
            if name.name.startswith("."):
                name.unlink()
        with pytest.raises(RunError, match="in use by another run"):
            RunFolder.open(path)
    RunFolder.open(path).close()


def test_reports_name_what_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    coterie.run("fedavg", out=folder, **OPTIONS)
    summary = json.loads((folder / "summary.json").read_text())
    for changed in ({"rounds": "many"}, {"clusters": None}, {"metrics": []}):
        (folder / "summary.json").write_text(json.dumps(summary | changed))
        with pytest.raises(RunError, match=r"summary\.json: damaged"):
            write_report(folder)
    (folder / "summary.json").unlink()
    for line in ("1", "{}", "null", "[" * 100_000):
        (folder / "history.jsonl").write_text(line + "\n")
        with pytest.raises(RunError, match=r"history\.jsonl, line 1"):
            write_report(folder)


def test_a_config_that_is_removed_while_the_run_goes_on_is_written_anew(tmp_path: Path) -> None:
    class Remove(KillAfter):
        def on_round(self, record: RoundRecord) -> None:
            if record.round == self.t:
                (tmp_path / "run" / "config.json").unlink()

    whole = coterie.run("ifca:k=2", **OPTIONS)
    coterie.run("ifca:k=2", **OPTIONS, out=tmp_path / "run", callbacks=[Remove(2)])
    assert coterie.resume(tmp_path / "run", workers=1).clusters == whole.clusters
    assert len(RunFolder(tmp_path / "run").history()) == OPTIONS["rounds"]
