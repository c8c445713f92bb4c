"""FLT's table 6 and figures: bytes, the relatedness matrix with its dendrogram, and convergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import dendrogram, leaves_list, linkage

from coterie import run
from coterie.clustering import min_pair_distances, related
from coterie.encoders import load_encoder
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt import DROPOUT_NOTE, FINETUNE, PCA_NOTE, RHO, has, measured, trained_encoder

NUMBER_BYTES = 4
"""Bytes of a number in a message."""
CENTROIDS = 5
"""Centroids that a client sends."""


@recipe("flt-table6", "FLT, table 6: communication, the bytes that the engine counts beside the paper's formula")
def table6(study: Study) -> Findings:
    """Bytes of FLT, FedSEM and IFCA on scenario 1 (quick: on digits), counted and by the formula."""
    scenario, clients, clusters = ("flt-s1", 100, 5) if study.full else ("flt-s1-digits", 20, 5)
    rounds = 100 if study.full else 10
    encoder = load_encoder("default")
    once = NUMBER_BYTES * clients * (len(encoder.encoding_weights()) + CENTROIDS * encoder.code)
    rows = []
    for label, method in {
        "FLT": f"flt:as=paper,k={CENTROIDS}",
        "FedSEM": f"fedsem:clusters={clusters if study.full else 3}",
        "IFCA": f"ifca:k={clusters},init=random",
    }.items():

        def compute(method: str = method) -> dict[str, Any]:
            result = run(
                method,
                progress=False,
                scenario=scenario,
                clients=clients,
                rounds=rounds,
                evaluate_every=rounds,
                participation=RHO,
                data_dir=study.data_dir,
                workers=study.workers,
            )
            return {"bytes": result.summary.bytes.total, "size": result.layout.size}

        cell = study.cell(label, compute)
        per_round = NUMBER_BYTES * round(RHO * clients) * cell["size"]
        formula = {
            "FLT": once + 2 * per_round * rounds,
            "FedSEM": 2 * per_round * rounds,
            "IFCA": per_round * rounds * (clusters + 1),
        }[label]
        rows.append(Row(label, "MB counted", [cell["bytes"] / 1e6], f"{formula / 1e6:.4g} (formula)"))
    notes = [
        "Formulas: FLT M·W_enc + k·M·e + 2ρMWT, FedSEM 2ρMWT, IFCA ρMWT(C+1), four bytes per number.",
        "The count includes what a reply holds besides its vector: a training loss, and IFCA's losses of C models.",
    ]
    return Findings(rows, notes)


GAMMA = 1.0
"""The threshold under which the figures call clients related: the paper's, and UMAP's own scale."""


def _relatedness(study: Study, name: str, method: str, **options: Any) -> dict[str, Any]:
    """The result of FLT's first stage: which pairs are related at GAMMA `(M, M)`, and the clusters."""

    def compute() -> dict[str, Any]:
        settings = {"rounds": 1, "participation": RHO, "data_dir": study.data_dir, "workers": study.workers}
        result = run(method, progress=False, **(settings | options))
        found = result.state.relatives
        near = related(min_pair_distances(found.positions), GAMMA)
        cluster_of = {client: i for i, members in enumerate(result.clusters) for client in members}
        return {
            "related": near.astype(int).tolist(),
            "labels": [cluster_of[client] for client in found.ids],
            "ari": result.summary.ari,
        }

    return study.cell(name, compute)


@recipe(
    "flt-relatedness", "FLT, figures 2, 3, 11: the relatedness matrix before and after ordering, and its dendrogram"
)
def relatedness(study: Study) -> Findings:
    """Scenarios 1 and 3, and scenario 4 with 240 clients as in figure 11."""
    encoder = trained_encoder(study, "fashion-mnist")
    flt = f"flt:as=paper,encoder={encoder},finetune={FINETUNE if study.full else 0}"
    rows, figures = [], {}
    settings: dict[str, dict[str, Any]] = {
        "S1": {"scenario": "flt-s1"},
        "S3": {"scenario": "flt-s3"},
        "S4": {"scenario": "flt-s4", "clients": 240},
    }
    for name, options in settings.items():
        cell = _relatedness(study, name, flt, **options)
        near = np.array(cell["related"])
        rows.append(Row(name, "clusters found", [max(cell["labels"]) + 1]))
        rows.append(Row(name, f"related pairs % at γ = {GAMMA:g}", [100 * float(near.mean())]))
        if cell["ari"] is not None:
            rows.append(Row(name, "ARI with the hidden groups", [cell["ari"]]))
        figures[f"relatedness-{name}"] = _matrices(near)
    notes = ["Scenario 3 on MNIST by its writers, scenario 4 on MNIST and Fashion-MNIST as 20 classes."]
    if not study.full:
        notes.append("Quick: the encoder trained on Fashion-MNIST is not fine-tuned.")
    return Findings(rows, notes, figures)


