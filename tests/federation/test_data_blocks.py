"""Samples of one block (a recording, a day, a patient) stay together, wherever data is divided."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie import Federation
from coterie.errors import ConfigError, DataError
from coterie.federation import on_validation
from coterie.federation.blocks import draw_blocks
from coterie.federation.validation import hold_out
from coterie.flower.deploy import write_client

PARTS = ("train", "validation", "test")


def recordings(federation: Federation) -> list[dict[str, set[float]]]:
    """The blocks in each part of each client: their numbers stand in the first input."""
    return [{part: set(client.part(part).x[:, 0].tolist()) for part in PARTS} for client in federation]


def federation_of(sizes: list[int], **options) -> Federation:
    """Two clients; block i has sizes[i] samples, whose first input is i."""
    block = np.repeat(np.arange(len(sizes)), sizes)
    x = np.stack([block, np.random.default_rng(0).normal(size=len(block))], axis=1).astype(np.float32)
    names = [f"recording {i}" for i in block]
    items = {"ann": (x, np.arange(len(block)) % 2), "bob": (x, np.arange(len(block)) % 2)}
    return Federation.from_tensors(items, blocks={"ann": names, "bob": block}, **options)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=25),
    fraction=st.floats(0.05, 0.9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_whole_blocks_are_drawn_and_about_as_many_samples_as_asked_for(
    sizes: list[int], fraction: float, seed: int
) -> None:
    block = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    block = block[torch.randperm(len(block), generator=torch.Generator().manual_seed(seed))]
    count = max(1, round(fraction * len(block)))
    held = draw_blocks(block, count, torch.Generator().manual_seed(seed))
    inside, outside = set(block[held].tolist()), set(block[~held].tolist())
    assert not inside & outside
    assert outside
    assert bool(inside) == (len(sizes) > 1)
    if len(inside) > 1 and len(outside) > 1:  # else a single block decides, however large
        assert abs(int(held.sum()) - count) <= max(sizes) / 2


def test_tensors_are_divided_by_blocks() -> None:
    federation = federation_of([10] * 20, splits=(0.6, 0.2, 0.2), seed=3)
    for parts in recordings(federation):
        assert {part: len(found) for part, found in parts.items()} == {"train": 12, "validation": 4, "test": 4}
        assert len(set().union(*parts.values())) == 20
    first, second = recordings(federation)
    assert first != second  # drawn per client


def test_a_fraction_holds_out_whole_blocks_beside_those_held_out_already() -> None:
    federation = federation_of([10] * 20, splits=(0.6, 0.2, 0.2), seed=3)
    held = hold_out(federation, 0.25, 1)
    for before, after in zip(recordings(federation), recordings(held), strict=True):
        assert (len(after["train"]), len(after["validation"])) == (9, 7)
        assert not after["train"] & after["validation"]
        assert before["validation"] < after["validation"]
        assert before["test"] == after["test"]
    again = hold_out(hold_out(federation_of([10] * 20, splits=(1, 0, 0)), 0.2, 1), 0.25, 2)
    assert [len(parts["train"]) for parts in recordings(again)] == [12, 12]  # what is left still has its blocks


def test_options_are_chosen_on_whole_blocks() -> None:
    federation = federation_of([7, 7, 7, 7, 7, 3, 3, 3, 3, 3], splits=(1, 0, 0))
    for client, parts in zip(on_validation(federation, 1), recordings(on_validation(federation, 1)), strict=True):
        assert not parts["train"] & parts["validation"]
        assert parts["validation"] == parts["test"]
        assert 7 <= len(client.validation) <= 13  # of 50


def test_of_one_block_nothing_is_held_out_and_of_two_one_is() -> None:
    assert [len(client.validation) for client in hold_out(federation_of([9], splits=(1, 0, 0)), 0.2, 1)] == [0, 0]
    assert [len(client.validation) for client in hold_out(federation_of([50, 40], splits=(1, 0, 0)), 0.1, 1)] == [
        40,
        40,
    ]


def test_labels_that_are_named_keep_their_blocks() -> None:
    x = torch.randn(30, 2)
    federation = Federation.from_tensors({"ann": (x, torch.arange(30) % 2 + 1)}, blocks=[np.arange(30) // 3])
    assert federation.label_names == ("1", "2")
    assert federation["ann"].train.block is not None


def test_without_blocks_everything_is_as_it_was() -> None:
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 2
    federation = Federation.from_tensors({"ann": (x, y)}, seed=5)
    held = hold_out(federation, 0.25, 7)["ann"]
    assert held.train.block is None
    # As it was drawn before there were blocks.
    assert federation["ann"].test.x[:, 0].tolist() == [10.0, 12.0]
    assert held.validation.x[:, 0].tolist() == [28.0, 0.0, 20.0, 22.0, 38.0, 24.0]
    assert on_validation(Federation.from_tensors({"ann": (x, y)}, splits=(1, 0, 0)), 3)["ann"].test.x[
        :, 0
    ].tolist() == [4.0, 32.0, 0.0, 14.0]


@pytest.mark.parametrize("memory", [None, 64])
def test_a_node_holds_out_what_the_simulation_does(tmp_path: Path, memory: int | None) -> None:
    federation = federation_of([10] * 20, splits=(0.6, 0.2, 0.2), seed=3)
    for client in federation:
        write_client(client, tmp_path / f"{client.id}.npz")
    stored = Federation.from_folder(tmp_path, memory_bytes=memory)
    for own, theirs in zip(hold_out(federation, 0.25, 1), hold_out(stored, 0.25, 1), strict=True):
        assert torch.equal(own.train.x, theirs.train.x)
        assert torch.equal(own.validation.x, theirs.validation.x)


def write_days(folder: Path) -> str:
    """Two sites, twenty days of ten rows."""
    for site in ("north", "south"):
        with open(folder / f"{site}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["day", "number", "value", "ill"])
            for row in range(200):
                table.writerow([f"2026-01-{row // 10 + 1:02d}", row // 10, row % 7, "yes" if row % 3 else "no"])
    return f"{folder}/*.csv"


def test_tables_are_divided_by_whole_values_of_a_column(tmp_path: Path) -> None:
    tables = write_days(tmp_path)
    federation = Federation.from_tables(tables, "ill", blocks="day", scale=False)
    for parts in recordings(federation):
        assert {part: len(found) for part, found in parts.items()} == {"train": 16, "validation": 2, "test": 2}
        assert len(set().union(*parts.values())) == 20
    assert federation.table is not None
    assert federation.table.features == ["number", "value"]  # the block is no input
    assert federation.table.transform(tmp_path / "north.csv")[0].shape == (200, 2)
    plain = Federation.from_tables(tables, "ill", drop=["day"], scale=False)
    assert any(parts["train"] & parts["validation"] for parts in recordings(plain))
    with pytest.raises(DataError, match="blocks: no table has a column 'dya': did you mean 'day'"):
        Federation.from_tables(tables, "ill", blocks="dya")
    with pytest.raises(DataError, match="blocks: 'ill' is the label"):
        Federation.from_tables(tables, "ill", blocks="ill")
    path = tmp_path / "north.csv"
    path.write_text(path.read_text().replace("2026-01-01,0,3", ",0,3"))
    with pytest.raises(DataError, match=r"north\.csv: row 4 has no value in column 'day' for its block"):
        Federation.from_tables(tables, "ill", blocks="day")


def test_a_run_on_tables_uses_blocks_and_can_be_explained(tmp_path: Path) -> None:
    tables, out = write_days(tmp_path), tmp_path / "run"
    options = {"data": tables, "label": "ill", "model": "logistic", "rounds": 2, "workers": 1}
    result = coterie.run("ifca:k=2", validation="blocks:day", out=out, **options)
    assert result.validation["accuracy"].mean is not None
    assert coterie.load(out).explain() is not None
    with pytest.raises(DataError, match="no table has a column 'dya'"):
        coterie.run("fedavg", validation="blocks:dya", **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"validation": "blocks:day"}, "names a column of tables: give their data and label too"),
        ({"validation": "blocks:"}, "expected number above 0 and below 1 or blocks:COLUMN"),
        ({"validation": "days"}, "expected number above 0 and below 1 or blocks:COLUMN"),
        ({"validation": 1.5}, "expected number above 0 and below 1 or blocks:COLUMN"),
    ],
)
def test_what_is_no_validation_says_so(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        coterie.run("fedavg", scenario="digits-iid", rounds=1, **options)


def test_blocks_that_do_not_fit_are_named() -> None:
    x, y = torch.randn(10, 2), torch.arange(10) % 2
    with pytest.raises(DataError, match=r"client 'ann': blocks of shape \(9,\) for 10 samples"):
        Federation.from_tensors({"ann": (x, y)}, blocks={"ann": list(range(9))})
    with pytest.raises(DataError, match="client 'ann' has no entry in blocks"):
        Federation.from_tensors({"ann": (x, y)}, blocks={"bob": list(range(10))})
