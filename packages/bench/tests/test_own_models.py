"""Models of users' own in the bench: contenders compute the same rounds, and the page's figures are the stored ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie_bench.contenders import OURS
from coterie_bench.own_classes import OWN_MODELS
from coterie_bench.own_models import EvaluatedRounds, TightRounds, measure, seeded, summary


@pytest.mark.parametrize("name", list(OWN_MODELS))
def test_the_tight_loop_trains_what_coterie_trains(name: str) -> None:
    own = replace(OWN_MODELS[name], clients=2, samples=20, participation=1.0)
    federation = own.federation(0)
    ours = EvaluatedRounds(federation, own.make, own)
    tight = TightRounds(federation, seeded(own.make, ours.server.model_seed()), ours.server)
    for contender in (ours, tight):
        contender.round(1)
    vector = torch.cat([p.detach().reshape(-1) for p in tight.parameters])
    served = ours.method.assignment(ours.state, ours.server).models[0]
    ours.close()
    torch.testing.assert_close(served, vector, rtol=1e-3, atol=1e-5)


def test_a_row_has_every_contender() -> None:
    own = replace(OWN_MODELS["mlp"], clients=2, samples=20, participation=1.0, in_jax=False)
    found = summary(measure(own, repeat=1))
    assert set(found["cpu_seconds"]) == {OURS, *found["times_ours"]}
    assert len(found["times_ours"]) == 2


def test_the_manuals_table_is_the_stored_one() -> None:
    root = Path(__file__).parents[3]
    rows = json.loads((root / "docs/results/own-models.json").read_text())["rows"]
    page = (root / "docs/results.md").read_text().split("### Models written as classes")[1]
    for name, row in rows.items():
        cells = [f"{row['cpu_seconds'][OURS]['median']:.3f}"]
        cells += [f"{spread['median']:.2f} (" for spread in row["times_ours"].values()]
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(cell in line for cell in cells)
