"""FedCUAU's Tables 1, 3 and 4 on all of CIFAR-10 at a scale for a processor: a narrow ResNet-18, fewer rounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cuau import QUARTERS, CuauSetting
from coterie_recipes.cuau_tables import (
    NOTES,
    TABLE_1,
    TABLE_4,
    table1_rows,
    table3_rows,
    table4_rows,
    trained_by,
    with_and_without,
)

EVERYBODY = (0, 1, 2, 3)


@dataclass(frozen=True)
class Scale:
    """A federation with its network, and how much of the tables is measured there."""

    setting: CuauSetting
    quarters: tuple[tuple[int, ...], ...]
    """Table 1's rows, beside the one of everybody, which is the base of FedCUAU on FedAvg."""
    bases: tuple[str, ...]
    of_each: int
    """Clients of each quarter that personalise."""
    note: str


QUICK = Scale(
    CuauSetting("cifar-dirichlet-quarters", "resnet18:width=8,stride=2", 40, 0.1, "step:0.1@20@30", samples=500),
    quarters=((0,), (3,)),
    bases=("fedavg", "fedbabu"),
    of_each=6,
    note="all of CIFAR-10, 100 clients x 500, the true quarters, 10 clients per round as in the paper; but ResNet-18 "
    "of width 8 instead of 64 on images halved by its stem, 40 rounds instead of 500 (steps at 20 and 30), and "
    "personalised accuracy over 24 of the 100 clients, six of each quarter",
)
"""About 12 minutes per seed on one core."""
FULL = Scale(
    CuauSetting("cifar-dirichlet-quarters", "resnet18:width=16", 100, 0.1, "step:0.1@50@75", samples=500),
    quarters=((0,), (0, 1), (0, 1, 2), (3,), (2, 3), (1, 2, 3)),
    bases=("fedavg", "fedprox", "fedbabu", "fedper"),
    of_each=25,
    note="all of CIFAR-10, all clients; ResNet-18 of width 16 instead of 64, 100 rounds, not 500 (steps at 50, 75)",
)


def differences(
    accuracies: dict[tuple[int, ...], list[list[float]]], bases: dict[str, list[dict[str, Any]]]
) -> list[Row]:
    """What the tables say, as differences seed by seed, of which the signs compare at any scale."""
    rows = []
    for quarters in ((0,), (3,)):
        name = QUARTERS[quarters[0]]
        for i, measure in {0: "initial", 1: "C1 personalised", 4: "C4 personalised"}.items():
            values = [a[i] - b[i] for a, b in zip(accuracies[EVERYBODY], accuracies[quarters], strict=True)]
            paper = TABLE_1[EVERYBODY][i] - TABLE_1[quarters][i]
            rows.append(Row(f"Table 1: trained by all, minus by {name} only", measure, values, round(paper, 2)))
    for base, cells in bases.items():
        first, last = TABLE_4[base]
        for i, measure in enumerate(("initial", "C1 personalised", "C2 personalised")):
            if i == 0 and base == "fedper":
                continue
            pairs = [c["initial"] if i == 0 else [c["personal"][j][i - 1] for j in (0, 1)] for c in cells]
            paper = (first[i] or 0) - (last[i] or 0)
            values = [one - other for one, other in pairs]
            rows.append(Row(f"Table 4: {base}, w^C1 minus w^C2", measure, values, round(paper, 2)))
    return rows


@recipe("cuau-cifar", "FedCUAU Tables 1, 3, 4 on CIFAR-10 with a narrow ResNet-18: signs beside the paper's")
def cuau_cifar(study: Study) -> Findings:
    """Every run is kept in the study's folder and resumed there; seeds are computed one after the other."""
    scale = FULL if study.full else QUICK
    setting, of_each = scale.setting, scale.of_each
    bases: dict[str, list[dict[str, Any]]] = {base: [] for base in scale.bases}
    accuracies: dict[tuple[int, ...], list[list[float]]] = {quarters: [] for quarters in (*scale.quarters, EVERYBODY)}
    for seed in study.seeds:
        # FedCUAU leaves its base as it is: w^C2 on FedAvg is FedAvg trained by everybody.
        common = study.cell(f"fedavg-seed{seed}", partial(with_and_without, study, setting, "fedavg", seed, of_each))
        accuracies[EVERYBODY].append([common["initial"][1], *common["quarters"][1], common["personal"][1][2]])
        for quarters in scale.quarters:
            name = "+".join(QUARTERS[q] for q in quarters)
            compute = partial(trained_by, study, setting, quarters, seed, of_each)
            accuracies[quarters].append(study.cell(f"{name}-seed{seed}", compute)["accuracies"])
        for base in scale.bases:
            compute = partial(with_and_without, study, setting, base, seed, of_each)
            bases[base].append(common if base == "fedavg" else study.cell(f"{base}-seed{seed}", compute))
    rows = differences(accuracies, bases) + [
        Row(f"Table {number}: {row.setting}", row.measure, row.ours, row.paper)
        for number, table in ((1, table1_rows(accuracies)), (3, table3_rows(bases)), (4, table4_rows(bases)))
        for row in table
    ]
    return Findings(rows, [scale.note, *NOTES])
