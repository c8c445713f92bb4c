"""A run folder is never overwritten, and damage in it is named."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest
import torch

import coterie
from coterie.errors import RunError
from coterie.runs import loop
from coterie.runs.folder import CHECKSUM, RunFolder, checksum
from coterie.runs.records import Bytes, ClientRecord, EventRecord, RoundRecord, to_json
from coterie.runs.rows import write_rows

SMALL = {"scenario": "xor", "clients": 4, "samples": 10, "rounds": 3, "workers": 1}


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def start(out, **changes):
    return coterie.run("fedavg", out=out, **SMALL | changes)


@pytest.fixture
def finished(tmp_path):
    start(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """A run stopped after its second round, whose last checkpoint is of the first."""

    class Stop(BaseException):
        pass

    class Stopper:
        def on_start(self, run, done):
            monkeypatch.setattr(loop, "checkpoint_pause", lambda cost: 0.0)

        def on_event(self, t, event): ...

        def on_end(self, result): ...

        def on_round(self, record):
            monkeypatch.setattr(loop, "checkpoint_pause", lambda cost: 1e9)
            if record.round == 2:
                raise Stop

    with pytest.raises(Stop):
        coterie.run("fedavg", out=tmp_path / "run", callbacks=[Stopper()], **SMALL)
    return tmp_path / "run"


def test_checkpoints_cost_no_more_than_a_twentieth_of_a_run(tmp_path, monkeypatch):
    clock, saved = [0.0], []

    def slow(folder, checkpoint):
        clock[0] += 1.0
        saved.append(checkpoint.round)

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(RunFolder, "save_checkpoint", slow)

    class Clock:
        def on_start(self, run, done): ...
        def on_event(self, t, event): ...
        def on_end(self, result): ...
        def on_round(self, record):
            clock[0] += 3.0

    coterie.run("fedavg", out=tmp_path / "run", callbacks=[Clock()], **SMALL | {"rounds": 20})
    assert saved == [2, 9, 16, 20]


def test_what_a_run_leaves(finished):
    assert set(contents(finished)) == {
        "checkpoint.safetensors", "clients.json", "config.json", "environment.json", "history.jsonl",
        "model.json",
        "models/cluster-0.safetensors", "summary.json",
    }  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [({}, "already complete"), ({"seed": 5}, "another config")])
def test_a_finished_run_is_refused_and_left_untouched(finished, changes, message):
    before = contents(finished)
    with pytest.raises(RunError, match=message):
        start(finished, **changes)
    assert contents(finished) == before


def test_an_unfinished_run_is_refused_with_the_way_on(unfinished):
    before = contents(unfinished)
    with pytest.raises(RunError, match=f"coterie resume {unfinished}"):
        start(unfinished)
    assert contents(unfinished) == before


def test_foreign_folders_and_files_are_refused_and_left_untouched(tmp_path):
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "me.jpg").write_text("smile")
    (tmp_path / "file").write_text("x")
    before = contents(tmp_path)
    for out, message in ((foreign, "not empty and is not a run's"), (tmp_path / "file", "a file of that name"),
                         (tmp_path / "file" / "below", "cannot make the folder")):  # fmt: skip
        with pytest.raises(RunError, match=message):
            start(out)
    for path in (foreign, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(RunError, match="not a run folder"):
            coterie.resume(path)
    assert contents(tmp_path) == before


def test_an_empty_folder_or_one_left_before_the_config_is_taken(tmp_path):
    (tmp_path / ".config.json.123.tmp").write_text('{"half')
    start(tmp_path)
    assert (tmp_path / "summary.json").exists()


def test_a_folder_in_use_is_refused(unfinished):
    before = contents(unfinished)
    with RunFolder.open(unfinished):
        for attempt in (coterie.resume, start):
            with pytest.raises(RunError, match="in use by another run"):
                attempt(unfinished)
    assert contents(unfinished) == before


def hold(path, ready, done):
    with RunFolder.open(path):
        ready.set()
        done.wait(30)


def test_a_folder_in_use_by_another_process_is_refused_until_it_ends(unfinished):
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(unfinished, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RunError, match="in use by another run"):
            coterie.resume(unfinished)
    finally:
        other.kill()
        other.join()
    assert coterie.resume(unfinished).summary.rounds == 3


def test_resume_repeats_the_lost_round_and_ends_like_the_uninterrupted_run(unfinished, tmp_path):
    start(tmp_path / "whole")
    coterie.resume(unfinished)
    ours, theirs = contents(unfinished), contents(tmp_path / "whole")
    for name in ("models/cluster-0.safetensors", "clients.json", "config.json"):
        assert ours[name] == theirs[name]
    assert [json.loads(line)["round"] for line in ours["history.jsonl"].splitlines()] == [1, 2, 3]


def test_resume_of_a_finished_run_changes_nothing(finished):
    before = contents(finished)
    coterie.resume(finished)
    assert contents(finished) == before


def test_torn_last_line_even_inside_a_character(unfinished):
    path = unfinished / "history.jsonl"
    first = path.read_bytes().split(b"\n")[0]
    path.write_bytes(first + b'\n{"round": 2, "events": "\xce')
    result = coterie.resume(unfinished)
    assert [r.round for r in result.history] == [1, 2, 3]
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_run_of_an_older_version_that_did_not_know_a_field_yet_is_read_and_resumed(unfinished):
    folder = RunFolder(unfinished)
    check, lines = folder.identity(), []
    for record in folder.history():
        content = to_json(record)
        del content["epsilon"]
        check = checksum([check, content])
        lines.append(json.dumps(content | {CHECKSUM: check}) + "\n")
    (unfinished / "history.jsonl").write_text("".join(lines))
    assert len(RunFolder(unfinished).history()) == len(lines) > 0
    coterie.resume(unfinished)
    assert len(RunFolder(unfinished).history()) > len(lines)


def test_separators_other_than_a_newline_do_not_end_a_line(tmp_path):
    record = RoundRecord(1, [], Bytes(), 0.0, events=[EventRecord("said", "a\u2028b\x85c")])
    with RunFolder.create(tmp_path / "run", {"method": "mine"}) as folder:
        folder.append_history(record)
    assert folder.history() == [record]


def test_history_that_lost_a_round_of_the_checkpoint_is_an_error(finished):
    path = finished / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    before = contents(finished)
    with pytest.raises(RunError, match=r"history\.jsonl, line 2: damaged, or lines before it are missing"):
        coterie.resume(finished)
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checkpoint.safetensors", b"garbage"),
        ("checkpoint.safetensors", b""),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b"{}"),
    ],
)
def test_damage_is_named(unfinished, name, content):
    (unfinished / name).write_bytes(content)
    with pytest.raises(RunError, match=str(unfinished)):
        coterie.resume(unfinished)


def test_a_snapshot_that_is_no_checkpoint(unfinished):
    from coterie.snapshot import save_snapshot

    identity = RunFolder(unfinished).identity()
    save_snapshot({"a": torch.ones(1)}, unfinished / "checkpoint.safetensors", identity)
    with pytest.raises(RunError, match="not a checkpoint of a run"):
        coterie.resume(unfinished)


def test_left_over_temporary_files_are_cleared(unfinished):
    (unfinished / ".checkpoint.safetensors.1.tmp").write_bytes(b"half")
    coterie.resume(unfinished)
    assert not [p for p in os.listdir(unfinished) if p.endswith(".tmp")]


def test_two_processes_that_claim_one_folder(tmp_path, monkeypatch):
    """The slower one finds the folder empty, waits for the lock, and meets a complete run."""
    acquire = RunFolder._acquire

    def after_another_run(self):
        monkeypatch.setattr(RunFolder, "_acquire", acquire)
        start(tmp_path / "run")
        acquire(self)

    monkeypatch.setattr(RunFolder, "_acquire", after_another_run)
    with pytest.raises(RunError, match="already complete"):
        start(tmp_path / "run")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_written_one_by_one_are_those_written_at_once(tmp_path, count):
    rows = [
        ClientRecord(f"Zoë\u2028{i}", i, None, 3, {"loss": float("nan"), "accuracy": 0.5}, mixture={"a": 1.0})
        for i in range(count)
    ]
    folder = RunFolder(tmp_path)
    write_rows(tmp_path / "a.json", iter(rows))
    folder.write_json("b.json", {"rows": to_json(rows)})
    assert folder.read_json("a.json") == folder.read_json("b.json")
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())
    assert len((tmp_path / "a.json").read_bytes().split(b"\n")) == 6 + count
