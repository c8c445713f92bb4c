"""What method `auto` costs in hindsight: against others on federations drawn by number, kind by kind."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie import Federation, Method, Result, run
from coterie.data import find_scenario
from coterie.errors import CoterieError
from coterie.methods import Groups, make_method
from coterie_recipes.base import Findings, Row, Study, recipe

METHODS = ("auto", "fedavg", "local", "cfl", "ifca:k=auto", "flt")
"""What is run; beside them the groups that the data were made with, as the oracle."""
ORACLE = "groups"
JUDGED = 1000
"""Federations from this number on are for judging, those before for setting anything by."""
SHARE_BELOW = 5.0
"""Points of regret that few federations should exceed."""


@dataclass(frozen=True)
class Kind:
    """A kind of federation: a scenario, in which {} stands for an image source that is drawn, and its settings."""

    scenario: str
    clients: tuple[int, ...] = (12, 20, 30)
    samples: tuple[int | None, ...] = (40, 100)
    training: Mapping[str, Any] = field(default_factory=dict)


OWN: tuple[int | None, ...] = (None,)
"""As many samples as the scenario has."""
KINDS = (
    *(Kind(f"{{}}:none{part}") for part in ("", "+dirichlet(0.1)", "+dirichlet(0.3)", "+dirichlet(1)")),
    *(Kind(f"{{}}:none+{part}") for part in ("classes(2)", "sizes(zipf)", "dirichlet(0.3)+sizes(zipf)")),
    *(Kind(f"{{}}:{shift}({groups})") for shift in ("permuted", "swapped", "rotated") for groups in (2, 4)),
    *(Kind(f"{{}}:{shift}(4)+dirichlet(0.3)") for shift in ("permuted", "swapped", "rotated")),
    *(Kind(f"{{}}:{shift}(2)+sizes(zipf)") for shift in ("permuted", "swapped", "rotated")),
    Kind("{}:swapped(4)+dirichlet(0.3)+sizes(zipf)"),
    Kind("{}:swapped(2)+classes(3)"),
    Kind("{}:rotated(2)+dirichlet(1)"),
    Kind("{}:swapped(2)", clients=(2,)),
    Kind("{}:permuted(6)", clients=(6,)),
    Kind("{}:permuted(2)", clients=(100,), samples=(15,)),
    Kind("{}:permuted(3)", training={"participation": 0.3}),
    Kind("{}:swapped(2)", training={"lr_schedule": "cosine"}),
    Kind("{}:permuted(2)", clients=(12,), training={"optimizer": "adam", "lr": 0.003}),
    Kind("mnist:permuted(2)", clients=(8,), training={"model": "cnn-mnist", "rounds": 20}),
    *(Kind(f"digits-{name}", samples=OWN) for name in ("halves", "4")),
    *(Kind(f"flt-{name}-digits", samples=OWN) for name in ("s1", "s2")),
    Kind("mnist-writers", clients=(16,), samples=OWN),
    Kind("heart-disease", clients=(4,), samples=OWN),
    *(Kind(name, samples=OWN) for name in ("hsb82", "exam", "chem97")),
    Kind("landmine", clients=(12, 19, 29), samples=OWN),
    Kind("air", clients=(12,), samples=OWN),
    Kind("watch", clients=(10,), samples=OWN),
    Kind("agnews-topics", clients=(12,), samples=OWN, training={"rounds": 30}),
    Kind("linear-mixture", clients=(20,), samples=OWN),
)
"""Number n is of kind n modulo their number, so that consecutive numbers cover all."""


@dataclass(frozen=True)
class Case:
    """One federation, and how its clients train."""

    number: int
    scenario: str
    clients: int
    samples: int | None
    training: Mapping[str, Any]

    def words(self) -> str:
        """The case in a line."""
        each = "" if self.samples is None else f", {self.samples} samples each"
        more = "".join(f", {key} {value}" for key, value in self.training.items())
        return f"{self.number}: {self.scenario}, {self.clients} clients{each}{more}"

    def federation(self, data_dir: str | None) -> Federation:
        """The clients."""
        scenario = find_scenario(self.scenario)
        folder = None if data_dir is None else Path(data_dir)
        return scenario.build(clients=self.clients, samples=self.samples, seed=self.number, data_dir=folder)


def draw(number: int) -> Case:
    """The federation of that number: its kind goes by turns, its settings are drawn."""
    kind, r = KINDS[number % len(KINDS)], random.Random(f"auto/{number}")
    source = r.choice(("digits", "mnist", "fashion"))
    return Case(number, kind.scenario.format(source), r.choice(kind.clients), r.choice(kind.samples), kind.training)


def score_of(result: Result, federation: Federation) -> float:
    """Points on test data: mean accuracy over clients, or the share of the variance of all that is explained."""
    if result.summary.accuracy.mean is not None:
        return 100 * result.summary.accuracy.mean
    targets = torch.cat([client.test.y.reshape(-1) for client in federation]).double()
    errors = sum((client.metrics["loss"] or 0.0) * client.test_samples for client in result.clients)
    return 100 * (1 - errors / float(targets.var(unbiased=False) * len(targets)))


def measure(number: int, method: str, data_dir: str | None, rounds: int) -> dict[str, Any]:
    """One method on one federation: its score, its CPU seconds and bytes; or why it did not run."""
    case = draw(number)
    try:
        federation = case.federation(data_dir)
        began = time.process_time()
        how: dict[str, Any] = {"rounds": rounds, "seed": number, "workers": 1, "model": _model(case), **case.training}
        result = run(_method(method, federation), federation, **how)
    except CoterieError as problem:
        return {"refused": str(problem)}
    sent = result.summary.bytes.up + result.summary.bytes.down
    seconds = round(time.process_time() - began, 3)
    return {"score": score_of(result, federation), "clusters": len(result.clusters), "cpu": seconds, "bytes": sent}


def _model(case: Case) -> str:
    return find_scenario(case.scenario).defaults.model


def _method(name: str, federation: Federation) -> Method:
    if name != ORACLE:
        return make_method(name)
    groups = federation.groups
    if groups is None or len(set(groups)) < 2:
        raise CoterieError("no groups are known")
    return Groups(of=dict(zip(federation.ids, groups, strict=True)))


def regrets(scores: Mapping[str, float]) -> dict[str, float]:
    """How far every method is below the best of those that were given no groups."""
    best = max(score for method, score in scores.items() if method != ORACLE)
    return {method: best - score for method, score in scores.items()}


@recipe("auto-regret", "The regret of method auto on federations of many kinds, beside other methods and known groups")
def auto_regret(study: Study) -> Findings:
    """Seeds are the numbers of federations: those below 1000 are for setting anything by, others to judge."""
    rounds = 60 if study.full else 30
    methods = (*METHODS, ORACLE)
    jobs = {
        f"federation-{number}-{method}": partial(measure, number, method, study.data_dir, rounds)
        for number in study.seeds
        for method in methods
    }
    cells = study.cells(jobs)
    rows, notes = [], []
    found: list[dict[str, float]] = []
    for number in study.seeds:
        own = {method: cells[f"federation-{number}-{method}"] for method in methods}
        scores = {method: cell["score"] for method, cell in own.items() if "score" in cell}
        words = draw(number).words()
        if "auto" not in scores or "fedavg" not in scores:
            notes.append(f"left out: {words}: {own['auto'].get('refused', own['fedavg'].get('refused'))}")
            continue
        found.append(regrets(scores))
        rows.append(Row(words, "regret of auto", [found[-1]["auto"]]))
        if found[-1]["auto"] > SHARE_BELOW or scores["auto"] < scores["fedavg"] - 3:
            notes.append(f"missed: {words}: { ({m: round(s, 1) for m, s in scores.items()}) }")
    return Findings(rows + _summary(found, methods, study.seeds), notes)


def _summary(found: Sequence[Mapping[str, float]], methods: Sequence[str], numbers: Sequence[int]) -> list[Row]:
    half = "judged" if min(numbers) >= JUDGED else "for setting"
    rows = []
    for method in methods:
        values = [regret[method] for regret in found if method in regret]
        if values:
            rows.append(Row(f"all, {half}: {method}", "mean regret", [statistics.fmean(values)]))
    values = [regret["auto"] for regret in found]
    if values:
        below = statistics.fmean(value < SHARE_BELOW for value in values)
        rows.append(Row(f"all, {half}: auto", f"share with regret below {SHARE_BELOW:g}", [below]))
        rows.append(Row(f"all, {half}: auto", "largest regret", [max(values)]))
    return rows
