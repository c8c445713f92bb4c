"""`coterie heterogeneity`: ranking, histogram and files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.heterogeneity_commands import histogram, ranking
from coterie.methods import FedCUAU
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

QUARTERS = ["heterogeneity", "--scenario", "digits-dirichlet-quarters", "--clients", "8", "--workers", "1"]


def call(*words: str) -> int:
    """The exit code of a command."""
    try:
        main([*words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_ranking_and_histogram_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*QUARTERS) == 0
    text = capsys.readouterr().out
    assert all(f"client-{i}" in text for i in range(8))
    assert "clients by CUAU" in text
    assert "█" in text
    assert "hidden group 3: mean CUAU" in text


def test_json_and_csv_hold_what_fedcuau_would_find(tmp_path: Path) -> None:
    assert call(*QUARTERS, "--out", str(tmp_path / "h.json"), "--quiet") == 0
    assert call(*QUARTERS, "--out", str(tmp_path / "h.csv"), "--quiet") == 0
    rows = json.loads((tmp_path / "h.json").read_text())
    assert [row["rank"] for row in rows] == list(range(1, 9))
    values = [row["cuau"] for row in rows]
    assert values == sorted(values)
    with open(tmp_path / "h.csv", newline="") as file:
        assert [(row["client"], float(row["cuau"])) for row in csv.DictReader(file)] == [
            (row["client"], row["cuau"]) for row in rows
        ]
    config = make_config({"scenario": "digits-dirichlet-quarters", "clients": 8, "rounds": 1, "workers": 1})
    method = FedCUAU(clusters=2)
    run, _ = assemble(config, method=method)
    assert method.start(run.server).cuau == {row["client"]: row["cuau"] for row in rows}
    run.engine.close()


def test_other_layers_give_other_values(tmp_path: Path) -> None:
    for name, layers in (("last", "last"), ("both", "hidden,head")):
        assert call(*QUARTERS, "--layers", layers, "--out", str(tmp_path / f"{name}.json"), "--quiet") == 0
    last, both = (
        {row["client"]: row["cuau"] for row in json.loads((tmp_path / f"{name}.json").read_text())}
        for name in ("last", "both")
    )
    assert all(both[client] != last[client] for client in last)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "h.xlsx"], "--out h.xlsx: expected a file that ends in .json or .csv"),
        (["--layers", "haed"], "no layer 'haed'"),
        (["--lr", "-1"], "lr="),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*QUARTERS, *words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_ties_rank_in_order_and_histogram_counts_everybody() -> None:
    rows = ranking({"b": 1.0, "a": 1.0, "c": 0.5}, {"a": 1, "b": 2, "c": 3})
    assert [row["client"] for row in rows] == ["c", "b", "a"]
    assert sum(int(line.rsplit(" ", 1)[1]) for line in histogram([0.1, 0.1, 0.2, 0.9])) == 4
    assert len(histogram([0.5, 0.5])) == 1
