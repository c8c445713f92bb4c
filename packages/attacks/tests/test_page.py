"""The page of the frontier: the worst attack of each setting, the cells above their bar, and a picture."""

from __future__ import annotations

import dataclasses
import json

from coterie_attacks.frontier import AttackResult
from coterie_attacks.page import BARS, grid, main, missed, prices, under_attack, worst_attacks


def row(level, attack, hostile, lost):
    scenario = f"digits:none+dirichlet({level})"
    rule = f"expect_hostile={hostile}"
    return AttackResult(scenario, "fedavg", rule, attack, hostile, 0.9 - lost, lost, lost, lost, 1.0, 0.01, 0.2)


ROWS = [row(1, "none", 0, 0.0), row(1, "ipm", 1, 0.02), row(1, "alie", 1, 0.06), row(0.3, "ipm", 3, 0.09)]


def test_a_setting_is_as_good_as_its_worst_attack():
    worst = worst_attacks(ROWS)
    assert {key[1:]: found.attack for key, found in worst.items()} == {
        ("dirichlet(1)", "fedavg", 1): "alie",
        ("dirichlet(0.3)", "fedavg", 3): "ipm",
    }
    names, levels, values = grid(worst, lambda found: found.lost)
    assert names == ["digits:none, fedavg, 1", "digits:none, fedavg, 3"]
    assert levels == ["dirichlet(1)", "dirichlet(0.3)"]
    assert values[0, 0] == 6.0
    assert values[1, 1] == 9.0


def test_what_is_above_its_bar_is_missed():
    assert missed(ROWS) == {("digits:none, fedavg, 1", "dirichlet(1)"): "alie 6"}
    assert missed([row(1, "ipm", hostile, bar) for hostile, bar in BARS.items()]) == {}


def test_rules_are_set_side_by_side_without_attack_and_under_it():
    assert prices([row(1, "none", 0, 0.0)]) == {("expect_hostile=0", "dirichlet(1)"): "1.0 / 20.0"}
    [left] = under_attack([row(1, "ipm", 1, 0.02), row(1, "alie", 1, 0.06), row(1, "absent", 1, 0.5)]).values()
    assert left == "90 / 86 / 84 alie"


def test_the_page_draws_the_stored_rows_and_prints_their_tables(tmp_path, capsys):
    stored = tmp_path / "rows.json"
    stored.write_text(json.dumps({"commit": "abc", "rows": [dataclasses.asdict(found) for found in ROWS]}))
    main(str(stored), str(tmp_path / "page.png"))
    printed = capsys.readouterr().out
    assert "1 hostile: 1 of 2 cells, 0 of 1 settings" in printed
    assert "3 hostile: 1 of 1 cells, 1 of 1 settings" in printed
    assert "| digits:none, fedavg, 1 | alie 6 |" in printed
    assert (tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"
