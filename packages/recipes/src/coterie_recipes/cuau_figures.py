"""FedCUAU's figures: CUAU of the true quarters over the rounds (1), and in which layers clients differ (3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from coterie import Federation
from coterie.methods import FedAvg, Server, divergences
from coterie.runs import assemble, make_federation
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cuau import (
    CIFAR,
    FASHION,
    QUARTERS,
    CuauSetting,
    FinishedRun,
    label_distance,
    measured_run,
    setting_of,
)

IMAGES = 200
"""Test images on which representations are compared."""
SMALL_CIFAR = replace(CIFAR, model="cnn-cifar", lr=0.05)
FINE_TUNING = 5
"""Local epochs of every client before representations are compared."""
MARKS = (0, 0.1, 0.25, 0.5, 0.75, 1)
"""The rounds in which CUAU is measured, as fractions of all rounds."""


@recipe("cuau-fig1", "FedCUAU Figure 1: CUAU rises with the heterogeneity of the true quarters, in every round")
def figure1(study: Study) -> Findings:
    """Rank correlations of one-shot CUAU on two data sets, and the quarters' mean CUAU along a FedAvg run."""
    pairs = {"cifar10": CIFAR if study.full else SMALL_CIFAR, "fashion-mnist": FASHION}
    rows = []
    for name, setting in pairs.items():
        cells = [study.cell(f"{name}-seed{s}", partial(_one_shot, study, setting, s)) for s in study.seeds]
        rows.append(Row(name, "Spearman, quarters' mean CUAU", [cell["quarters"] for cell in cells], 1.0))
        rows.append(Row(name, "Spearman, client's CUAU and label distance", [cell["clients"] for cell in cells]))
        for q, quarter in enumerate(QUARTERS):
            rows.append(Row(name, f"mean CUAU of {quarter}", [cell["means"][q] for cell in cells]))
    courses = [study.cell(f"course-seed{s}", partial(_course, study, s)) for s in study.seeds]
    for i, t in enumerate(courses[0]["rounds"]):
        for q, quarter in enumerate(QUARTERS):
            rows.append(Row(f"round {t}", f"mean CUAU of {quarter}", [course["means"][i][q] for course in courses]))
    ordered = [float(np.mean([means == sorted(means) for means in course["means"]])) for course in courses]
    rows.append(Row("FedAvg run", "share of rounds where CUAU rises from C1 to C4", ordered, 1.0))
    notes = ["CUAU is measured in a few rounds and on the last layer; the paper plots every round"]
    if not study.full:
        notes.append("a small CNN on CIFAR-10 and an MLP on Fashion-MNIST instead of ResNet-18; the run is the MLP's")
    return Findings(rows, notes, {"figure1": lambda figure: _draw_course(figure, courses)})


def quarter_means(values: dict[str, float], federation: Federation) -> list[float]:
    """Mean CUAU of each true quarter."""
    return [float(np.mean([values[c.id] for c in federation if c.group == q and c.id in values])) for q in range(4)]


def _one_shot(study: Study, setting: CuauSetting, seed: int) -> dict[str, Any]:
    """CUAU on a fresh model, as in stage one, against the heterogeneity that the method never sees."""
    config = setting.config(study, seed)
    federation, _ = make_federation(config)
    run, _ = assemble(config, method=FedAvg(), federation=federation)
    try:
        values = divergences(run.server, measure="update")
    finally:
        run.engine.close()
    means, distance = quarter_means(values, federation), label_distance(federation)
    return {
        "means": means,
        "quarters": float(spearmanr(means, range(4)).statistic),
        "clients": float(spearmanr(list(values.values()), [distance[c] for c in values]).statistic),
    }


def _course(study: Study, seed: int) -> dict[str, Any]:
    """Mean CUAU of the quarters after some rounds of a FedAvg run."""
    config = setting_of(study).config(study, seed)
    federation, _ = make_federation(config)
    run, _ = assemble(config, method=FedAvg(), federation=federation)
    server, method = run.server, FedAvg()
    marks = sorted({round(share * server.rounds) for share in MARKS})
    means = []
    try:
        state = method.start(server)
        for t in range(server.rounds + 1):
            if t:
                state, _ = method.round(state, t, server)
            if t in marks:
                means.append(
                    quarter_means(divergences(server, model=state.model, t=max(t, 1), measure="update"), federation)
                )
    finally:
        run.engine.close()
    return {"rounds": marks, "means": means}


