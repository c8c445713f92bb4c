"""One model or several: the three answers on tables of sites, and the reasons they give."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.runs.config import make_config
from coterie.runs.diagnosis import Diagnosis, Difference, diagnose


def sites(kinds: int, scales: np.ndarray, seed: int = 3) -> Federation:
    """Twelve sites of 40 to 1,000 rows, eight features, and as many label rules as kinds."""
    generator = np.random.default_rng(seed)
    sizes = generator.permutation(np.geomspace(40, 1000, 12).astype(int))
    rules = 3 * np.linalg.qr(generator.standard_normal((8, 8)))[0]
    clients = []
    for i, n in enumerate(sizes.tolist()):
        x = generator.standard_normal((n + 200, 8))
        y = torch.from_numpy(x @ rules[i % kinds] + 0.5 * generator.standard_normal(n + 200) > 0).long()
        inputs = torch.from_numpy(x * scales).float()
        held = max(n // 5, 8)
        parts = [Split(inputs[a:b], y[a:b]) for a, b in ((0, n - held), (n - held, n), (n, n + 200))]
        clients.append(Client(f"site-{i:02d}", *parts, i % kinds))
    return Federation(clients, 2)


PLAIN, RAW = np.ones(8), np.array([1, 10, 100, 0.1, 1, 1, 5, 1])


@pytest.mark.parametrize(
    ("scales", "lr", "model"),
    [(PLAIN, 0.1, "mlp"), (PLAIN, 0.01, "logistic"), (RAW, 0.01, "mlp"), (RAW, 0.01, "logistic")],
)
def test_three_label_rules_are_never_one_model_and_one_rule_is_never_several(
    scales: np.ndarray, lr: float, model: str
) -> None:
    config = make_config({"rounds": 20, "lr": lr, "model": model, "quiet": True})
    several = diagnose(config, federation=sites(3, scales))
    assert several.verdict in (("incongruent",) if scales is PLAIN else ("incongruent", "undecided"))
    assert "one model is right" not in " ".join(several.words())
    one = diagnose(config, federation=sites(1, scales))
    assert one.verdict != "incongruent"


def test_the_words_name_the_sides_and_the_reason() -> None:
    found = diagnose(make_config({"rounds": 10, "quiet": True}), federation=sites(3, PLAIN))
    lines = found.words()
    assert lines[-1].startswith("Incongruent. No single model fits them")
    sides = [set(line.split(": ")[1].split(", ")) for line in lines if line.startswith("  side ")]
    assert sorted(map(len, sides)) == [4, 8]
    assert any("harm the other? p = " in line for line in lines)


def test_a_model_that_learned_nothing_decides_nothing() -> None:
    found = diagnose(make_config({"rounds": 5, "lr": 1e-6, "quiet": True}), federation=sites(1, PLAIN))
    assert found.verdict == "undecided"
    assert "most common answer" in found.words()[-1]


def test_the_answers_by_hand() -> None:
    sure, unsure = Difference(0.3, 0.01), Difference(0.0, 0.01)
    found = diagnose(make_config({"rounds": 5, "quiet": True}), federation=sites(1, PLAIN))
    assert found.seen is not None
    alike = found.seen._replace(p_value=0.5, sides=None, conflict_p_value=1.0, conflict=False)
    base = Diagnosis(5, 12, 0.9, sure, unsure, alike)
    assert base.verdict == "congruent"
    assert replace(base, clients=3).verdict == "undecided"
    assert replace(base, alone=sure).verdict == "undecided"
    assert replace(base, learned=unsure).verdict == "undecided"
    erratic = replace(base, alone=Difference(-1.0, 0.5))
    assert erratic.verdict == "undecided"
    assert "scale the features" in erratic.words()[-1]
    assert replace(base, seen=alike._replace(p_value=0.01)).verdict == "undecided"
    skew = alike._replace(p_value=0.01, sides=(("a",), ("b",)), conflict_p_value=0.7)
    assert replace(base, seen=skew).verdict == "congruent"
    assert replace(base, seen=skew._replace(conflict_p_value=0.01, shared=1.0)).verdict == "undecided"
    assert replace(base, seen=skew._replace(conflict=True)).verdict == "incongruent"


def test_differences_and_too_few_rounds() -> None:
    assert Difference.of([1.0, 3.0, math.nan]).mean == 2
    assert Difference.of([1.0, 3.0]).error == pytest.approx(1.0)
    assert not Difference.of([1.0]).sure
    with pytest.raises(ConfigError, match="at least 5"):
        diagnose(make_config({"rounds": 2}))
