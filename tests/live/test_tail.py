"""The history is followed as it grows, is cut and comes back; the tree is the one that the method keeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import lines, record

from coterie.live.growth import Growth
from coterie.live.tail import HistoryTail, thinned
from coterie.methods.tree import Branch, Tree, as_table
from coterie.runs.folder import RunFolder


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


def test_a_resumed_run_takes_rounds_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(lines([record(t) for t in (1, 2, 3)]))
    tail = HistoryTail(path)
    tail.poll()
    epoch = tail.epoch
    folder = RunFolder(tmp_path)
    folder.rewind_history(1)
    for t in (2, 3, 4):  # as long as before, or longer, by the time anybody looks
        folder.append_history(record(t, members=9))
    folder.close()
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


def test_a_damaged_line_ends_the_reading_until_it_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(lines([record(1)]) + b'{"round": 2, "clu\xff\n' + lines([record(3)]))
    tail = HistoryTail(path)
    tail.poll()
    assert rounds(tail) == [1]
    RunFolder(tmp_path).rewind_history(1)
    tail.poll()
    assert rounds(tail) == [1]


def test_odd_but_valid_json_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    odd = {"round": 1, "clusters": 3, "events": [5, {"kind": "split", "details": {"cluster": 99}}], "accuracy": None}
    path.write_text(json.dumps(odd) + "\n" + '{"round": 2, "loss": {"mean": NaN}}\n[]\n')
    tail = HistoryTail(path)
    tail.poll()
    assert rounds(tail) == [1, 2]
    assert tail.records[1]["loss"] is None
    assert tail.growth.table() is None


def test_thinning_keeps_splits_and_ends() -> None:
    records = [{"round": t, "events": [{"kind": "split"}] if t == 778 else []} for t in range(1, 5001)]
    kept = [r["round"] for r in thinned(records, 100)]
    assert kept[0] == 1
    assert kept[-1] == 5000
    assert 778 in kept
    assert len(kept) <= 103


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(1, 3))
def test_growth_numbers_nodes_as_the_tree_does(choices: list[int], splits_a_round: int) -> None:
    model, edge = torch.zeros(1), torch.zeros(1, 1)
    tree, growth, t = Tree.single([str(i) for i in range(64)], model), Growth(), 0
    while choices:
        t += 1
        now, choices = choices[:splits_a_round], choices[splits_a_round:]
        events = []
        for choice in now:
            splittable = [leaf for leaf in tree.leaves() if len(leaf.members) > 1]
            leaf = splittable[choice % len(splittable)]
            half = 1 + choice % (len(leaf.members) - 1)
            sides = [Branch(part, model, edge) for part in (leaf.members[:half], leaf.members[half:])]
            tree = tree.split(leaf.id, sides, t, {"separation": choice / 7})
            details = {"separation": choice / 7, "cluster": leaf.id}
            events.append({"kind": "split", "text": "", "details": details})
        clusters = [{"members": len(leaf.members), "accuracy": 0.5} for leaf in tree.leaves()]
        ids = growth.add(t, clusters, events)
        assert ids == [leaf.id for leaf in tree.leaves()]
    drawn = growth.table()
    assert drawn is not None
    for row, known in zip(drawn, as_table(tree), strict=True):
        same = ("id", "parent", "children", "born", "split_round", "evidence")
        assert {key: row[key] for key in same} == {key: known[key] for key in same}
        if not row["children"]:
            assert row["size"] == len(known["members"])
