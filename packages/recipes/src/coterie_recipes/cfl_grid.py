"""CFL's decisions off the ground that its rule was tuned on: federations drawn from a grid, each by its number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie import Client, Federation, Split, run
from coterie.data import BuildOptions, by_writer, class_sets, combined, find_scenario
from coterie.randomness import derive, numpy_generator
from coterie_recipes.base import Findings, Row, Study, recipe

CONFLICT = ("permuted", "swapped")
CONGRUENT = ("iid", "dirichlet 0.3", "dirichlet 0.1", "halves", "writers")
GAIN = ("rotated", "inverted")
SOURCES = {"digits": "digits", "mnist": "mnist", "fashion": "fashion-mnist"}
UNEQUAL = (12, 5, 2, 1)
"""Clients of the four groups, of twenty; other numbers in proportion."""
FIRST = 20001
"""Federations from here on were used in choosing nothing."""
FALLING, FALL = 0.5, 0.1
"""FedAvg still improves fast if its loss falls in the last quarter at half its mean rate, or by a tenth."""


@dataclass(frozen=True)
class Case:
    """One federation of the grid, and how it trains."""

    number: int
    data: str
    shift: str
    lr: float
    epochs: int
    participation: float
    model: str
    clients: int
    groups: int
    unequal: bool
    noise: float
    rounds: int

    @property
    def kind(self) -> str:
        """What CFL should do: split (conflict), stay whole (congruent), or either (gain)."""
        return "conflict" if self.shift in (*CONFLICT, "mixture") else "gain" if self.shift in GAIN else "congruent"

    def words(self) -> str:
        """The case in a line."""
        groups = "12/5/2/1" if self.unequal else str(self.groups)
        noise = f", label noise {self.noise:g}" if self.noise else ""
        return (
            f"{self.number}: {self.data} {self.shift}, {self.clients} clients, {groups} groups, {self.model}, "
            f"lr {self.lr:g}, {self.epochs} epochs, participation {self.participation:g}{noise}, {self.rounds} rounds"
        )


def draw(number: int) -> Case:
    """The federation of that number. All settings are drawn independently; costly ones are cut to fit one core."""
    r = random.Random(f"cfl-grid/{number}")
    kind = r.choices(["conflict", "congruent", "gain"], [45, 45, 10])[0]
    lr, epochs = r.choice([0.01, 0.03, 0.1, 0.3]), r.choices([1, 3, 10], [4, 4, 2])[0]
    participation = r.choices([1.0, 0.3, 0.1], [6, 3, 1])[0]
    if r.random() < 0.04:
        groups = 1 if kind == "congruent" else r.choice([2, 4])
        shift, rate = "iid" if groups == 1 else "mixture", min(lr, 0.1)
        clients, rounds = r.choice([8, 20, 60]), round(60 / participation**0.5)
        return Case(
            number, "linear", shift, rate, min(epochs, 3), participation, "linear", clients, groups, False, 0, rounds
        )
    data = r.choices(["digits", "mnist", "fashion"], [55, 20, 25])[0]
    shift = r.choice({"conflict": CONFLICT, "congruent": CONGRUENT, "gain": GAIN}[kind])
    model = r.choices(["mlp", "logistic", "cnn-small"], [78, 17, 5])[0]
    clients = r.choices([20, 8, 60, 200], [55, 20, 18, 7])[0]
    groups, unequal = r.choices([4, 2, 7], [5, 3, 2])[0], r.random() < 0.2
    noise = r.choices([0.0, 0.2], [3, 1])[0]
    if shift == "writers":
        data, clients, noise = "mnist", min(clients, 60), 0.0
    if shift == "halves":
        clients = min(clients, 60)
    if model == "cnn-small":
        data, clients, epochs = "mnist" if data == "digits" else data, 8, min(epochs, 3)
    unequal = unequal and clients in (20, 60) and kind == "conflict"
    groups = 2 if shift in ("halves", "inverted") else 1 if kind == "congruent" else 4 if unequal else groups
    groups = min(groups, 4) if kind == "gain" else groups
    # About as many trainings of every client at every participation; more where steps are small.
    rounds = {1.0: 60, 0.3: 100, 0.1: 200}[participation]
    rounds = rounds * 3 // 2 if lr * epochs <= 0.03 else rounds
    if model == "cnn-small" or (data != "digits" and epochs == 10):
        rounds //= 2
    return Case(number, data, shift, lr, epochs, participation, model, clients, groups, unequal, noise, rounds)


def federation_of(case: Case, data_dir: str | None) -> Federation:
    """The clients of a case."""
    seed = derive(case.number, "cfl-grid")
    if case.data == "linear":
        return find_scenario("linear-mixture").build(clients=case.clients, samples=60, groups=case.groups, seed=seed)
    samples = None if case.data == "digits" else 200
    source = SOURCES[case.data]
    wide = case.clients if not case.unequal else 4 * max(_sizes(case.clients))
    folder = None if data_dir is None else Path(data_dir)
    options = BuildOptions(case.shift, wide, samples, case.groups, seed, folder)
    if case.shift.startswith("dirichlet"):
        made = combined(f"{source}:none+dirichlet({case.shift.split()[1]})")(options)
    elif case.shift == "halves":
        made = class_sets(source, lambda groups: [list(range(5)), list(range(5, 10))])(options)
    elif case.shift == "writers":
        made = by_writer("mnist-writers")(options._replace(samples=None))
    else:
        made = combined(f"{source}:{'none' if case.shift in ('iid', 'inverted') else case.shift}")(options)
    clients = list(made)
    if case.shift == "inverted":
        clients = [_inverted(c, i % 2) for i, c in enumerate(clients)]
    if case.unequal:
        left = dict(enumerate(_sizes(case.clients)))
        clients = [c for c in clients if _taken(left, c.group or 0)]
    return Federation([_noisy(c, case, made.classes, seed) for c in clients], made.classes)


def _sizes(clients: int) -> list[int]:
    sizes = [max(1, clients * size // sum(UNEQUAL)) for size in UNEQUAL]
    return [sizes[0] + clients - sum(sizes), *sizes[1:]]


def _taken(left: dict[int, int], group: int) -> bool:
    left[group] -= 1
    return left[group] >= 0


def _inverted(client: Client, group: int) -> Client:
    parts = [client.train, client.validation, client.test]
    turned = [Split(1 - part.x, part.y) if group else part for part in parts]
    return Client(client.id, turned[0], turned[1], turned[2], group)


def _noisy(client: Client, case: Case, classes: int, seed: int) -> Client:
    """The client with a share of its labels, but those of its test data, drawn at random."""
    if not case.noise:
        return client
    parts = []
    for name in ("train", "validation"):
        part, generator = client.part(name), numpy_generator(seed, "noise", client.id, name)
        hit = torch.from_numpy(generator.random(len(part)) < case.noise)
        drawn = torch.from_numpy(generator.integers(0, classes, len(part)))
        parts.append(Split(part.x, torch.where(hit, drawn, part.y)))
    return Client(client.id, parts[0], parts[1], client.test, client.group)


def decide(case: Case, data_dir: str | None, method: str = "cfl:fallback=false") -> dict[str, Any]:
    """What a method makes of a case: right, late, missed or torn; whole or false; whole, split or torn."""
    clients = federation_of(case, data_dir)
    hidden = 16 if case.data != "digits" else 32
    options: dict[str, Any] = {
        "federation": clients, "model": f"mlp:hidden={hidden}" if case.model == "mlp" else case.model, "lr": case.lr,
        "epochs": case.epochs, "batch_size": 32, "rounds": case.rounds, "participation": case.participation,
        "seed": case.number, "workers": 1, "evaluate_every": case.rounds,
    }  # fmt: skip
    result = run(method, **options)
    group = {client.id: client.group or 0 for client in clients}
    held = [[group[c] for c in members] for members in result.clusters]
    mixed = sum(len(set(members)) > 1 for members in held)
    torn = sum(sum(g in members for members in held) > 1 for g in set(group.values()))
    if case.kind == "conflict":
        outcome = "torn" if torn else "missed" if mixed else "right"
        if outcome == "missed":
            joint = len(held) == 1 and method.startswith("cfl")
            alone = result if joint else run("fedavg", **options)
            outcome = "late" if still_improving(losses_of(alone)) else "missed"
    elif case.kind == "gain":
        outcome = "whole" if len(held) == 1 else "torn" if torn else "split"
    else:
        outcome = "whole" if len(held) == 1 else "false"
    splits = [record.round for record in result.history for event in record.events if event.kind == "split"]
    accuracy = result.summary.accuracy.mean
    return {"case": asdict(case), "outcome": outcome, "sizes": [len(m) for m in held], "splits": splits,
            "accuracy": accuracy, "seconds": result.summary.seconds}  # fmt: skip


def losses_of(result: Any) -> list[float]:
    """The mean training loss of every round."""
    rounds = [[c for c in record.clusters if c.train_loss is not None] for record in result.history]
    return [sum(c.members * c.train_loss for c in own) / sum(c.members for c in own) for own in rounds if own]


def still_improving(losses: Sequence[float]) -> bool:
    """Does the loss still fall fast at the end? See FALLING."""
    values, few = np.asarray(losses), max(1, len(losses) // 12)
    quarter = max(few + 1, len(values) // 4)
    start, late, end = values[:2].mean(), values[-quarter:][:few].mean(), values[-few:].mean()
    mean, last = (start - end) / len(values), (late - end) / (quarter - few)
    return bool(last >= FALLING * mean > 0 or late - end >= FALL * late)


@recipe("cfl-grid", "CFL's decisions over a grid of step sizes, participations, models and sizes; every miss is listed")
def cfl_grid(study: Study) -> Findings:
    """Federations FIRST, FIRST + 1, … of the grid: 30 for each seed, 300 with `--seeds 10`."""
    numbers = [FIRST + 30 * seed + i for seed in study.seeds for i in range(30)]
    cases = [draw(number) for number in numbers]
    found = study.cells({f"federation {case.number}": partial(decide, case, study.data_dir) for case in cases})
    return judged([(case, found[f"federation {case.number}"]) for case in cases])


@recipe("ifca-grid", "IFCA with k=auto over the same grid: does it find the number of groups, and who is in which?")
def ifca_grid(study: Study) -> Findings:
    """Federations FIRST, FIRST + 1, … of the grid: 30 for each seed."""
    cases = [draw(FIRST + 30 * seed + i) for seed in study.seeds for i in range(30)]
    jobs = {f"federation {c.number}": partial(decide, c, study.data_dir, "ifca:k=auto") for c in cases}
    found = study.cells(jobs)
    return judged([(case, found[f"federation {case.number}"]) for case in cases])


def judged(results: Sequence[tuple[Case, dict[str, Any]]]) -> Findings:
    """Shares of each outcome by kind and participation, and every miss in words."""
    rows, notes = [], []
    outcomes = {"conflict": ("right", "late", "missed", "torn"), "congruent": ("whole", "false"),
                "gain": ("whole", "split", "torn")}  # fmt: skip
    for kind, names in outcomes.items():
        for participation in (None, 1.0, 0.3, 0.1):
            chosen = [
                outcome["outcome"]
                for case, outcome in results
                if case.kind == kind and participation in (None, case.participation)
            ]
            where = "" if participation is None else f", participation {participation:g}"
            rows += [
                Row(f"{kind}{where} ({len(chosen)} federations)", name, [Counter(chosen)[name] / len(chosen)])
                for name in names
                if chosen
            ]
    notes.append(
        "right: the exact groups; late: not yet, nothing torn, and FedAvg still improves fast; missed: not, though it "
        "does not; torn: clients of one group in two clusters; false: split though one model fits."
    )
    misses = [
        f"{outcome['outcome']}: {case.words()}; clusters of {outcome['sizes']}, splits in rounds {outcome['splits']}"
        for case, outcome in results
        if outcome["outcome"] in ("late", "missed", "torn", "false")
    ]
    return Findings(rows, [*notes, *misses])
