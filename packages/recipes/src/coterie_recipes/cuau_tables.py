"""FedCUAU's tables: which quarters train (1), and four base methods with and without it (3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

from coterie import Federation
from coterie.methods import FedAvg, FedCUAU
from coterie.runs import assemble, make_federation
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cuau import QUARTERS, CuauSetting, FinishedRun, measured_run, setting_of

SMALL = (
    "Fashion-MNIST (200 samples per client), an MLP and 2 local epochs in 60 rounds instead of CIFAR-10 and ResNet-18 "
    "in 500: compare signs, not sizes"
)

TABLE_1 = {
    (0,): (82.76, 82.29, 83.35, 81.56, 81.84, 82.26),
    (0, 1): (83.97, 83.77, 85.04, 83.95, 87.17, 84.98),
    (0, 1, 2): (83.85, 83.57, 85.15, 84.77, 89.97, 85.87),
    (0, 1, 2, 3): (82.68, 82.80, 85.91, 85.55, 92.95, 86.80),
    (3,): (63.22, 68.69, 74.76, 76.77, 91.31, 77.88),
    (2, 3): (77.27, 78.03, 82.60, 83.47, 92.61, 84.18),
    (1, 2, 3): (80.76, 81.04, 84.64, 84.83, 92.72, 85.81),
}
"""Trained quarters to initial accuracy, personalised accuracy of the four quarters, and their mean."""

BASES = {"fedavg": "fedavg", "fedprox": "fedprox:mu=0.001", "fedbabu": "fedbabu", "fedper": "fedper"}
TABLE_4 = {
    "fedavg": ((83.75, 84.70, 87.00, 85.85), (82.49, 84.12, 89.59, 86.85)),
    "fedprox": ((83.00, 84.26, 86.88, 85.57), (82.39, 83.70, 89.42, 86.56)),
    "fedbabu": ((84.51, 85.56, 91.22, 88.39), (83.69, 85.03, 91.46, 88.24)),
    "fedper": ((None, 80.00, 88.60, 84.30), (None, 79.15, 88.39, 83.77)),
}
"""For w^C1 and w^C2: initial accuracy, personalised accuracy of C1, of C2, and of all."""
OWN_MODEL = {"fedavg": 87.14, "fedprox": 86.84, "fedbabu": 88.51, "fedper": 84.20}
"""Table 3: personalised accuracy with FedCUAU, each client from its own cluster's model."""


Accuracies = tuple[float | None, ...]
LAST_CONVOLUTION = {"resnet18": "block4", "cnn-leaf": "conv2", "cnn-small": "conv2"}
"""What each cluster has for itself beside the head, which FedBABU freezes and FedPer keeps private."""


@recipe("cuau-table1", "FedCUAU Table 1: FedAvg trained by some quarters of the clients, evaluated on all")
def table1(study: Study) -> Findings:
    """Train FedAvg on the named quarters only; initial and personalised accuracy over the whole federation."""
    cells = {
        (quarters, seed): study.cell(
            f"{'+'.join(QUARTERS[q] for q in quarters)}-seed{seed}",
            partial(trained_by, study, setting_of(study), quarters, seed),
        )
        for quarters in TABLE_1
        for seed in study.seeds
    }
    accuracies = {quarters: [cells[quarters, seed]["accuracies"] for seed in study.seeds] for quarters in TABLE_1}
    return Findings(table1_rows(accuracies), [] if study.full else [SMALL])


def table1_rows(accuracies: dict[tuple[int, ...], list[list[float]]]) -> list[Row]:
    """Table 1 from the six accuracies of each seed for the trained quarters."""
    measures = ["initial", *(f"{q} personalised" for q in QUARTERS), "personalised"]
    return [
        Row("+".join(QUARTERS[q] for q in quarters), measure, [values[i] for values in seeds], TABLE_1[quarters][i])
        for quarters, seeds in accuracies.items()
        for i, measure in enumerate(measures)
    ]


def trained_by(
    study: Study, setting: CuauSetting, quarters: tuple[int, ...], seed: int, of_each: int | None = None
) -> dict[str, Any]:
    """FedAvg trained by the named quarters: its accuracies, personalised by all clients, or `of_each` of every quarter.

    Equally many clients train in a round for any quarters.
    """
    config = setting.config(study, seed)
    federation, _ = make_federation(config)
    ids = [client.id for client in federation if client.group in quarters]
    per_round = round(setting.participation * setting.clients)
    some = config.model_copy(update={"participation": min(1.0, per_round / len(ids))})
    key = f"{'+'.join(QUARTERS[q] for q in quarters)}-seed{seed}"
    state = measured_run(
        study,
        key,
        some,
        lambda done: done.state,
        method=FedAvg(),
        federation=federation.subset(ids),
        keep=of_each is not None,
    )
    whole, _ = assemble(config, method=FedAvg(), federation=federation)
    try:
        done = FinishedRun(whole, state)
        groups = quarters_of(federation, of_each)
        return {"accuracies": [done.initial(0), *done.personal([*groups, list(chain(*groups))])]}
    finally:
        whole.engine.close()


