"""CFL's Figures 6 and 7: the separation gap over the samples per client and over the rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie import Federation, Split
from coterie.clustering import cosine_matrix, separation_gap
from coterie.errors import DataError
from coterie.randomness import derive, numpy_generator
from coterie.runs import make_federation
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl import followed, separation_by_gradients, separation_by_updates
from coterie_recipes.runs import study_config

ROUNDS = 50
DRAWS = ("balanced", "random")
"""How a client's samples are drawn: equally many of each label, or at random."""
SPARE = 10
"""How many times more samples are drawn than a balanced draw keeps."""
QUICK_MARKS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50)
MEASURES = ("update", "gradient")
LABEL_DRAWS = 200
"""Draws of labels per seed for the gap that labels alone would give."""
Counts = npt.NDArray[np.int64]
Curves = dict[tuple[str, str], list[tuple[int, list[float]]]]
"""Points (x, one gap per seed) by data set and measure."""


class GapSetting(NamedTuple):
    """A data set with its label-swap federation (M=20, K=4, three local epochs), and the sizes of both figures."""

    name: str
    options: dict[str, Any]
    sizes: tuple[int, ...]
    """Samples per client in Figure 6."""
    size: int
    """Samples per client in Figure 7."""
    enough: int
    """The least number of samples per client at which the paper's gap by updates is positive."""


MNIST = GapSetting(
    "MNIST",
    {
        "scenario": "mnist-swapped",
        "model": "coterie_recipes.cfl_gap:tanh_cnn",
        "lr": 0.25,
        "epochs": 3,
        "batch_size": 200,
        "weight_decay": 0.05,
    },
    (10, 20, 50, 100, 200),
    100,
    20,
)
CIFAR = GapSetting(
    "CIFAR-10",
    {"scenario": "cifar-swapped", "model": "cnn-cifar", "lr": 0.05, "epochs": 3, "batch_size": 100},
    (100, 250, 500, 1000, 1500, 2400),
    1500,
    500,
)


class Standardise(nn.Module):
    """MNIST's pixels with mean 0 and standard deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.1307) / 0.3081


def tanh_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-like, for 28x28 images: two convolutions and two layers, tanh on standardised pixels.

    Rectified activations of raw pixels have a part that all images share, through which an update depends on how many
    samples of each label a client has; with few samples that is noise.
    """
    return nn.Sequential(
        Standardise(),
        nn.Conv2d(input_shape[0], 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 100),
        nn.Tanh(),
        nn.Linear(100, classes),
    )


def settings_of(study: Study) -> list[GapSetting]:
    """MNIST, and at full scale CIFAR-10 too."""
    return [MNIST, CIFAR] if study.full else [MNIST]


@recipe("cfl-gap-vs-samples", "CFL Figure 6: separation gap over the samples per client, updates and gradients")
def gap_vs_samples(study: Study) -> Findings:
    """The gap after 50 rounds of FL, for growing local data."""
    rows: list[Row] = []
    curves: Curves = {}
    for size in MNIST.sizes:
        gaps = [label_gap(drawn_counts(size, derive(s, "labels", i))) for s in study.seeds for i in range(LABEL_DRAWS)]
        where = f"labels alone, random draw, {size} samples per client"
        rows.append(Row(where, "gap by gradients", gaps))
        rows.append(Row(where, "share of draws with a positive gap", [sum(g > 0 for g in gaps) / len(gaps)]))
    for setting, draw in itertools.product(settings_of(study), DRAWS):
        name = f"{setting.name}, {draw} draw"
        for size in setting.sizes:
            cells = [
                study.cell(
                    f"{setting.name}-{draw}-n={size}-seed{s}",
                    partial(courses, study, setting, size, s, [ROUNDS], balanced_draw=draw == "balanced"),
                )
                for s in study.seeds
            ]
            for measure in MEASURES:
                gaps = [cell[measure][-1] for cell in cells]
                in_paper = measure == "update" and size >= setting.enough
                where = f"{name}, {size} samples per client"
                rows.append(Row(where, f"gap by {measure}s", gaps, "> 0" if in_paper else None))
                correct = [float(cell[f"{measure}_correct"][-1]) for cell in cells]
                rows.append(Row(where, f"split by {measure}s is correct", correct, 1 if in_paper else None))
                curves.setdefault((name, measure), []).append((size, gaps))
    notes = [
        "20 clients in 4 groups with two labels swapped, 3 local epochs, 50 rounds of FL as in the paper; "
        "network, step size, batch size and weight decay are ours",
        "the paper gives every client an 'equally sized random subset'; the first author's published code for "
        "federations gives each client equally many images of every label (balanced), while among 20 images drawn at "
        "random some client has few or none of the labels that its group swaps, and its update is unlike its group's",
        "labels alone: the gap of a network that sees only the true label of an image and is correct on average over "
        "the clients; the draw of the labels is then the only noise",
        "measured in one more round of local training from the last model; a correct split leaves every group whole",
    ]
    if not study.full:
        notes.append("MNIST only: CIFAR-10 (positive from about 500 samples in the paper) is in the full scale")
    return Findings(rows, notes, {"figure6": lambda figure: _draw(figure, curves, "samples per client")})


