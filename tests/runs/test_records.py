"""What a run records: every record comes back from JSON as it went, and damage is named with file and place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cli.main import main
from coterie.errors import RunError
from coterie.runs.folder import RunFolder
from coterie.runs.records import (
    FORMAT,
    Bytes,
    ClientRecord,
    ClusterRecord,
    EventRecord,
    FaultRecord,
    RoundRecord,
    SplitRecord,
    Spread,
    Summary,
    TreeNode,
    assignments,
    from_json,
    parse_json,
    to_json,
    tree_of,
)
from coterie.runs.rows import write_rows
from coterie_studies.comparison import read_comparison
from coterie_views.report import write_report

finite = st.floats(allow_nan=False, allow_infinity=False)
known = st.none() | finite
text = st.text(max_size=4)
counts = st.integers(0, 2**40)
ids = st.integers(0, 50)
numbers = st.dictionaries(text, known, max_size=3)
names = st.lists(text, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
spreads = st.builds(Spread, known, known, known, known, known, known)
metrics = st.dictionaries(text, spreads, max_size=2)
sent = st.builds(Bytes, counts, counts)
clusters = st.builds(ClusterRecord, ids, counts, known, known, known, numbers, numbers)
events = st.builds(EventRecord, text, text, st.dictionaries(text, values, max_size=2))
splits = st.integers(0, 3).flatmap(
    lambda n: st.builds(
        SplitRecord,
        ids,
        st.lists(st.integers(51, 99), min_size=n, max_size=n, unique=True),
        st.lists(names, min_size=n, max_size=n),
        numbers,
    )
)
faults = st.builds(FaultRecord, text, text)
rounds = st.builds(
    RoundRecord,
    round=ids,
    clusters=st.lists(clusters, max_size=2),
    bytes=sent,
    seconds=finite,
    metrics=metrics,
    participants_only=st.booleans(),
    assignment=st.dictionaries(text, st.none() | ids, max_size=3),
    splits=st.lists(splits, max_size=2),
    events=st.lists(events, max_size=2),
    faults=st.lists(faults, max_size=2),
)
clients = st.builds(
    ClientRecord, text, ids, st.none() | text, counts, numbers, private=st.booleans(), personalised=known
)
summaries = st.builds(
    Summary,
    method=text,
    scenario=text,
    model=text,
    seed=counts,
    rounds=counts,
    clients=counts,
    clusters=st.lists(names, max_size=2),
    cluster_ids=st.lists(ids, max_size=2),
    metrics=metrics,
    ari=known,
    bytes=sent,
    seconds=finite,
    initial=known,
    personalised=st.none() | spreads,
)
nodes = st.builds(TreeNode, ids, st.none() | ids, names, counts, st.lists(ids, max_size=2), st.none() | counts, numbers)


@given(st.one_of(spreads, sent, clusters, events, splits, faults, rounds, clients, summaries, nodes))
def test_every_record_comes_back_from_json_as_it_went(record: Any) -> None:
    written = json.dumps(to_json(record), allow_nan=False)
    assert from_json(type(record), parse_json(written), "here") == record
    assert to_json([record]) == [json.loads(written)]


@given(rounds, clients, summaries)
def test_a_folder_gives_back_what_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, record: RoundRecord, client: ClientRecord, summary: Summary
) -> None:
    place = tmp_path_factory.mktemp("runs") / "run"
    with RunFolder.create(place, {"method": "mine"}) as folder:
        for _ in range(2):
            folder.append_history(record)
        write_rows(folder.path / "clients.json", [client])
        folder.write_json("summary.json", to_json(summary))
    again = RunFolder(place)
    assert again.history() == [record, record]
    assert again.history(1) == [record]
    assert (again.clients(), again.summary()) == ([client], summary)


@pytest.mark.parametrize("wild", [float("nan"), float("inf"), float("-inf"), np.float32("nan"), np.float64("inf")])
def test_numbers_that_json_cannot_hold_are_null(wild: float) -> None:
    cluster = ClusterRecord(0, 1, wild, thresholds={"eps1": wild})
    record = RoundRecord(
        1, [cluster], Bytes(), 0.0, {"loss": Spread(wild)}, splits=[SplitRecord(0, [], [], {"e": wild})]
    )
    plain = json.loads(json.dumps(to_json(record), allow_nan=False))
    assert plain["clusters"][0]["train_loss"] is None
    assert plain["metrics"]["loss"]["mean"] is None
    again = from_json(RoundRecord, plain, "here")
    assert (again.loss.mean, again.splits[0].evidence, again.clusters[0].thresholds) == (
        None,
        {"e": None},
        {"eps1": None},
    )


def test_numbers_of_numpy_are_numbers() -> None:
    record = ClusterRecord(np.int64(3), np.int32(2), np.float32(0.5))  # type: ignore[arg-type]
    assert to_json({"record": record, np.int64(4): np.arange(2)[1]}) == {
        "record": to_json(ClusterRecord(3, 2, 0.5)),
        "4": 1,
    }


def test_json_text_is_read_or_refused_as_a_whole() -> None:
    assert parse_json(b'{"a": [NaN, -Infinity, 1.5]}') == {"a": [None, None, 1.5]}
    for damage in ("", "{", '{"a": 1}}', b'"\xff"', b"\x00", "[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"."):
            parse_json(damage)


ROUND = to_json(
    RoundRecord(
        1,
        [ClusterRecord(0, 3)],
        Bytes(1, 2),
        0.5,
        {"accuracy": Spread(0.5)},
        assignment={"a": 0},
        splits=[SplitRecord(0, [1, 2], [["a"], ["b"]])],
        events=[EventRecord("split", "words")],
        faults=[FaultRecord("a", "why")],
    )
)
SUMMARY = to_json(Summary("m", "s", "n", 0, 1, 2, [["a"], ["b"]], [0, 1], {"loss": Spread(0.5)}, None, Bytes(), 0.1))
CLIENT = to_json(ClientRecord("a", 0, "cluster-0", 4, {"loss": 0.5}))


def changed(table: Any, place: str, value: Any) -> Any:
    """The table with another value at a place such as `clusters.0.id`."""
    first, _, rest = place.partition(".")
    copy = list(table) if isinstance(table, list) else dict(table)
    key: Any = int(first) if isinstance(table, list) else first
    copy[key] = changed(table[key], rest, value) if rest else value
    return copy


def without(table: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


DAMAGE = [
    (RoundRecord, changed(ROUND, "round", "one"), "round"),
    (RoundRecord, changed(ROUND, "round", None), "round"),
    (RoundRecord, changed(ROUND, "round", 1.5), "round"),
    (RoundRecord, without(ROUND, "round"), "round"),
    (RoundRecord, without(ROUND, "bytes"), "bytes"),
    (RoundRecord, changed(ROUND, "bytes", None), "bytes"),
    (RoundRecord, changed(ROUND, "bytes.up", []), "bytes.up"),
    (RoundRecord, changed(ROUND, "seconds", {}), "seconds"),
    (RoundRecord, changed(ROUND, "clusters", 3), "clusters"),
    (RoundRecord, changed(ROUND, "clusters", None), "clusters"),
    (RoundRecord, changed(ROUND, "clusters.0", "cluster"), "clusters.0"),
    (RoundRecord, changed(ROUND, "clusters.0.id", None), "clusters.0.id"),
    (RoundRecord, changed(ROUND, "clusters.0.members", ["a"]), "clusters.0.members"),
    (RoundRecord, changed(ROUND, "metrics.accuracy", 0.5), "metrics.accuracy"),
    (RoundRecord, changed(ROUND, "metrics.accuracy.mean", "high"), "metrics.accuracy.mean"),
    (RoundRecord, changed(ROUND, "assignment", ["a"]), "assignment"),
    (RoundRecord, changed(ROUND, "assignment.a", "first"), "assignment.a"),
    (RoundRecord, changed(ROUND, "splits.0.children", None), "splits.0.children"),
    (RoundRecord, changed(ROUND, "splits.0.children", [1]), "splits.0"),
    (RoundRecord, changed(ROUND, "splits.0.children", [0, 1]), "splits.0"),
    (RoundRecord, changed(ROUND, "splits.0.children", [1, 1]), "splits.0"),
    (RoundRecord, changed(ROUND, "splits.0.members.1", 5), "splits.0.members.1"),
    (RoundRecord, changed(ROUND, "events.0", 5), "events.0"),
    (RoundRecord, changed(ROUND, "events.0.text", None), "events.0.text"),
    (RoundRecord, changed(ROUND, "events.0.details", []), "events.0.details"),
    (RoundRecord, changed(ROUND, "faults.0.client", 3), "faults.0.client"),
    (RoundRecord, ROUND | {"accuracy": {"mean": 0.5}}, "accuracy"),
    (RoundRecord, None, "it"),
    (RoundRecord, [ROUND], "it"),
    (Summary, without(SUMMARY, "cluster_ids"), "cluster_ids"),
    (Summary, changed(SUMMARY, "cluster_ids", [[0]]), "cluster_ids.0"),
    (Summary, changed(SUMMARY, "clusters", {"a": 0}), "clusters"),
    (Summary, changed(SUMMARY, "clusters.1.0", None), "clusters.1.0"),
    (Summary, changed(SUMMARY, "personalised", 0.5), "personalised"),
    (Summary, SUMMARY | {"accuracy": 1}, "accuracy"),
    (Summary, {}, "method"),
    (ClientRecord, without(CLIENT, "cluster"), "cluster"),
    (ClientRecord, changed(CLIENT, "cluster", None), "cluster"),
    (ClientRecord, changed(CLIENT, "model", 0), "model"),
    (ClientRecord, changed(CLIENT, "metrics", None), "metrics"),
    (ClientRecord, changed(CLIENT, "metrics.loss", "low"), "metrics.loss"),
    (ClientRecord, changed(CLIENT, "private", "perhaps"), "private"),
    (ClientRecord, "client", "it"),
]


@pytest.mark.parametrize(("kind", "damaged", "place"), DAMAGE)
def test_damage_in_a_file_is_named_with_its_place(kind: type, damaged: Any, place: str, tmp_path: Path) -> None:
    """With a checksum that fits, as if another version had written it."""
    with RunFolder.create(tmp_path / "run", {"method": "mine"}) as folder:
        if kind is Summary:
            folder.write_json("summary.json", damaged)
            where, read = "summary.json", folder.summary
        elif kind is ClientRecord:
            write_rows(folder.path / "clients.json", [CLIENT, damaged])
            place, where, read = f"1.{place}" if place != "it" else "1", "clients.json", folder.clients
        else:
            folder.append_history(from_json(RoundRecord, ROUND, "here"))
            with open(tmp_path / "run" / "history.jsonl", "a") as file:
                file.write(json.dumps(damaged) + "\n")
            where, read = "history.jsonl, line 2", folder.history
    with pytest.raises(RunError) as problem:
        read()
    assert f"{tmp_path / 'run' / where}: damaged ({place}: " in str(problem.value)


@pytest.mark.parametrize("damage", ["", "{", "\x00", "[" * 100_000, '{"rows":' * 100_000])
def test_text_that_is_no_json_is_named_with_its_file(damage: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {"method": "mine"}) as folder:
        folder.append_history(from_json(RoundRecord, ROUND, "here"))
    reading: dict[str, Callable[[], object]] = {
        "summary.json": folder.summary,
        "clients.json": folder.clients,
        "history.jsonl": folder.history,
        "config.json": folder.config,
    }
    for name, read in reading.items():
        with open(tmp_path / "run" / name, "a" if name == "history.jsonl" else "w") as file:
            file.write(damage + "\n")
        with pytest.raises(RunError, match=f"{tmp_path / 'run' / name}"):
            read()


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"rows": [], "options": null}',
        '{"options": {}, "rows": [{"method": "a"}]}',
        '{"options": {}, "rows": [{"method": "a", "folders": {"first": "a"}, "failures": {}}]}',
        '{"options": {}, "rows": [{"method": "a", "folders": {"1": 2}, "failures": {}}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_comparison_is_named(damage: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(damage)
    with pytest.raises(RunError, match=f"{tmp_path / 'comparison.json'}: damaged"):
        read_comparison(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished") / "run"
    coterie.run("fedavg", scenario="xor", clients=4, samples=10, rounds=1, workers=1, out=place)
    return place


@pytest.mark.parametrize("stated", [1, 99, None, "2", [2]])
def test_a_folder_of_another_format_is_refused_by_whoever_reads_it(
    stated: object, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunFolder(finished).config()
    assert json.loads((finished / "config.json").read_text())["format"] == FORMAT == 2
    run = tmp_path / "run"
    run.mkdir()
    for file in finished.iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    RunFolder(run).write_json("config.json", config if stated == 1 else {"format": stated, **config})
    readers: list[Callable[[], object]] = [
        RunFolder(run).config,
        RunFolder(run).history,
        RunFolder(run).checkpoint,
        lambda: coterie.resume(run),
        lambda: coterie.load(run),
        lambda: write_report(run),
        lambda: read_comparison(tmp_path),
    ]
    message = f"the folder has format {stated!r}, this version reads 2"
    for read in readers:
        with pytest.raises(RunError) as problem:
            read()
        assert message in str(problem.value)
    with pytest.raises(SystemExit):
        main(["tree", str(run)])
    assert message in capsys.readouterr().err


def a_round(t: int, assignment: dict[str, int | None] | None = None, *splits: SplitRecord) -> RoundRecord:
    return RoundRecord(t, [], Bytes(), 0.0, assignment=assignment or {}, splits=list(splits))


def test_assignments_follow_moves_and_departures() -> None:
    course = [
        a_round(1, {"a": 0, "b": 0, "c": 4}),
        a_round(2),
        a_round(3, {"b": 4, "c": None}),
        a_round(4, {"c": 1, "a": None}),
        a_round(5, {"gone": None}),
    ]
    expected: list[dict[str, int]] = [
        {},
        {"a": 0, "b": 0, "c": 4},
        {"a": 0, "b": 0, "c": 4},
        {"a": 0, "b": 4},
        {"b": 4, "c": 1},
        {"b": 4, "c": 1},
    ]
    for n, places in enumerate(expected):
        assert assignments(course[:n]) == places


FIRST = SplitRecord(0, [1, 2], [["a", "b"], ["c", "d"]], {"separation": 0.5})
SECOND = SplitRecord(2, [3, 4], [["c"], ["d"]], {"separation": 0.75, "exponent": None})


def test_a_tree_by_hand() -> None:
    course = [
        a_round(1, dict.fromkeys("abcd", 0)),
        a_round(2, {"a": 1, "b": 1, "c": 2, "d": 2}, FIRST),
        a_round(3, {"c": 3, "d": 4}, SECOND),
    ]
    assert tree_of(course) == [
        TreeNode(0, None, ["a", "b", "c", "d"], 0, [1, 2], 2, {"separation": 0.5}, "separation 0.5"),
        TreeNode(1, 0, ["a", "b"], 2),
        TreeNode(2, 0, ["c", "d"], 2, [3, 4], 3, {"separation": 0.75, "exponent": None}, "separation 0.75"),
        TreeNode(3, 2, ["c"], 3),
        TreeNode(4, 2, ["d"], 3),
    ]
    assert tree_of(course[:1]) == tree_of([]) == []


def test_leaves_of_a_tree_have_the_members_they_have_now() -> None:
    """Whether they came or left later; where nothing was evaluated since, those of the split."""
    course = [a_round(1, dict.fromkeys("abcd", 0)), a_round(2, None, FIRST)]
    assert [node.members for node in tree_of(course)] == [["a", "b", "c", "d"], ["a", "b"], ["c", "d"]]
    course.append(a_round(3, {"a": 1, "b": None, "c": None, "d": None, "e": 1}))
    assert [node.members for node in tree_of(course)] == [["a", "b", "c", "d"], ["a", "e"], []]


def test_two_splits_in_one_round_and_several_roots() -> None:
    course = [
        a_round(1, {"a": 5, "b": 5, "c": 9, "d": 9, "e": 2}),
        a_round(4, {}, SplitRecord(5, [10, 12], [["a"], ["b"]]), SplitRecord(9, [11, 13], [["c"], ["d"]])),
    ]
    found = {node.id: (node.parent, node.members, node.children) for node in tree_of(course)}
    assert found == {
        5: (None, ["a", "b"], [10, 12]),
        9: (None, ["c", "d"], [11, 13]),
        10: (5, ["a"], []),
        11: (9, ["c"], []),
        12: (5, ["b"], []),
        13: (9, ["d"], []),
    }


@pytest.mark.parametrize(("cluster", "child"), [(2, 1), (1, 0)])
def test_an_id_that_begins_twice_is_no_tree(cluster: int, child: int) -> None:
    again = SplitRecord(cluster, [child, 5], [["a"], ["b"]])
    with pytest.raises(RunError, match=f"round 3: the split of cluster {cluster} begins {child} again"):
        tree_of([a_round(2, None, FIRST), a_round(3, None, again)])


def test_records_are_values() -> None:
    """Two equal records are the same, and nothing but a new one changes a number."""
    record = a_round(1, {"a": 0})
    assert record == a_round(1, {"a": 0})
    assert replace(record, round=2) != record
    with pytest.raises(AttributeError):
        record.round = 2  # type: ignore[misc]


def test_what_is_spent_is_counted_from_the_first_message() -> None:
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 3, "epochs": 2, "workers": 1}
    plain, seeded = (coterie.run(f"ifca:k=2,init={init}", **options) for init in ("random", "k-means++"))
    each = 6 * (2 + 2 / 3)  # six clients train for two epochs, and look at two models, a third of a pass each
    assert [record.passes for record in plain.history] == [pytest.approx(each)] * 3
    assert [record.exchanges for record in plain.history] == [1, 1, 1]
    assert seeded.history[0].passes > plain.history[0].passes + options["epochs"]
    assert seeded.history[0].exchanges > 1
    for result in (plain, seeded):
        assert sum(record.bytes.total for record in result.history) == result.summary.bytes.total
        assert sum(record.passes for record in result.history) == pytest.approx(result.summary.passes, abs=0.01)
        assert sum(record.exchanges for record in result.history) == result.summary.exchanges


def test_a_run_ends_when_its_passes_are_spent() -> None:
    result = coterie.run("fedavg", scenario="digits-iid", clients=4, rounds=50, epochs=1, max_passes=10, workers=1)
    assert (result.summary.rounds, result.summary.passes) == (3, 12)
    assert "12.0 passes over clients' data, of max_passes=10" in str(result.summary.stopped)
