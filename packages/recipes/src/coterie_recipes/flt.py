"""What FLT's recipes have in common: a study's encoders, one run as a cell, rows beside the paper's numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from coterie import run
from coterie.data import available, load_source
from coterie.encoders import save_encoder, train_encoder
from coterie.runs import Run, score_clients
from coterie_recipes.base import Row, Study
from coterie_recipes.flt_numbers import Paper
from coterie_recipes.runs import AtTheEnd

RHO = 0.2
"""Participation in all of the paper's experiments but those of table 5."""
FINETUNE = 5
"""Epochs for which clients fine-tune an encoder of other data."""

PCA_NOTE = (
    "The paper does not say which data PCA's axes are computed on: 'PCA+kM+HC' takes each client's own, 'with shared "
    "axes' public data (scikit-learn's digits), which the paper does not report."
)
DROPOUT_NOTE = "The MLP has no dropout; the paper's has 0.5 after the hidden layer."


def trained_encoder(study: Study, source: str) -> str:
    """The file of an encoder trained on `source` for this study, trained once and kept in its folder."""
    path = study.out / "encoders" / f"{source}.safetensors"
    if not path.exists():
        study.log(f"encoder on {source}: training")
        path.parent.mkdir(parents=True, exist_ok=True)
        epochs = 10 if study.full else 2
        save_encoder(train_encoder(load_source(source, study.data_dir).images(), epochs=epochs), path, source)
    return str(path)


def has(study: Study, source: str) -> bool:
    """Whether that data set is in the data folder."""
    return next(found.present for found in available(study.data_dir) if found.name == source)


def measured(study: Study, name: str, method: str, seed: int, **options: Any) -> dict[str, Any]:
    """One run of a table as a cell: accuracy in percent, its variance over clients in percent squared, clusters, bytes.

    `curve` is the mean accuracy in percent after each evaluated round.
    """

    def compute() -> dict[str, Any]:
        settings = {"participation": RHO, "data_dir": study.data_dir, "workers": study.workers, "seed": seed} | options
        trained = AtTheEnd(_training_accuracies)
        result = run(method, progress=False, callbacks=[trained], **settings)
        accuracy = result.summary.accuracy
        return {
            "accuracy": scaled(accuracy.mean, 100),
            "variance": scaled(accuracy.variance, 1e4),
            "train": 100 * float(np.mean(trained.measured)),
            "train variance": 1e4 * float(np.var(trained.measured)),
            "worst10": scaled(accuracy.worst10, 100),
            "best10": scaled(accuracy.best10, 100),
            "ari": result.summary.ari,
            "clusters": len(result.clusters),
            "bytes": asdict(result.summary.bytes),
            "seconds": result.summary.seconds,
            "curve": [
                [record.round, scaled(record.accuracy.mean, 100)]
                for record in result.history
                if "accuracy" in record.metrics
            ],
        }

    return study.cell(f"{name}-seed={seed}", compute)


def _training_accuracies(run: Run, state: Any) -> list[float]:
    """Each client's accuracy on its own training data."""
    given = run.method.assignment(state, run.server)
    return [score.metrics["accuracy"] for score in score_clients(given, run.engine, "train")]


def scaled(value: float | None, factor: float) -> float:
    """The value times a factor; NaN where it is unknown."""
    return float("nan") if value is None else factor * value


def rows_of(
    study: Study,
    setting: str,
    methods: dict[str, str],
    paper: Paper,
    train: Paper | None = None,
    grouped: bool = True,
    **options: Any,
) -> list[Row]:
    """Accuracy and variance of each method beside the paper's, on test and `train`ing data; the clusters it found."""
    rows = []
    for label, method in methods.items():
        cells = [measured(study, f"{setting}-{label}", method, seed, **options) for seed in study.seeds]
        known, known_train = (numbers.get(label, (None, None)) for numbers in (paper, train or {}))
        where = f"{setting}, {label}"
        rows.append(Row(where, "test accuracy %", [c["accuracy"] for c in cells], known[0]))
        rows.append(Row(where, "variance over clients", [c["variance"] for c in cells], known[1]))
        rows.append(Row(where, "train accuracy %", [c["train"] for c in cells], known_train[0]))
        rows.append(Row(where, "train variance over clients", [c["train variance"] for c in cells], known_train[1]))
        rows.append(Row(where, "worst 10 % of the clients", [c["worst10"] for c in cells]))
        if grouped and label not in ("FedAvg", "local"):
            rows.append(Row(where, "clusters", [c["clusters"] for c in cells]))
            rows.append(Row(where, "ARI with the hidden groups", [c["ari"] for c in cells]))
    return rows