@recipe("cfl-gap-vs-rounds", "CFL Figure 7: separation gap over the communication rounds, updates and gradients")
def gap_vs_rounds(study: Study) -> Findings:
    """The gap along 50 rounds of FL."""
    marks = range(1, ROUNDS + 1) if study.full else QUICK_MARKS
    rows: list[Row] = []
    curves: Curves = {}
    for setting in settings_of(study):
        cells = [
            study.cell(f"{setting.name}-seed{s}", partial(courses, study, setting, setting.size, s, marks))
            for s in study.seeds
        ]
        for measure in MEASURES:
            points = [(t, [cell[measure][i] for cell in cells]) for i, t in enumerate(marks)]
            curves[(setting.name, measure)] = points
            for t, gaps in points:
                if t in (1, 5, 10, 20, 30, 50):
                    paper = "> 0" if measure == "update" and t >= 10 else None
                    rows.append(Row(f"{setting.name}, round {t}", f"gap by {measure}s", gaps, paper))
        first = [first_positive(cell["update"], marks) for cell in cells]
        if all(map(math.isfinite, first)):
            name = "first round from which the gap by updates stays positive"
            rows.append(Row(setting.name, name, first, "about 10"))
    notes = ["100 samples per client on MNIST, 1500 on CIFAR-10, otherwise as in cfl-gap-vs-samples"]
    if not study.full:
        notes.append("MNIST only, and the gap in some of the 50 rounds")
    return Findings(rows, notes, {"figure7": lambda figure: _draw(figure, curves, "communication rounds")})


def courses(
    study: Study, setting: GapSetting, samples: int, seed: int, marks: Iterable[int], *, balanced_draw: bool = False
) -> dict[str, Any]:
    """Both gaps, and whether the best split by each is correct, after the rounds in `marks` of a FedAvg run."""
    options = setting.options | {"method": "fedavg", "samples": samples, "rounds": ROUNDS}
    config = study_config(study, seed, **options)
    federation = None
    if balanced_draw:
        larger, _ = make_federation(study_config(study, seed, **options | {"samples": SPARE * samples}))
        federation = balanced(larger, samples)
    wanted, found = set(marks), []
    for t, prepared, state in followed(config, federation):
        if t in wanted:
            clients = prepared.server.clients
            updates = separation_by_updates(prepared, state.model, t + 1, clients)
            found.append((updates, separation_by_gradients(prepared, state.model, clients)))
    cell: dict[str, Any] = {}
    for i, measure in enumerate(MEASURES):
        cell[measure] = [pair[i].gap for pair in found]
        cell[f"{measure}_correct"] = [pair[i].correct for pair in found]
    return cell


def drawn_counts(samples: int, seed: int) -> Counts:
    """How many images of each of ten labels twenty clients get in a random draw, `(20, 10)`."""
    return numpy_generator(seed, "counts").multinomial(samples, [0.1] * 10, 20)


def label_gap(counts: Counts) -> float:
    """The gap by gradients where a sample is only its true label, and each of four groups swaps a pair of labels.

    `counts: (M, 10)` are the images of each label; client i is in group g = i mod 4, which swaps labels 2g and 2g + 1.
    The joint model predicts for each true label the shares of the answers given to it by all clients.
    """
    groups = np.arange(len(counts)) % 4
    answers = np.stack([np.eye(10)[_swapped(2 * group)] for group in groups.tolist()])  # (M, label, answer)
    given = np.einsum("il,ila->la", counts, answers)
    predicted = given / np.maximum(given.sum(axis=1, keepdims=True), 1)
    gradients = counts[:, :, None] * (predicted - answers)
    return separation_gap(cosine_matrix(gradients.reshape(len(counts), -1)), groups)


def _swapped(first: int) -> npt.NDArray[np.int64]:
    """The labels 0-9 with two neighbours exchanged."""
    labels = np.arange(10)
    labels[[first, first + 1]] = labels[[first + 1, first]]
    return labels


def balanced(federation: Federation, samples: int) -> Federation:
    """Every client with its first `samples // classes` samples of each label."""
    each = samples // federation.classes
    clients = []
    for client in federation:
        by_label = [torch.nonzero(client.train.y == label).flatten()[:each] for label in range(federation.classes)]
        index = torch.cat(by_label)
        if len(index) < each * federation.classes:
            raise DataError(f"client {client.id} lacks {each} samples of some label: draw more samples per client")
        clients.append(replace(client, train=Split(client.train.x[index], client.train.y[index])))
    return Federation(clients, federation.classes, federation.name)


def first_positive(gaps: Sequence[float], marks: Sequence[int]) -> float:
    """The earliest mark from which all gaps are positive; infinite where the last one is not."""
    first = float("inf")
    for gap, t in zip(reversed(gaps), reversed(marks), strict=True):
        if gap <= 0:
            break
        first = t
    return first


def _draw(figure: Any, curves: Curves, axis: str) -> None:
    names = list(dict.fromkeys(name for name, _ in curves))
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, measure in enumerate(MEASURES):
            xs, gaps = zip(*curves[name, measure], strict=True)
            label = "weight-update" if measure == "update" else "gradient"
            axes.plot(xs, [sum(g) / len(g) for g in gaps], "o-", color=f"C{number}", label=label)
            axes.fill_between(xs, [min(g) for g in gaps], [max(g) for g in gaps], color=f"C{number}", alpha=0.2)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(xlabel=axis, ylabel="separation gap g(α)", title=name)
        axes.legend()
