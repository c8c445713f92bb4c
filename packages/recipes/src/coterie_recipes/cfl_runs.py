"""CFL's Figures 9 and 10: recursive splits on CIFAR-10 with permuted labels, and on AG-News by topic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from coterie import Result
from coterie.methods.published import PAPERS
from coterie.runs import RunConfig, assemble
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl import separation_by_updates, split_rounds
from coterie_recipes.runs import ProgressLogger, kept_run, study_config

CIFAR_QUICK = {"samples": 600, "rounds": 65, "evaluate_every": 3}
NEWS_QUICK = {"samples": 700, "rounds": 50, "epochs": 1, "batch_size": 50, "evaluate_every": 2}
DEFAULT = "our default"


def figure_options(study: Study, figure: str, quick: dict[str, Any]) -> dict[str, Any]:
    """The settings that the paper prints for a figure, for every method of it; smaller ones in a quick study."""
    printed = PAPERS["cfl"].tables[figure]
    return {**printed.training, **printed.federation, "evaluate_every": 1, **({} if study.full else quick)}


@recipe("cfl-cifar-permuted", "CFL Figure 9: CIFAR-10 with permuted labels, M=20, K=4: plateau, splits, accuracies")
def cifar_permuted(study: Study) -> Findings:
    """One run per seed as published, and one by our default: until its first split each is FedAvg."""
    options = figure_options(study, "figure9", CIFAR_QUICK)
    methods = {"as published": "cfl:as=figure9", DEFAULT: "cfl"}
    cells = {
        name: [study.cell(f"{name}-seed{s}", partial(_cifar, study, name, method, options, s)) for s in study.seeds]
        for name, method in methods.items()
    }
    rows = [row for name, own in cells.items() for row in _cifar_rows(name, own)]
    notes = [
        "the plateau is the mean accuracy at the last evaluation before the first split: until then CFL is FL",
        "as published a cluster is looked at every 50 rounds (the paper splits at rounds 50, 100 and 150)",
        "gaps are measured after the run, at the models at which clusters were split or with which they ended",
        "each client is tested on a share of the test set under its own permutation; the paper uses the whole test set",
    ]
    if not study.full:
        notes.append("600 samples per client (the paper: 2500) and 65 rounds (the paper: 200): accuracies are lower")
    figures: dict[str, Callable[[Any], None]] = {
        f"figure9-{name.split()[-1]}": partial(_draw, cell=own[0], label="accuracy") for name, own in cells.items()
    }
    return Findings(rows, notes, figures)


def _cifar_rows(name: str, cells: list[dict[str, Any]]) -> list[Row]:
    """The rows of one method beside what the paper says of Figure 9."""
    where = f"CIFAR-10, permuted labels, {name}"
    rows = [
        Row(where, "FL plateau accuracy %", [100 * cell["plateau"] for cell in cells], "≈ 20"),
        Row(where, "CFL final accuracy %", [100 * cell["accuracy"] for cell in cells], "≈ 60"),
        Row(where, "final / plateau", [cell["accuracy"] / cell["plateau"] for cell in cells], "> 2"),
        Row(where, "splits", [float(len(cell["splits"])) for cell in cells], 3),
        Row(where, "adjusted Rand index", [cell["ari"] for cell in cells], 1),
    ]
    for number, paper in enumerate((50, 100, 150)):
        known = [cell for cell in cells if len(cell["splits"]) > number]
        if known:
            split = f"split {number + 1}, {name}"
            rows.append(Row(split, "round", [float(cell["splits"][number]) for cell in known], paper))
            rows.append(Row(split, "gap by updates", [cell["gaps"][number] for cell in known], "> 0"))
            after = [100 * cell["after"][number] for cell in known]
            rows.append(Row(split, "accuracy % just before the next split, or at the end", after))
    rows.append(Row(f"final clusters, {name}", "largest gap by updates", [cell["last_gap"] for cell in cells], "< 0"))
    return rows


def _cifar(study: Study, name: str, method: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    config = study_config(study, seed, method=method, **options)
    result = kept_run(study, f"{name.replace(' ', '-')}-seed{seed}", config, ProgressLogger(study))
    found = course(result, "accuracy")
    splits = found["splits"]
    gaps, last = tree_gaps(config, result)
    ends = [*splits[1:], config.rounds or 0]
    return found | {
        "plateau": before(found, splits[0] if splits else (config.rounds or 0) + 1),
        "after": [before(found, end + (i == len(splits) - 1)) for i, end in enumerate(ends[: len(splits)])],
        "gaps": gaps,
        "last_gap": last,
        "accuracy": result.summary.accuracy.mean,
        "ari": result.summary.ari,
    }


def course(result: Result, measure: str) -> dict[str, Any]:
    """The evaluated rounds with their mean and every cluster's value, and the rounds of the splits."""
    seen = [record for record in result.history if measure in record.metrics]
    return {
        "rounds": [record.round for record in seen],
        "mean": [record.metrics[measure].mean for record in seen],
        "clusters": [[cluster.metrics[measure] for cluster in record.clusters] for record in seen],
        "splits": split_rounds(result),
    }