def quarters_of(federation: Federation, of_each: int | None = None) -> list[list[str]]:
    """The clients of each true quarter, or the first `of_each` of them."""
    return [[client.id for client in federation if client.group == q][:of_each] for q in range(4)]


def with_and_without(
    study: Study, setting: CuauSetting, base: str, seed: int, of_each: int | None = None
) -> dict[str, Any]:
    """One FedCUAU run with two clusters: accuracies of w^C1, w^C2 and each client's own model.

    {w^s, w^C2} is the base method's own trajectory, bit for bit, so that the base needs no run of its own. All clients
    personalise both models, or `of_each` of every true quarter.
    """
    last = LAST_CONVOLUTION.get(setting.model.split(":")[0])
    specific = "last" if last is None else (last, "head") if base in {"fedavg", "fedprox"} else (last,)
    method = FedCUAU(base=BASES[base], clusters=2, measure="update", specific=specific)
    config = setting.config(study, seed)

    def measure(done: FinishedRun) -> dict[str, Any]:
        quarters = quarters_of(make_federation(config)[0], of_each)
        members = done.assignment.members
        if of_each is not None:
            asked = set(chain(*quarters))
            members = [[client for client in group if client in asked] for group in members]
        known = [quarter for quarter in quarters if quarter]
        personal = [done.personal([*members, list(chain(*members)), *known], cluster) for cluster in (0, 1)]
        # Every client's own model is one of the two, which were personalised already.
        own = sum(len(group) * personal[i][i] for i, group in enumerate(members)) / sum(map(len, members))
        return {
            "initial": None if base == "fedper" else [done.initial(0), done.initial(1)],
            "personal": [three[:3] for three in personal],
            "quarters": [accuracies[3:] for accuracies in personal],
            "own": own,
        }

    return measured_run(study, f"{base}-seed{seed}", config, measure, method=method, keep=of_each is not None)


def _cells(study: Study) -> dict[str, list[dict[str, Any]]]:
    setting = setting_of(study)
    return {
        base: [
            study.cell(f"{base}-seed{seed}", partial(with_and_without, study, setting, base, seed))
            for seed in study.seeds
        ]
        for base in BASES
    }


NOTES = [
    "the base's row and w^C2 are one model: FedCUAU leaves the base method's trajectory as it is",
    "FedPer has no initial accuracy: it has no global head",
]


@recipe("cuau-table3", "FedCUAU Table 3: four base methods with and without it, initial and personalised accuracy")
def table3(study: Study) -> Findings:
    """Initial accuracy: C1's model on all test data. Personalised: own cluster's model after 5 local epochs."""
    return Findings(table3_rows(_cells(study)), NOTES if study.full else [SMALL, *NOTES])


def table3_rows(
    measured: dict[str, list[dict[str, Any]]],
    paper: Mapping[str, tuple[Accuracies, Accuracies]] = TABLE_4,
    own: Mapping[str, float] = OWN_MODEL,
) -> list[Row]:
    """Table 3 from the cells of each base method, one per seed."""
    rows = []
    for base, cells in measured.items():
        with_, without = paper[base]
        if base != "fedper":
            rows.append(Row(base, "initial", [cell["initial"][1] for cell in cells], without[0]))
            rows.append(Row(f"{base} + FedCUAU", "initial", [cell["initial"][0] for cell in cells], with_[0]))
            gains = [cell["initial"][0] - cell["initial"][1] for cell in cells]
            rows.append(Row(base, "gain in initial", gains, _difference(with_[0], without[0])))
        rows.append(Row(base, "personalised", [cell["personal"][1][2] for cell in cells], without[3]))
        rows.append(Row(f"{base} + FedCUAU", "personalised", [cell["own"] for cell in cells], own[base]))
    return rows


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, 2)


@recipe("cuau-table4", "FedCUAU Table 4: accuracy of each cluster's layers for each cluster's clients")
def table4(study: Study) -> Findings:
    """Both clusters' models, each personalised by the clients of both clusters."""
    return Findings(table4_rows(_cells(study)), NOTES if study.full else [SMALL, *NOTES])


def table4_rows(
    measured: dict[str, list[dict[str, Any]]], paper: Mapping[str, tuple[Accuracies, Accuracies]] = TABLE_4
) -> list[Row]:
    """Table 4 from the cells of each base method, one per seed."""
    rows = []
    for base, cells in measured.items():
        for cluster, printed in enumerate(paper[base]):
            setting = f"{base}, w^C{cluster + 1}"
            if base != "fedper":
                rows.append(Row(setting, "initial", [cell["initial"][cluster] for cell in cells], printed[0]))
            for i, measure in enumerate(("C1 personalised", "C2 personalised", "personalised")):
                values = [cell["personal"][cluster][i] for cell in cells]
                rows.append(Row(setting, measure, values, printed[i + 1]))
    return rows