def _matrices(near: npt.NDArray[np.int64]) -> Callable[[Any], None]:
    """Draw a relatedness matrix `(M, M)` by client, the same ordered by the dendrogram, and the dendrogram."""
    profiles = near / np.linalg.norm(near, axis=1, keepdims=True)
    merges = linkage(profiles, "ward")
    order = leaves_list(merges)

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 3)
        axes[0].imshow(near, cmap="Greys", interpolation="nearest")
        axes[0].set_title("by client")
        axes[1].imshow(near[np.ix_(order, order)], cmap="Greys", interpolation="nearest")
        axes[1].set_title("ordered")
        dendrogram(merges, ax=axes[2], no_labels=True, color_threshold=0, above_threshold_color="black")
        axes[2].set_title("dendrogram")

    return draw


@recipe("flt-convergence", "FLT, figures 4-9: accuracy over the rounds in scenarios 1 to 4")
def convergence(study: Study) -> Findings:
    """Curves of FLT, FedSEM, PCA+kM+HC and FedAvg, MLP."""
    flt = f"flt:as=paper,encoder={trained_encoder(study, 'fashion-mnist')}"
    settings: dict[str, tuple[dict[str, Any], str, int]] = {
        "S1": ({"scenario": "flt-s1", "rounds": 100}, ",clusters=5", 5),
        "S2": ({"scenario": "flt-s2", "rounds": 100}, ",clusters=5", 5),
    }
    if study.full:
        flt += f",finetune={FINETUNE}"
    writers = "flt-s3-femnist" if has(study, "femnist") else "flt-s3"
    length = {"rounds": 1000, "evaluate_every": 10} if study.full else {"rounds": 50, "evaluate_every": 5}
    settings["S3"] = ({"scenario": writers, **length}, ",case=1", 5)
    last = "flt-s4-emnist" if has(study, "emnist") else "flt-s4"
    clients, rounds = (2400, 100) if study.full else (240, 20)
    settings["S4"] = ({"scenario": last, "clients": clients, "rounds": rounds}, "", 10)
    rows, figures = [], {}
    for name, (options, special, clusters) in settings.items():
        methods = {
            "FedAvg": "fedavg",
            "PCA+kM+HC": f"pca-kmeans-hc:least=1,clusters={clusters}",
            "FedSEM": f"fedsem:clusters={clusters}",
            "FLT": flt + special,
        }
        curves = {}
        for label, method in methods.items():
            cells = [measured(study, f"{name}-{label}", method, seed, **options) for seed in study.seeds]
            rows.append(Row(f"{name}, {label}", "accuracy % at the end", [c["accuracy"] for c in cells]))
            best = [max(value for _, value in c["curve"]) for c in cells]
            reached = [
                next(t for t, value in c["curve"] if value >= 0.98 * top) for c, top in zip(cells, best, strict=True)
            ]
            rows.append(Row(f"{name}, {label}", "rounds to 98 % of its best", reached))
            curves[label] = cells[0]["curve"]
        figures[f"convergence-{name}"] = _lines(name, curves)
    notes = [PCA_NOTE, DROPOUT_NOTE]
    if not study.full:
        notes.append("Quick: no fine-tuning, scenario 3 with 50 rounds, scenario 4 with 240 clients and 20 rounds.")
    return Findings(rows, notes, figures)


def _lines(title: str, curves: dict[str, list[list[float]]]) -> Callable[[Any], None]:
    """Draw accuracy (percent) over rounds, one line per method."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for label, curve in curves.items():
            axes.plot([t for t, _ in curve], [value for _, value in curve], label=label)
        axes.set(title=title, xlabel="round", ylabel="test accuracy %")
        axes.legend()

    return draw