def _draw_course(figure: Any, courses: Sequence[dict[str, Any]]) -> None:
    axes = figure.subplots()
    means = np.mean([course["means"] for course in courses], axis=0)
    for q, quarter in enumerate(QUARTERS):
        axes.plot(courses[0]["rounds"], means[:, q], marker="o", label=quarter)
    axes.set(xlabel="round", ylabel="mean CUAU")
    axes.legend(title="quarter")


@recipe("cuau-fig3", "FedCUAU Figure 3: deeper layers differ more between heterogeneous clients, and change more")
def figure3(study: Study) -> Findings:
    """All clients fine-tune FedAvg's model: similarity of representations, and size of the change, per layer."""
    cells = [study.cell(f"seed{s}", partial(_layerwise, study, s)) for s in study.seeds]
    layers = cells[0]["layers"]
    rows = [
        Row(f"{layer}, {quarter}", measure, [cell[key][q][i] for cell in cells])
        for key, measure in (("cosine", "cosine similarity"), ("change", "mean |change of a weight|"))
        for i, layer in enumerate(layers)
        for q, quarter in enumerate(QUARTERS)
    ]
    notes = [f"representations of {IMAGES} test images; the paper's figure gives no numbers"]

    def draw(figure: Any) -> None:
        for axes, key, label in zip(
            figure.subplots(1, 2), ("cosine", "change"), ("cosine similarity", "mean |change|"), strict=True
        ):
            means = np.mean([cell[key] for cell in cells], axis=0)
            for q, quarter in enumerate(QUARTERS):
                axes.plot(layers, means[q], marker="o", label=quarter)
            axes.set(ylabel=label)
            axes.legend()

    return Findings(rows, notes, {"figure3": draw})


def _layerwise(study: Study, seed: int) -> dict[str, Any]:
    config = setting_of(study).config(study, seed)
    federation, _ = make_federation(config)
    images = torch.cat([client.test.x for client in federation])
    images = images[:: max(1, len(images) // IMAGES)][:IMAGES]
    quarters = [[client.id for client in federation if client.group == q] for q in range(4)]

    def measure(done: FinishedRun) -> list[tuple[dict[str, float], dict[str, float]]]:
        assert done.run.architecture is not None
        module = done.run.architecture(0).eval()
        return [_one_quarter(done.run.server, done.state.model, module, clients, images) for clients in quarters]

    by_quarter = measured_run(study, f"seed{seed}", config, measure, method=FedAvg(), federation=federation)
    layers = list(by_quarter[0][0])
    return {
        "layers": layers,
        "cosine": [[cosine[name] for name in layers] for cosine, _ in by_quarter],
        "change": [[change[name] for name in layers] for _, change in by_quarter],
    }


def _one_quarter(
    server: Server, model: Tensor, module: nn.Module, clients: Sequence[str], images: Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """Mean cosine between all pairs of the clients' representations, and mean |change|, by part of the network."""
    layout = server.layout
    parts = [name for name, part in module.named_children() if next(part.parameters(), None) is not None]
    training = replace(server.schedule.at(server.rounds), epochs=FINE_TUNING, steps=None)
    sums: dict[str, Tensor] = {}
    change = dict.fromkeys(parts, 0.0)
    for reply in server.ask(server.training_requests(clients, model, server.rounds + 1, training)):
        assert reply.vector is not None
        layout.write(model + reply.vector, module)
        for name, seen in representations(module, parts, images).items():
            sums[name] = sums.get(name, torch.zeros(1)) + nn.functional.normalize(seen.double(), dim=1)
        update = layout.unflatten(reply.vector)
        for name in parts:
            names = [f"{name}.{parameter}" for parameter, _ in module.get_submodule(name).named_parameters()]
            change[name] += float(torch.cat([update[each].flatten() for each in names]).abs().mean()) / len(clients)
    m = len(clients)
    # ‖Σ v_i‖² holds every pair twice and every client once.
    cosine = {name: float((total.square().sum(1) - m).mean() / (m * (m - 1))) for name, total in sums.items()}
    return cosine, change


def representations(module: nn.Module, parts: Sequence[str], x: Tensor) -> dict[str, Tensor]:
    """The output of each named part of the module for `x: (n, …)`, as flat rows `(n, f)`."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(part: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[name] = output.detach().flatten(1)

        return hook

    hooks = [module.get_submodule(name).register_forward_hook(keep(name)) for name in parts]
    try:
        with torch.no_grad():
            module(x)
    finally:
        for handle in hooks:
            handle.remove()
    return seen
