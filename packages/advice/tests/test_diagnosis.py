"""One model or several: the three answers on tables of sites, and the reasons they give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.benefit import Benefit
from coterie.federation import Client, Federation, Split
from coterie.runs.config import make_config
from coterie_advice.diagnosis import Diagnosis, diagnose


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
    one = diagnose(config, federation=sites(1, scales))
    assert one.verdict != "incongruent"


def test_the_words_name_the_sides_and_the_numbers_that_decided() -> None:
    found = diagnose(make_config({"rounds": 10, "quiet": True}), federation=sites(3, PLAIN))
    lines = found.words()
    assert lines[-1].startswith("Incongruent. These parts are surely better served")
    sides = [set(line.split(": ")[1].split(", ")) for line in lines if line.startswith("  part ")]
    assert sorted(map(len, sides)) == [4, 4, 4]
    assert found.apart is not None
    assert f"the best split lowers the loss on held-out data by {found.apart}" in " ".join(lines)


def test_the_answers_by_hand() -> None:
    nothing, sure = Benefit(0.0, 0.1, 0.5, 12), Benefit(0.3, 0.05, 1e-6, 12)
    base = Diagnosis(None, 5, 12, 0.9, sure, (nothing,), None, ())
    assert base.verdict == "congruent"
    assert "not found again" in " ".join(base.words()) or "was found again" in " ".join(base.words())
    assert replace(base, apart=sure, sides=(("a",), ("b",))).verdict == "incongruent"
    assert replace(base, apart=Benefit(0.1, 0.05, 0.03, 12)).verdict == "undecided"
    assert replace(base, apart=Benefit(-0.1, 0.05, 0.97, 12)).verdict == "congruent"
    assert replace(base, clients=1).verdict == "undecided"
    assert replace(base, learned=nothing).verdict == "undecided"
