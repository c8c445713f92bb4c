"""CFL's Figures 6 and 7: the separation gap over the samples a client and over the rounds, updates and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from coterie.recipes.base import Findings, Row, Study, recipe
from coterie.recipes.cfl import followed, gaps_at, study_config

ROUNDS = 50
MEASURES = ("update", "gradient")
Curves = dict[tuple[str, str], list[tuple[int, list[float]]]]
"""Points (x, one gap a seed) by data set and measure."""


class Setting(NamedTuple):
    """A data set with its label-swap federation (M=20, K=4, three local epochs), and the paper's two readings."""

    name: str
    options: dict[str, Any]
    sizes: tuple[int, ...]
    """Samples a client in Figure 6."""
    size: int
    """Samples a client in Figure 7."""
    enough: int
    """From how many samples a client on the paper has a positive gap by updates."""


MNIST = Setting(
    "MNIST",
    {"scenario": "mnist-swapped", "model": "cnn-small", "lr": 0.1, "epochs": 3, "batch_size": 10},
    (10, 20, 50, 100, 200),
    100,
    20,
)
CIFAR = Setting(
    "CIFAR-10",
    {"scenario": "cifar-swapped", "model": "cnn-cifar", "lr": 0.05, "epochs": 3, "batch_size": 100},
    (100, 250, 500, 1000, 1500, 2400),
    1500,
    500,
)


def settings_of(study: Study) -> list[Setting]:
    """MNIST, and CIFAR-10 too at full scale."""
    return [MNIST, CIFAR] if study.full else [MNIST]


@recipe("cfl-gap-vs-samples", "CFL Figure 6: separation gap over the samples a client, updates and gradients")
def gap_vs_samples(study: Study) -> Findings:
    """The gap after 50 rounds of FL, for growing local data."""
    rows: list[Row] = []
    curves: Curves = {}
    for setting in settings_of(study):
        for size in setting.sizes:
            cells = [
                study.cell(
                    f"{setting.name}-n={size}-seed{s}",
                    lambda setting=setting, n=size, s=s: courses(study, setting, n, s, [ROUNDS]),  # type: ignore[misc]
                )
                for s in study.seeds
            ]
            for measure in MEASURES:
                gaps = [cell[measure][-1] for cell in cells]
                paper = "> 0" if measure == "update" and size >= setting.enough else None
                rows.append(Row(f"{setting.name}, {size} samples a client", f"gap by {measure}s", gaps, paper))
                curves.setdefault((setting.name, measure), []).append((size, gaps))
    notes = [
        "20 clients in 4 groups with two labels swapped, 3 local epochs, 50 rounds of FL as in the paper; "
        "network widths, step size and batch size are ours",
        "the gap is measured on one more round of local training from the last model",
    ]
    if not study.full:
        notes.append("MNIST only: CIFAR-10 (positive from about 500 samples in the paper) is in the full scale")
    return Findings(rows, notes, {"figure6": lambda figure: _draw(figure, curves, "samples a client")})


@recipe("cfl-gap-vs-rounds", "CFL Figure 7: separation gap over the communication rounds, updates and gradients")
def gap_vs_rounds(study: Study) -> Findings:
    """The gap along 50 rounds of FL."""
    marks = list(range(1, ROUNDS + 1)) if study.full else [1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50]
    rows: list[Row] = []
    curves: Curves = {}
    for setting in settings_of(study):
        cells = [
            study.cell(
                f"{setting.name}-seed{s}",
                lambda setting=setting, s=s: courses(study, setting, setting.size, s, marks),  # type: ignore[misc]
            )
            for s in study.seeds
        ]
        for measure in MEASURES:
            points = [(t, [cell[measure][i] for cell in cells]) for i, t in enumerate(marks)]
            curves[(setting.name, measure)] = points
            for t, gaps in points:
                if t in (1, 5, 10, 20, 30, 50):
                    paper = "> 0" if measure == "update" and t >= 10 else None
                    rows.append(Row(f"{setting.name}, round {t}", f"gap by {measure}s", gaps, paper))
        first = [float(first_positive(cell["update"], marks)) for cell in cells]
        rows.append(Row(setting.name, "first round from which the gap by updates stays positive", first, "about 10"))
    notes = ["100 samples a client on MNIST, 1500 on CIFAR-10, otherwise as in cfl-gap-vs-samples"]
    if not study.full:
        notes.append("MNIST only, and the gap at some of the 50 rounds")
    return Findings(rows, notes, {"figure7": lambda figure: _draw(figure, curves, "communication rounds")})


def courses(study: Study, setting: Setting, samples: int, seed: int, marks: Iterable[int]) -> dict[str, Any]:
    """Both gaps after the rounds in `marks` of an FL run."""
    config = study_config(study, seed, method="fedavg", samples=samples, rounds=ROUNDS, **setting.options)
    wanted, seen = set(marks), []
    for t, prepared, state in followed(config):
        if t in wanted:
            seen.append(gaps_at(prepared, state.model, t + 1))
    return {measure: [getattr(gaps, measure) for gaps in seen] for measure in MEASURES}


def first_positive(gaps: Sequence[float], marks: Sequence[int]) -> float:
    """The earliest mark from which on all gaps are positive; infinite if the last one is not."""
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
