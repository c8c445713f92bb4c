"""The recipe of secure sums on a network: its commands, and the table of what the runs told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie_recipes import secure_network
from coterie_recipes.base import Study


def test_the_commands_differ_in_method_and_sums_only() -> None:
    commands = {way: secure_network.command_of(way, 16, 3, Path("app")) for way in secure_network.WAYS}
    plain = commands["ifca, plain"]
    assert commands["ifca, secure sums"] == [*plain, *secure_network.SECURE]
    hidden = commands["ifca, secure sums, choices hidden"]
    assert [a for a in hidden if a not in commands["ifca, secure sums"]] == ["ifca:k=2,init=random,hide_choice=true"]
    assert plain[:4] == ["coterie", "deploy", "--local", "6"]


def test_a_command_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(secure_network.WAYS, "wrong", ("fedagv", ()))
    with pytest.raises(Exception, match="did you mean 'fedavg'"):
        secure_network.measure("wrong", 16, 0)


def test_the_table_has_medians_of_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(self: Study, name: str, job: Callable[[], Any]) -> dict[str, Any]:
        factor = 3 if "secure" in name else 1
        return {
            "seconds": [2.0 * factor, 4.0 * factor], "bytes_up": [1000 * factor] * 3, "bytes_down": [2000] * 3,
            "faults": 0, "accuracy": 0.5, "sizes": [6],
        }  # fmt: skip

    monkeypatch.setattr(Study, "cell", cell)
    found = secure_network.secure_network(Study(tmp_path))
    rows = {(row.setting, row.measure): row.ours for row in found.rows}
    assert rows["fedavg, plain, 1,210 numbers", "seconds of a round"] == [3.0]
    assert rows["fedavg, secure sums, 1,210 numbers", "seconds of a round"] == [9.0]
    assert rows["ifca, secure sums, choices hidden, 1,210 numbers", "kB up in a round"] == [3.0]
    assert len(found.rows) == 5 * len(secure_network.WAYS)


def test_the_protocol_in_one_process_costs_more_and_has_no_faults(tmp_path: Path) -> None:
    plain, secure = (secure_network.measure_here(given, 4, 2, 0) for given in (False, True))
    assert len(plain["cpu_seconds"]) == secure_network.ROUNDS - 1
    assert not plain["faults"]
    assert not secure["faults"]
    assert min(secure["bytes_up"]) > 2 * max(plain["bytes_up"])


def test_the_table_has_a_row_for_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"cpu_seconds": [1.0, 3.0], "bytes_up": [1000] * 3, "bytes_down": [2000] * 3, "faults": 0}
    monkeypatch.setattr(Study, "cell", lambda *_: cell)
    rows = secure_network.secure_sums(Study(tmp_path)).rows
    assert len(rows) == 4 * 2 * 4
    assert rows[0].ours == [2.0]
