"""The history is followed as it grows, is cut and comes back; the tree is the one that the method keeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.methods.tree import Branch, Tree, splits_since
from coterie.runs.folder import RunFolder
from coterie.runs.records import Bytes, ClusterRecord, RoundRecord, SplitRecord, tree_of
from coterie_views.live.tail import HistoryTail, ShownGrowth, thinned
from made_runs import Write, lines, record


def rounds(tail: HistoryTail) -> list[int]:
    return [r["round"] for r in tail.records]


def test_reads_only_whole_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    tail = HistoryTail(path)
    assert not tail.poll()
    content = lines([record(t) for t in (1, 2, 3)])
    cut = len(lines([record(1), record(2)]))
    path.write_bytes(content[: cut - 1])  # a whole record, but for its line break
    assert tail.poll()
    assert rounds(tail) == [1]
    cut += 7
    path.write_bytes(content[:cut])
    assert tail.poll()
    assert rounds(tail) == [1, 2]
    assert not tail.poll()
    epoch = tail.epoch
    with open(path, "ab") as file:
        file.write(content[cut:])
    assert tail.poll()
    assert rounds(tail) == [1, 2, 3]
    assert tail.epoch == epoch


def test_a_resumed_run_takes_rounds_back(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path, [record(t) for t in (1, 2, 3)])
    tail = HistoryTail(tmp_path / "history.jsonl")
    tail.poll()
    epoch = tail.epoch
    with RunFolder(tmp_path) as folder:
        folder.rewind_history(1)
        for t in (2, 3, 4):  # as long as before, or longer, by the time anybody looks
            folder.append_history(record(t, members=9))
    assert tail.poll()
    assert rounds(tail) == [1, 2, 3, 4]
    assert tail.records[1]["clusters"][0]["members"] == 9
    assert tail.epoch != epoch


def test_truncation_in_place_and_deletion(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(lines([record(t) for t in (1, 2, 3)]))
    tail = HistoryTail(path)
    tail.poll()
    os.truncate(path, len(lines([record(1)])))
    assert tail.poll()
    assert rounds(tail) == [1]
    path.unlink()
    assert tail.poll()
    assert rounds(tail) == []


def test_a_damaged_line_ends_the_reading_until_it_is_repaired(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path, [record(1)])
    with open(tmp_path / "history.jsonl", "ab") as file:
        file.write(b'{"round": 2, "clu\xff\n' + lines([record(3)]))
    tail = HistoryTail(tmp_path / "history.jsonl")
    tail.poll()
    assert rounds(tail) == [1]
    with RunFolder(tmp_path) as folder:
        folder.rewind_history(1)
        folder.append_history(record(2))
    tail.poll()
    assert rounds(tail) == [1, 2]


@pytest.mark.parametrize(
    "odd",
    [
        "[]",
        "null",
        '{"round": 2}',
        '{"round": 2, "clusters": 3, "bytes": {}, "seconds": 0}',
        '{"round": 2, "clusters": [], "bytes": {}, "seconds": null}',
        '{"round": 2, "clusters": [], "bytes": {}, "seconds": 0, "events": [5]}',
        '{"round": 2, "clusters": [], "bytes": {}, "seconds": 0, "accuracy": null}',
        '{"round": 3, "clusters": [], "bytes": {}, "seconds": 0}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_of_the_next_round_ends_the_reading(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(lines([record(1)]) + odd.encode() + b"\n" + lines([record(2)]))
    tail = HistoryTail(path)
    tail.poll()
    assert rounds(tail) == [1]
    assert tail.growth.table() is None


def test_numbers_that_json_cannot_hold_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": 1, "clusters": [], "bytes": {}, "seconds": 0, "metrics": {"loss": {"mean": NaN}}}\n')
    tail = HistoryTail(path)
    tail.poll()
    assert rounds(tail) == [1]
    json.dumps(tail.records, allow_nan=False)


def test_a_round_that_was_not_evaluated_has_every_key_and_no_metrics(tmp_path: Path) -> None:
    silent = RoundRecord(1, [ClusterRecord(0, 5)], Bytes(), 0.1)
    (tmp_path / "history.jsonl").write_bytes(lines([silent, record(2)]))
    tail = HistoryTail(tmp_path / "history.jsonl")
    tail.poll()
    first, second = (row["clusters"][0] for row in tail.records)
    assert first["metrics"] == {}
    assert set(first) == set(second)


def test_thinning_keeps_splits_and_ends() -> None:
    records = [{"round": t, "splits": int(t == 778)} for t in range(1, 5001)]
    kept = [r["round"] for r in thinned(records, 100)]
    assert kept[0] == 1
    assert kept[-1] == 5000
    assert 778 in kept
    assert len(kept) <= 103


def split_of(cluster: int, children: list[int], members: list[list[str]], t: int) -> RoundRecord:
    """A round with a split that has no event to go with it."""
    split = SplitRecord(cluster, children, members, {"separation": 0.5})
    now = {client: child for child, side in zip(children, members, strict=True) for client in side}
    return record(t, children, splits=[split], assignment=now)


def test_a_split_is_seen_in_the_records_whatever_the_events_say(tmp_path: Path) -> None:
    """Ids need not be positions, and a method need not name an event as ours do."""
    (tmp_path / "history.jsonl").write_bytes(lines([record(1, [5]), split_of(5, [7, 9], [["a"], ["b", "c"]], 2)]))
    tail = HistoryTail(tmp_path / "history.jsonl")
    tail.poll()
    assert [row["splits"] for row in tail.records] == [0, 1]
    table = tail.growth.table()
    assert table is not None
    assert [(row["id"], row["parent"], row["children"]) for row in table] == [(5, None, [7, 9]), (7, 5, []), (9, 5, [])]
    assert tail.growth.cluster_of == {"a": 7, "b": 9, "c": 9}


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(1, 3))
def test_growth_is_the_tree_that_the_method_keeps(choices: list[int], splits_a_round: int) -> None:
    model, edge = torch.zeros(1), torch.zeros(1, 1)
    tree, growth, t, records = Tree.single([str(i) for i in range(64)], model), ShownGrowth(), 0, []
    while choices:
        t += 1
        now, choices = choices[:splits_a_round], choices[splits_a_round:]
        before = len(tree.nodes)
        for choice in now:
            splittable = [leaf for leaf in tree.leaves() if len(leaf.members) > 1]
            leaf = splittable[choice % len(splittable)]
            half = 1 + choice % (len(leaf.members) - 1)
            sides = [Branch(part, model, edge) for part in (leaf.members[:half], leaf.members[half:])]
            tree = tree.split(leaf.id, sides, t, {"separation": choice / 7})
        made = [
            SplitRecord(s.cluster, list(s.children), [list(side) for side in s.members], dict(s.evidence))
            for s in splits_since(tree, before)
        ]
        clusters = [ClusterRecord(leaf.id, len(leaf.members), metrics={"accuracy": 0.5}) for leaf in tree.leaves()]
        places = {client: leaf.id for leaf in tree.leaves() for client in leaf.members}
        records.append(RoundRecord(t, clusters, Bytes(), 0.0, assignment=dict(places), splits=made))
        growth.add(records[-1])
        assert growth.cluster_of == places
    drawn, known = growth.table(), tree_of(records)
    assert drawn is not None
    for row, node, kept in zip(drawn, known, tree.nodes, strict=True):
        for name in ("id", "parent", "born", "split_round"):
            assert row[name] == getattr(node, name) == getattr(kept, name)
        assert row["reason"] == node.reason
        assert node.evidence == kept.evidence
        assert row["children"] == node.children == list(kept.children)
        assert node.members == sorted(kept.members, key=node.members.index)
        if not row["children"]:
            assert row["size"] == len(kept.members)
