"""What method `auto` costs in hindsight: against others on federations drawn by number, kind by kind."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
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
COSTED = ("auto", "fedavg", "cfl")
"""Methods whose costs are compared: they evaluate after every round, as runs do; the others after the last one."""
SHARE_BELOW = 5.0
"""Points of regret that few federations should exceed."""
LOST = 3.0
"""Points below fedavg that auto should never be, beyond chance."""
LEVEL = 0.05
"""Of the tests that say what is sure."""
WITHIN = 2.0
"""Points below known groups that still count as having found what they are worth."""
LABELS_ALONE = ("permuted", "swapped")
"""Shifts that change no input: FLT, which compares inputs, cannot see them."""
DIGITS = 1000
"""Samples that clients may hold together where images are drawn from digits, which has 1,797, two fifths for tests."""


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
    Kind("{}:swapped(2)", training={"lr_schedule": "decay:0.9"}),
    Kind("{}:permuted(2)", clients=(12,), training={"optimizer": "adam", "lr": 0.003}),
    Kind("mnist:permuted(2)", clients=(8,), training={"model": "cnn-small", "rounds": 20}),
    Kind("digits-halves", samples=OWN),
    Kind("digits-4", clients=(12, 20), samples=OWN),
    *(Kind(f"flt-{name}-digits", samples=OWN) for name in ("s1", "s2")),
    Kind("mnist-writers", clients=(16,), samples=OWN),
    Kind("heart-disease", clients=(4,), samples=OWN),
    *(Kind(name, samples=OWN) for name in ("hsb82", "exam", "chem97")),
    Kind("landmine", clients=(12, 19, 29), samples=OWN),
    Kind("air", clients=(12,), samples=OWN),
    Kind("watch", clients=(10,), samples=OWN),
    Kind("agnews-topics", clients=(12,), samples=(60,), training={"rounds": 12, "lr": 1.0}),
    Kind("linear-mixture", clients=(20,), samples=OWN),
)
"""Number n is of kind n modulo their number, so that consecutive numbers cover all."""

Cells = Mapping[str, Mapping[str, Any]]
"""What was measured on one federation, by method."""


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
    clients, samples = r.choice(kind.clients), r.choice(kind.samples)
    large = ("mnist", "fashion")
    fits = samples is None or clients * samples <= DIGITS
    source = r.choice(("digits", *large) if fits else large)
    return Case(number, kind.scenario.format(source), clients, samples, kind.training)


def scores_of(result: Result, federation: Federation) -> list[float]:
    """Points of each client on test data: accuracy, or the share of the variance of all clients that is explained."""
    if result.summary.accuracy.mean is not None:
        return [100 * client.accuracy for client in result.clients if client.accuracy is not None]
    targets = torch.cat([client.test.y.reshape(-1) for client in federation]).double()
    variance = float(targets.var(unbiased=False))
    mean = len(targets) / len(result.clients)
    losses = [(client.metrics["loss"] or 0.0) * client.test_samples / mean for client in result.clients]
    return [100 * (1 - loss / variance) for loss in losses]


def measure(number: int, method: str, data_dir: str | None, rounds: int) -> dict[str, Any]:
    """One method on one federation: its score, its CPU seconds and bytes; or why it did not run."""
    case = draw(number)
    try:
        federation = case.federation(data_dir)
        began = time.process_time()
        how: dict[str, Any] = {"rounds": rounds, "seed": number, "workers": 1, "model": _model(case), **case.training}
        if method not in COSTED:
            how["evaluate_every"] = how["rounds"]
        result = run(_method(method, federation), federation, **how)
    except CoterieError as problem:
        return {"refused": str(problem)}
    sent = result.summary.bytes.up + result.summary.bytes.down
    seconds = round(time.process_time() - began, 3)
    scores = scores_of(result, federation)
    mean = statistics.fmean(scores)
    return {"score": mean, "scores": scores, "clusters": len(result.clusters), "cpu": seconds, "bytes": sent}


def _model(case: Case) -> str:
    return find_scenario(case.scenario).defaults.model


def _method(name: str, federation: Federation) -> Method:
    if name != ORACLE:
        return make_method(name)
    groups = federation.groups
    if groups is None or len(set(groups)) < 2:
        raise CoterieError("no groups are known")
    return Groups(of=dict(zip(federation.ids, groups, strict=True)))


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
    found: dict[int, Cells] = {}
    for number in study.seeds:
        tried = {method: cells[f"federation-{number}-{method}"] for method in methods}
        own = {method: cell for method, cell in tried.items() if "score" in cell}
        words = draw(number).words()
        if "auto" not in own or "fedavg" not in own:
            notes.append(f"left out: {words}: {tried['auto'].get('refused', tried['fedavg'].get('refused'))}")
            continue
        found[number] = own
        regret = regrets(own)["auto"]
        rows.append(Row(words, "regret of auto", [regret]))
        if regret > SHARE_BELOW or own["auto"]["score"] < own["fedavg"]["score"] - LOST:
            notes.append(f"missed: {words}: { ({m: round(cell['score'], 1) for m, cell in own.items()}) }")
    half = "judged" if min(study.seeds) >= JUDGED else "for setting"
    return Findings(
        [*rows, *(Row(f"all, {half}: {name}", what, [value]) for name, what, value in summary(found))], notes
    )


def summary(by_number: Mapping[int, Cells]) -> Iterator[tuple[str, str, float]]:
    """What all federations together say, as method, measure and value."""
    found = list(by_number.values())
    for method in (*METHODS, ORACLE):
        values = [regrets(own)[method] for own in found if method in own]
        if values:
            yield method, "mean regret", statistics.fmean(values)
            yield method, f"share with regret below {SHARE_BELOW:g}", statistics.fmean(v < SHARE_BELOW for v in values)
            yield method, "largest regret", max(values)
    by_groups = {n: own for n, own in by_number.items() if ORACLE in own}
    helped = {n: own for n, own in by_groups.items() if surely_better(own[ORACLE], own["fedavg"])}
    seen = {n: own for n, own in helped.items() if not any(shift in draw(n).scenario for shift in LABELS_ALONE)}
    whole = [own for own in found if not any(surely_better(own[m], own["fedavg"]) for m in own)]
    for method in METHODS:
        for which, where in ((helped, "these surely help"), (seen, "these surely help and differ in inputs too")):
            near = [own[ORACLE]["score"] - own[method]["score"] <= WITHIN for own in which.values() if method in own]
            if near:
                yield method, f"share within {WITHIN:g} of known groups, where {where}", statistics.fmean(near)
        lost = [surely_better(own["fedavg"], own[method]) for own in whole if method in own]
        if lost:
            yield method, "share surely below fedavg, where nothing is surely better", statistics.fmean(lost)
    yield "auto", f"federations surely below fedavg by {LOST:g} points", float(sum(map(loses, found)))
    for method in ("auto", "cfl"):
        for cost in ("cpu", "bytes"):
            ratios = [own[method][cost] / own["fedavg"][cost] for own in found if not split(own, method)]
            if ratios:
                yield method, f"median of {cost} over fedavg's, where nothing is split", statistics.median(ratios)


def regrets(own: Cells) -> dict[str, float]:
    """How far every method is below the best of those that were given no groups."""
    best = max(cell["score"] for method, cell in own.items() if method != ORACLE)
    return {method: best - cell["score"] for method, cell in own.items()}


def surely_better(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether clients score higher under one method than under another: a paired t-test over clients, at 5 %."""
    from scipy.stats import ttest_rel

    return bool(ttest_rel(one["scores"], other["scores"], alternative="greater").pvalue <= LEVEL)


def loses(own: Cells) -> bool:
    """Whether auto is surely, and by more than LOST points, below fedavg."""
    short = own["fedavg"]["score"] - own["auto"]["score"]
    return short > LOST and surely_better(own["fedavg"], own["auto"])


def split(own: Cells, method: str) -> bool:
    """Whether a method served clients by more than one model, or did not run."""
    return method not in own or own[method]["clusters"] > 1