def before(found: dict[str, Any], t: int) -> float:
    """The mean at the last evaluation before round `t`, or at the first one if there was none."""
    known = [value for at, value in zip(found["rounds"], found["mean"], strict=True) if at < t]
    return float(known[-1] if known else found["mean"][0])


def tree_gaps(config: RunConfig, result: Result) -> tuple[list[float], float]:
    """The gap by updates at every split, in order of their rounds, and the largest among the final clusters."""
    prepared, _ = assemble(config)
    tree = result.state.tree
    try:
        rounds = prepared.server.rounds
        splits = sorted(
            (node for node in tree.nodes if node.children), key=lambda node: (node.split_round or 0, node.id)
        )
        gaps = [separation_by_updates(prepared, n.model, n.split_round or rounds, n.members).gap for n in splits]
        leaves = [leaf for leaf in tree.leaves() if len(leaf.members) > 1]
        last = [separation_by_updates(prepared, n.model, rounds + 1, n.members).gap for n in leaves]
        return gaps, max(last, default=-1.0)
    finally:
        prepared.engine.close()


@recipe(
    "cfl-agnews", "CFL Figure 10: next-word prediction on AG-News, 20 clients of 4 topics, perplexity of FL and CFL"
)
def agnews(study: Study) -> Findings:
    """FedAvg and CFL, as published and by our default, for the same number of rounds."""
    options = figure_options(study, "figure10", NEWS_QUICK)
    methods = {"FL": "fedavg", "CFL": "cfl:as=figure10", f"CFL, {DEFAULT}": "cfl"}
    cells = {
        name: [study.cell(f"{name}-seed{s}", partial(_news, study, name, method, options, s)) for s in study.seeds]
        for name, method in methods.items()
    }
    where = "AG-News by topic"
    rows = [Row(where, "FL perplexity", [cell["perplexity"] for cell in cells["FL"]], "42-43")]
    for name in (name for name in methods if name != "FL"):
        own = cells[name]
        rows.append(Row(where, f"{name}: perplexity", [cell["perplexity"] for cell in own], "< 36"))
        ratios = [c["perplexity"] / f["perplexity"] for c, f in zip(own, cells["FL"], strict=True)]
        rows.append(Row(where, f"{name}: perplexity / FL's", ratios, "< 0.86"))
        rows.append(Row(where, f"{name}: adjusted Rand index", [cell["ari"] for cell in own], 1))
        rows.append(Row(where, f"{name}: clusters", [float(len(cell["sizes"])) for cell in own], 4))
        for number, paper in enumerate((30, 60, 90)):
            known = [float(cell["splits"][number]) for cell in own if len(cell["splits"]) > number]
            if known:
                rows.append(Row(f"split {number + 1}, {name}", "round", known, paper))
    notes = [
        "perplexity is the exponential of the mean test loss per word; words beyond the vocabulary count as one",
        "the data folder may hold a part of the corpus only (the paper: 120000 articles), and vocabulary, widths and "
        "step size are ours: compare the ratio, not the perplexities",
        "as published a cluster is looked at every 30 rounds (the paper splits at rounds 30, 60 and 90)",
    ]
    if not study.full:
        notes.append(
            "700 windows of 20 words per client, one epoch in batches of 50 and 50 rounds (the paper: three epochs in "
            "batches of 100 and 100 rounds)"
        )
    first = {name: found[0] for name, found in cells.items()}
    return Findings(rows, notes, {"figure10": lambda figure: _draw_news(figure, first)})


def _news(study: Study, name: str, method: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    config = study_config(study, seed, method=method, **options)
    result = kept_run(study, f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}", config, ProgressLogger(study))
    loss = result.summary.loss.mean
    perplexity = math.inf if loss is None else math.exp(loss)
    sizes = [len(members) for members in result.clusters]
    return course(result, "loss") | {"perplexity": perplexity, "ari": result.summary.ari, "sizes": sizes}


def _draw(figure: Any, cell: dict[str, Any], label: str) -> None:
    axes = figure.subplots()
    _draw_clusters(axes, cell, lambda value: value)
    axes.set(xlabel="communication rounds", ylabel=label)
    axes.legend()


def _draw_news(figure: Any, cells: dict[str, dict[str, Any]]) -> None:
    axes = figure.subplots()
    _draw_clusters(axes, cells["CFL"], math.exp)
    fl = cells["FL"]
    axes.plot(fl["rounds"], [math.exp(value) for value in fl["mean"]], "k:", label="FL")
    axes.set(xlabel="communication rounds", ylabel="perplexity", yscale="log")
    axes.legend()


def _draw_clusters(axes: Any, cell: dict[str, Any], shown: Any) -> None:
    """A dot for every cluster in every round, their mean as a line, and the splits."""
    for t, values in zip(cell["rounds"], cell["clusters"], strict=True):
        axes.plot([t] * len(values), [shown(value) for value in values], ".", color="C0", markersize=4, alpha=0.6)
    axes.plot(cell["rounds"], [shown(value) for value in cell["mean"]], color="C0", label="CFL, mean of the clients")
    for i, t in enumerate(cell["splits"]):
        axes.axvline(t, color="C1", linewidth=0.8, linestyle="--", label="split" if i == 0 else None)
