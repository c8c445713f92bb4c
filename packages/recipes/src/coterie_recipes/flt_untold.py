"""FLT's scenario 2 with nothing given, beside the same with γ and the number of clusters given."""

from __future__ import annotations

from functools import partial
from typing import Any

from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt import RHO, scaled
from coterie_recipes.flt_decisions import small_encoder
from coterie_recipes.flt_numbers import TABLE_2_MNIST
from coterie_recipes.runs import kept_run, study_config

SCENARIOS = {"flt-s2": "mnist", "flt-s2-fashion": "fashion-mnist"}
METHODS = {"nothing given": "", "γ and C given": ",gamma=1.0,clusters=5"}
ROUNDS = 100


@recipe("flt-s2-untold", "FLT's scenario 2 (neighbours share a class), nothing given, beside γ and C given")
def flt_s2_untold(study: Study) -> Findings:
    """The paper's setting: 100 clients, a fifth of them per round, 100 rounds, an encoder of the same data."""
    rows = []
    for scenario, source in SCENARIOS.items():
        for words, options in METHODS.items():
            cells = [
                study.cell(f"{scenario}, {words}, seed {s}", partial(_one, study, scenario, source, options, s))
                for s in study.seeds
            ]
            paper = TABLE_2_MNIST["FLT (Enc1)"] if source == "mnist" else (None, None)
            rows.append(Row(f"{scenario}, {words}", "test accuracy %", [c["accuracy"] for c in cells], paper[0]))
            rows.append(Row(f"{scenario}, {words}", "variance over clients", [c["variance"] for c in cells], paper[1]))
            rows.append(Row(f"{scenario}, {words}", "ARI with the hidden groups", [c["ari"] for c in cells]))
            rows.append(Row(f"{scenario}, {words}", "seconds", [c["seconds"] for c in cells]))
    return Findings(rows, ["The encoder is trained on 20,000 images of the source for two epochs."])


def _one(study: Study, scenario: str, source: str, options: str, seed: int) -> dict[str, Any]:
    method = f"flt:encoder={small_encoder(study, source)}{options}"
    config = study_config(
        study, seed, scenario=scenario, method=method, rounds=ROUNDS, participation=RHO, evaluate_every=ROUNDS
    )
    summary = kept_run(study, f"{scenario}{options.replace(',', '-')}-seed{seed}", config).summary
    return {
        "accuracy": scaled(summary.accuracy.mean, 100),
        "variance": scaled(summary.accuracy.variance, 1e4),
        "ari": summary.ari,
        "seconds": summary.seconds,
    }
