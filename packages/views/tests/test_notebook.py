"""A result in a notebook: the summary's numbers and the tree, with every name escaped."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import torch

import coterie
from coterie.federation import Client, Federation, Split
from coterie.runs.records import Bytes, EventRecord, History, RoundRecord, SplitRecord, tree_of
from coterie.runs.result import Result
from coterie.runs.words import describe, member_lines


class Reader(HTMLParser):
    """Collects tags and text, and checks that every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    return reader


def small_result() -> Result:
    names = ["<script>alert(1)</script>", "b&b", "c", "d"]
    generator = torch.Generator().manual_seed(0)
    splits = [Split(torch.rand(8, 3, generator=generator), torch.randint(2, (8,), generator=generator)) for _ in names]
    federation = Federation([Client(n, s, s, s) for n, s in zip(names, splits, strict=True)], name="<i>toy</i>")
    return coterie.run("oneshot:k=2,warmup_rounds=1", federation, model="logistic", rounds=2)


def test_names_are_text_and_the_summary_is_there() -> None:
    result = small_result()
    reader = read(result._repr_html_())
    assert not {"script", "i"} & set(reader.tags)
    assert any("<script>alert(1)</script>" in text for text in reader.text)
    assert f"{result.summary.accuracy.mean:.4f}" in reader.text


def test_a_split_is_explained_in_the_methods_own_sentence() -> None:
    split = SplitRecord(0, [1, 2], [["a"], ["b"]], {"age": 3.0, "harm": 0.873})
    event = EventRecord("split", "cluster 0 splits into 1 and 1: each side's step harms the other", {"cluster": 0})
    [root, *_] = tree_of([RoundRecord(5, [], Bytes(), 0.0, splits=[split], events=[event])])
    assert describe(root) == "node 0: 2 clients, split in round 5: each side's step harms the other"


def test_a_tree_is_shown_with_its_leaves_accuracy() -> None:
    result = small_result()
    ids = [row.client for row in result.clients]
    split = SplitRecord(0, [1, 2], [ids[:1], ids[1:]], {"separation": 0.9, "exponent": None})
    reader = read(replace(result, history=History([RoundRecord(5, [], Bytes(), 0.0, splits=[split])]))._repr_html_())
    assert reader.tags.count("li") == 3
    words = "".join(reader.text)
    assert "split in round 5: separation 0.9" in words
    assert f"client <script>alert(1)</script>, since round 5, accuracy {result.clients[0].accuracy:.3f}" in words


def test_members_are_named_up_to_a_number() -> None:
    many = [f"c{i}" for i in range(25)]
    lines = member_lines([3, 7], [many, ["d"]])
    assert lines[0].startswith("cluster 3: c0, c1, ")
    assert lines[0].endswith(", c19 and 5 more")
    assert lines[1] == "cluster 7: d"
    assert member_lines([0], [many]) == []
    assert member_lines(range(len(many)), [[name] for name in many]) == []
