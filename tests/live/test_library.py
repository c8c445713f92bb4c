"""Runs are found, told apart by what they do, and forgotten when they are deleted; nothing in them is touched."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_runs import Write, lines, record

from coterie.errors import RunError
from coterie.live import library as library_module
from coterie.live.library import Library, locked_inodes, run_folders
from coterie.live.places import clusters_in_checkpoint
from coterie.methods.cfl_state import State
from coterie.methods.tree import Branch, Tree
from coterie.runs.folder import Checkpoint, RunFolder


@pytest.fixture(autouse=True)
def _always_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "RESCAN_SECONDS", 0.0)


def test_finds_runs_to_depth_three(tmp_path: Path, write_run: Write) -> None:
    for name in ("one", "a/two", "a/b/three", "a/b/c/too-deep", ".hidden/run", "one/models/inner"):
        write_run(tmp_path / name, [record(1)])
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"architectures": []}')
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [str(p.relative_to(tmp_path)) for p in run_folders(tmp_path)] == ["a/b/three", "a/two", "one"]
    assert list(run_folders(tmp_path / "one")) == [tmp_path / "one"]


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        Library(tmp_path / "nowhere")


def test_changes_are_told_once_and_deletion_is_noticed(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "r", [record(1)], rounds=3)
    library = Library(tmp_path)
    assert library.poll() == (["r"], [])
    assert library.poll() == ([], [])
    with open(run / "history.jsonl", "ab") as file:
        file.write(lines([record(2)]))
    assert library.poll() == (["r"], [])
    assert library.runs["r"].brief()["round"] == 2
    shutil.rmtree(run)
    assert library.poll() == ([], ["r"])
    write_run(run, [record(1)])
    assert library.poll() == (["r"], [])


def test_another_run_in_the_same_folder_gets_another_epoch(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "r", [record(1), record(2)])
    library = Library(tmp_path)
    library.poll()
    old = library.runs["r"].brief()["epoch"]
    shutil.rmtree(run)
    write_run(run, [record(1), record(2), record(3)], method="ifca")
    library.poll()
    told = library.runs["r"].detail(old, 2)
    assert told["method"] == "ifca"
    assert told["from"] == 0
    assert len(told["records"]) == 3


def test_details_after_a_round_hold_only_what_is_new(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path, [record(t) for t in range(1, 6)])
    library = Library(tmp_path)
    library.poll()
    run = library.runs["."]
    told = run.detail(run.tail.epoch, 3)
    assert [r["round"] for r in told["records"]] == [4, 5]
    assert (told["from"], told["total"]) == (3, 5)
    assert len(run.detail(run.tail.epoch + 1, 3)["records"]) == 5
    assert len(run.detail(run.tail.epoch, 99)["records"]) == 5


@pytest.mark.skipif(locked_inodes() is None, reason="the system does not list its locks")
def test_status_follows_the_lock(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with RunFolder.create(tmp_path / "r", {"method": "cfl", "rounds": 2}) as folder:
        folder.append_history(record(1))
        library.poll()
        assert library.runs["r"].status == "running"
    assert library.poll() == (["r"], [])
    assert library.runs["r"].status == "stopped"
    with RunFolder.open(tmp_path / "r") as folder:
        library.poll()
        assert library.runs["r"].status == "running"
        folder.write_json("summary.json", {"accuracy": {"mean": 0.5}})
    library.poll()
    assert library.runs["r"].status == "finished"


def test_status_without_locks_is_a_matter_of_age(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path, [record(1)], rounds=3)
    library = Library(tmp_path)
    library.poll()
    watched = library.runs["."]
    watched.poll(None)
    assert watched.status == "running"
    for file in run.iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    watched.poll(None)
    assert watched.status == "stopped"


def checkpoint_of(t: int) -> Checkpoint:
    model, edge = torch.zeros(3), torch.zeros(1, 2)
    tree = Tree.single(["a", "b", "<c>"], model)
    if t > 1:
        tree = tree.split(0, [Branch(("a",), model, edge), Branch(("b", "<c>"), model, edge)], 2, {})
    if t > 2:
        tree = tree.updated(replace(tree.nodes[2], members=("b",)))  # <c> has left
    return Checkpoint(t, State(tree, {}, {}, {}, {}), {}, 0, 0, 0.0)


def test_clients_places_come_from_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert clusters_in_checkpoint(tmp_path / "checkpoint.safetensors") == {}
    folder.save_checkpoint(checkpoint_of(1))
    assert clusters_in_checkpoint(tmp_path / "checkpoint.safetensors") == {"a": 0, "b": 0, "<c>": 0}
    folder.save_checkpoint(checkpoint_of(2))
    assert clusters_in_checkpoint(tmp_path / "checkpoint.safetensors") == {"a": 1, "b": 2, "<c>": 2}
    folder.save_checkpoint(checkpoint_of(3))
    assert clusters_in_checkpoint(tmp_path / "checkpoint.safetensors") == {"a": 1, "b": 2}
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    assert clusters_in_checkpoint(tmp_path / "checkpoint.safetensors") == {}


def test_reading_while_the_checkpoint_is_replaced(tmp_path: Path) -> None:
    folder, path = RunFolder(tmp_path), tmp_path / "checkpoint.safetensors"
    folder.save_checkpoint(checkpoint_of(1))
    done = threading.Event()

    def keep_saving() -> None:
        for t in range(60):
            folder.save_checkpoint(checkpoint_of(1 + t % 2))
        done.set()

    writer = threading.Thread(target=keep_saving)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(clusters_in_checkpoint(path)["a"])
    writer.join()
    assert set(seen) == {0, 1}
    assert folder.checkpoint() is not None


def test_finished_clients_are_named_by_their_node(tmp_path: Path, write_run: Write) -> None:
    split = {"kind": "split", "text": "", "details": {"cluster": 0}}
    rows = [{"client": "x", "cluster": 1, "accuracy": 0.5, "loss": float("nan")}, "damage"]
    write_run(tmp_path, [record(1), record(2, clusters=2, events=[split])], clients=rows)
    library = Library(tmp_path)
    library.poll()
    assert library.runs["."].clients()["rows"] == [{"client": "x", "cluster": 2, "accuracy": 0.5, "loss": None}]


def test_the_end_of_a_run_renews_the_clients(tmp_path: Path, write_run: Write) -> None:
    """A run writes its clients before its summary: a look in between must not be the last one."""
    run = write_run(tmp_path, [record(1)], clients=[{"client": "x", "cluster": 0}])
    (run / "summary.json").rename(run / "later")
    library = Library(tmp_path)
    library.poll()
    between = library.runs["."].clients()
    assert between["rows"] == []
    (run / "later").rename(run / "summary.json")
    library.poll()
    after = library.runs["."].clients()
    assert after["rows"] == [{"client": "x", "cluster": 0}]
    assert after["version"] != between["version"]


def test_looking_changes_nothing(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "r", [record(1)], clients=[{"client": "x", "cluster": 0}])
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.rglob("*")}
    library = Library(tmp_path)
    library.poll()
    library.runs["r"].detail(None, 0)
    library.runs["r"].clients()
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.rglob("*")} == before
