"""FLT's Tables 1 and 2 on CIFAR-10 at a scale for a processor: a narrow network, one local epoch, fewer rounds."""

from __future__ import annotations

from typing import Any

from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt import PCA_NOTE, rows_of, trained_encoder
from coterie_recipes.flt_numbers import TABLE_1_CIFAR, TABLE_2_CIFAR, TABLE_7_CIFAR, TABLE_8_CIFAR

SCENARIOS = {
    "S1": ("flt-s1-cifar", TABLE_1_CIFAR, TABLE_7_CIFAR),
    "S2": ("flt-s2-cifar", TABLE_2_CIFAR, TABLE_8_CIFAR),
}
"""Scenario, the paper's numbers on test and training data, by setting."""
TRAINED: dict[str, Any] = {"model": "cnn-cifar:width=8,hidden=64", "epochs": 1, "lr": 0.05}


@recipe(
    "flt-cifar", "FLT Tables 1 and 2 on CIFAR-10 with a narrow network: the order of the methods beside the paper's"
)
def flt_cifar(study: Study) -> Findings:
    """Scenarios 1 and 2; at full scale the recipes `flt-table1` and `flt-table2` have the paper's network."""
    rounds = 100 if study.full else 40
    encoder = trained_encoder(study, "cifar10")
    rows: list[Row] = []
    for name, (scenario, paper, trained) in SCENARIOS.items():
        methods = {
            "FedAvg": "fedavg",
            "local": "local",
            "PCA+kM+HC": "pca-kmeans-hc:least=1,clusters=5",
            "FedSEM": "fedsem:clusters=5",
            "FLT (Enc1)": f"flt:as=paper,encoder={encoder},clusters=5",
        }
        options = {"scenario": scenario, "rounds": rounds, "evaluate_every": rounds, **TRAINED}
        rows += rows_of(study, name, methods, paper, trained, **options)
    notes = [
        PCA_NOTE,
        f"All of CIFAR-10, 100 clients, 20 per round as in the paper; {TRAINED['model']}, one local epoch instead of "
        f"five, step size {TRAINED['lr']} and {rounds} rounds instead of 100. The encoder is trained on CIFAR-10.",
    ]
    return Findings(rows, notes)
