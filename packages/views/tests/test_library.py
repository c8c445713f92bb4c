"""Runs are found, told apart by what they do, and forgotten when they are deleted; nothing in them is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import RunError
from coterie.runs.folder import RunFolder
from coterie.runs.records import SplitRecord, to_json
from coterie.runs.rows import write_rows
from coterie_views.live import library as library_module
from coterie_views.live.library import Library, locked_inodes, run_folders
from coterie_views.live.watched import WatchedRun
from coterie_views.report.drawing import COLOURS
from made_runs import Write, client, lines, record, summary_of


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


def test_seeds_of_one_setting_are_known_as_such_and_courses_are_short(tmp_path: Path, write_run: Write) -> None:
    for name, values in {"a": {"seed": 0}, "b": {"seed": 1, "federation": "other"}, "c": {"lr": 0.5}}.items():
        write_run(tmp_path / name, [record(t) for t in range(1, 1001)], **values)
    os.utime(tmp_path / "b" / "config.json", (1_000, 1_000))
    library = Library(tmp_path)
    library.poll()
    a, b, c = (library.runs[name].brief() for name in "abc")
    assert a["setting"] == b["setting"] != c["setting"]
    assert b["begun"] == 1_000 < a["begun"]
    course = library.runs["a"].course()
    assert (course["rounds"][0], course["rounds"][-1]) == (1, 1000)
    assert len(course["rounds"]) == len(course["metrics"]["accuracy"]) == len(course["metrics"]["loss"]) <= 401
    assert course["metrics"]["accuracy"][-1] == pytest.approx(1 - 1 / 1001)


def test_the_page_has_the_reports_colours() -> None:
    style = (Path(library_module.__file__).parent / "static" / "app.css").read_text()
    assert tuple(re.findall(r"--c\d: (#[0-9a-f]{6});", style)) == COLOURS
    assert "% COLOURS" in (Path(library_module.__file__).parent / "static" / "app.js").read_text()


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
        folder.write_json("summary.json", to_json(summary_of([client("x")], 1)))
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


def test_clients_places_come_from_the_history(tmp_path: Path, write_run: Write) -> None:
    """While a run goes on nothing but its history is read: the clients that moved or left, in every record."""
    split = SplitRecord(0, [1, 2], [["a"], ["b", "<c>"]])
    course = [
        record(1, assignment={"a": 0, "b": 0, "<c>": 0}),
        record(2, [1, 2], splits=[split], assignment={"a": 1, "b": 2, "<c>": 2}),
        record(3, [1, 2]),
        record(4, [1, 2], assignment={"<c>": None, "d": 1}),
    ]
    expected = [
        {"a": 0, "b": 0, "<c>": 0},
        {"a": 1, "b": 2, "<c>": 2},
        {"a": 1, "b": 2, "<c>": 2},
        {"a": 1, "b": 2, "d": 1},
    ]
    write_run(tmp_path, [], rounds=9)
    library, versions = Library(tmp_path), []
    library.poll()
    assert library.runs["."].clients()["rows"] == []
    folder = RunFolder(tmp_path)
    for now, places in zip(course, expected, strict=True):
        folder.append_history(now)
        library.poll()
        told = library.runs["."].clients()
        assert told["rows"] == [{"client": name, "cluster": number} for name, number in places.items()]
        versions.append(told["version"])
    assert len(set(versions)) == 4
    folder.rewind_history(1)
    folder.close()
    library.poll()
    assert {row["client"]: row["cluster"] for row in library.runs["."].clients()["rows"]} == expected[0]


def test_reading_while_the_history_grows_and_is_rewound(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path, [record(1, assignment={"a": 0})], rounds=9)
    library, enough = Library(tmp_path), threading.Event()
    library.poll()

    def keep_writing() -> None:
        while not enough.is_set():
            with RunFolder(tmp_path) as folder:
                folder.append_history(record(2, [1], assignment={"a": 1}))
                folder.rewind_history(1)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    seen: Counter[int] = Counter()
    limit = time.monotonic() + 60
    while min(seen[0], seen[1]) < 20 and time.monotonic() < limit:
        library.poll()
        (row,) = library.runs["."].clients()["rows"]
        seen[row["cluster"]] += 1
    enough.set()
    writer.join()
    assert set(seen) == {0, 1}
    library.poll()
    assert library.runs["."].clients()["rows"] == [{"client": "a", "cluster": 0}]


def test_finished_clients_have_their_cluster_and_metrics(tmp_path: Path, write_run: Write) -> None:
    rows = [client("x", 2, 0.5, None), replace(client("y", 1), personalised=0.75)]
    write_run(tmp_path, [record(1), record(2, [1, 2], assignment={"x": 2, "y": 1, "gone": 1})], clients=rows)
    library = Library(tmp_path)
    library.poll()
    assert library.runs["."].clients()["rows"] == [
        {"client": "x", "cluster": 2, "test_samples": 9, "accuracy": 0.5, "loss": None},
        {"client": "y", "cluster": 1, "test_samples": 9, "accuracy": 0.5, "loss": 1.0, "personalised": 0.75},
    ]


@pytest.mark.parametrize("damage", ['[{"client": "x"}]', '["damage"]', "{}", "null", "[", "[" * 100_000])
def test_damaged_clients_or_summary_leave_what_the_history_says(damage: str, tmp_path: Path, write_run: Write) -> None:
    for name in ("clients.json", "summary.json"):
        run = write_run(tmp_path / name, [record(1, assignment={"x": 0})], clients=[client("x")])
        (run / name).write_text(damage)
    library = Library(tmp_path)
    library.poll()
    for name in ("clients.json", "summary.json"):
        run = library.runs[name]
        assert run.clients()["rows"] == [{"client": "x", "cluster": 0}]
        library.poll()
        assert run.status == "damaged"
        assert name in run.brief()["problem"]


@pytest.mark.parametrize("damage", ["", "[]", "null", "{", "[" * 100_000])
def test_a_damaged_config_harms_no_other_run(damage: str, tmp_path: Path, write_run: Write) -> None:
    (write_run(tmp_path / "bad", [record(1)]) / "config.json").write_text(damage)
    later = write_run(tmp_path / "later", [record(1)], rounds=9) / "config.json"
    library = Library(tmp_path)
    assert library.poll() == (["bad", "later"], [])
    assert [run.status for run in library.runs.values()] == ["damaged", "running"]
    later.write_text(damage)
    library.poll()
    brief = library.runs["later"].brief()
    assert (brief["method"], brief["status"], brief["problem"]) == (None, "damaged", "config.json cannot be read")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("value", [nested(900), "1e999", '{"a": NaN}', "9" * 4000, '"\\ud800"'])
def test_any_config_can_be_told_to_a_page(value: str, tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "odd", [record(1)])
    (run / "config.json").write_text(f'{{"method": {value}, "rounds": {value}}}')
    library = Library(tmp_path)
    library.poll()
    json.dumps([found.brief() for found in library.runs.values()], allow_nan=False)


@pytest.mark.parametrize("name", ["config.json", "history.jsonl", "summary.json", "clients.json"])
def test_nothing_outside_the_folder_is_read(name: str, tmp_path: Path, write_run: Write) -> None:
    secret = write_run(tmp_path / "elsewhere", [record(1, assignment={"secret": 0})], clients=[client("secret")])
    run = write_run(tmp_path / "runs/one", [record(1, assignment={"own": 0})], clients=[client("own")])
    (run / name).unlink()
    (run / name).symlink_to(secret / name)
    (tmp_path / "runs/link").symlink_to(secret)
    library = Library(tmp_path / "runs")
    library.poll()
    if name == "config.json":
        assert not library.runs
        return
    assert list(library.runs) == ["one"]
    found = library.runs["one"]
    assert "secret" not in json.dumps([found.brief(), found.detail(None, 0), found.clients()])
    assert found.status == "damaged"
    assert f"{name} is a link" in found.brief()["problem"]


def test_a_pipe_in_place_of_a_file_does_not_stop_the_watcher(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "one", [record(1)])
    (run / "history.jsonl").unlink()
    os.mkfifo(run / "history.jsonl")
    library = Library(tmp_path)
    library.poll()
    assert library.runs["one"].status == "damaged"


def test_whatever_a_look_raises_is_one_card(tmp_path: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "bad", [record(1)])
    write_run(tmp_path / "good", [record(1)])
    looked = WatchedRun._look

    def broken(run: WatchedRun, locks: frozenset[int] | None) -> bool:
        if run.name == "bad":
            raise RecursionError("nested")
        return looked(run, locks)

    monkeypatch.setattr(WatchedRun, "_look", broken)
    library = Library(tmp_path)
    assert library.poll() == (["bad", "good"], [])
    assert library.runs["bad"].brief()["problem"] == "RecursionError: nested"
    assert library.runs["good"].status == "running"
    assert library.poll() == ([], [])


def test_clients_come_page_by_page(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "many", [record(1)], clients=[client(f"c{i:05d}") for i in range(10_001)])
    library = Library(tmp_path)
    library.poll()
    run = library.runs["many"]
    first, rest = run.clients(), run.clients(10_000, 10**9)
    assert (first["total"], len(first["rows"]), first["from"]) == (10_001, 10_000, 0)
    assert [row["client"] for row in rest["rows"]] == ["c10000"]
    assert len(run.clients(5, 3)["rows"]) == 3


def test_the_end_of_a_run_renews_the_clients(tmp_path: Path, write_run: Write) -> None:
    """A run writes its clients before its summary: a look in between must not be the last one."""
    run = write_run(tmp_path, [record(1)], clients=[client("x")])
    (run / "summary.json").rename(run / "later")
    library = Library(tmp_path)
    library.poll()
    between = library.runs["."].clients()
    assert between["rows"] == []
    (run / "later").rename(run / "summary.json")
    library.poll()
    after = library.runs["."].clients()
    assert [row["client"] for row in after["rows"]] == ["x"]
    assert after["version"] != between["version"]


def test_looking_changes_nothing(tmp_path: Path, write_run: Write) -> None:
    run = write_run(tmp_path / "r", [record(1)], clients=[client("x")])
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.rglob("*")}
    library = Library(tmp_path)
    library.poll()
    library.runs["r"].detail(None, 0)
    library.runs["r"].clients()
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.rglob("*")} == before


def test_of_very_many_clients_the_worst_served_are_given_and_no_more(
    tmp_path: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie_views.live.pages.MOST_SHOWN", 20)
    monkeypatch.setattr("coterie_views.live.watched.MOST_SHOWN", 20)
    monkeypatch.setattr("coterie_views.live.watched.MOST_ROWS", 5)
    monkeypatch.setattr("coterie.runs.folder.ROWS_AT_ONCE", 4)
    rows = [replace(client(f"c{i}"), metrics={"accuracy": ((7 * i) % 30) / 30, "loss": 1.0}) for i in range(30)]
    rows[3] = replace(rows[3], metrics={"accuracy": None, "loss": None})
    path = write_run(tmp_path / "many", [record(1, assignment={f"c{i}": 0 for i in range(30)})], clients=rows)
    run = Library(tmp_path)
    run.poll()
    watched = run.runs["many"]
    with RunFolder(path) as folder:
        write_rows(folder.path / "clients.json", rows)
    run.poll()
    told = watched.clients()
    assert (told["total"], told["available"], told["worst_first"]) == (30, 5, True)
    expected = sorted((row for row in rows if row.accuracy is not None), key=lambda row: row.accuracy)[:5]
    assert [row["client"] for row in told["rows"]] == [row.client for row in expected]
    assert watched.clients(3)["rows"] == told["rows"][3:]
    assert watched.clients(5)["rows"] == []


def test_before_the_end_very_many_clients_are_cut_to_one_answer(
    tmp_path: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie_views.live.watched.MOST_SHOWN", 20)
    monkeypatch.setattr("coterie_views.live.watched.MOST_ROWS", 5)
    write_run(tmp_path / "many", [record(1, assignment={f"c{i}": 0 for i in range(30)})])
    library = Library(tmp_path)
    library.poll()
    told = library.runs["many"].clients()
    assert (told["total"], told["available"], told["worst_first"], len(told["rows"])) == (30, 5, False, 5)
