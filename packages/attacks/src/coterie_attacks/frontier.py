"""What attacks cost the honest clients: method × rule × attack, beside what the rule costs without any attack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import nn

from coterie.clustering import adjusted_rand_index
from coterie.federation import Federation
from coterie.runs import Result, RunConfig, assemble, execute, make_config, make_federation
from coterie.trainers import predicted_labels
from coterie_attacks.attacks import choose_hostile, find_attack, with_trigger
from coterie_attacks.engine import HostileEngine
from coterie_studies import Cells

Jobs = dict[str, Callable[[], dict[str, Any]]]
EXPECTED = "expected"
"""In place of a rule: the one that `expect_hostile` chooses for the number of hostile clients in the cell."""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    accuracy: dict[str, float]
    """Of each honest client, on its own test data."""
    cluster: dict[str, int]
    """The cluster of each honest client."""
    backdoor: float | None = None
    """Share of the honest clients' marked test inputs that were given class 0, of those of other classes."""


def attacked_run(config: RunConfig, attack: str, hostile: int, federation: Federation | None = None) -> Outcome:
    """One run of the configuration with so many hostile clients, drawn from its seed, of its federation or another."""
    chosen = find_attack(attack)
    own, defaults = make_federation(config)
    federation = own if federation is None else federation
    bad = choose_hostile(federation, hostile, config.seed, chosen)
    if chosen.absent:
        there = [client for client in federation if client.id not in bad]
        federation, bad = Federation(there, federation.classes, federation.name), ()

    def engine_for(architecture: Callable[[int], nn.Module]) -> HostileEngine:
        known = config.aggregation(len(federation))
        return HostileEngine(
            federation, architecture, attack=chosen, hostile=bad, aggregation=known, privacy=config.privacy
        )

    run, _ = assemble(config, federation=federation, defaults=defaults, engine_for=engine_for)
    engine = run.engine
    assert isinstance(engine, HostileEngine)

    def before_round(t: int) -> None:
        engine.share_of_rounds = t / run.server.rounds

    result = execute(replace(run, before_round=before_round))
    honest = [row for row in result.clients if row.client not in bad]
    accuracy = {row.client: row.accuracy for row in honest if row.accuracy is not None}
    rate = backdoor_rate(result, federation, bad) if attack == "backdoor" else None
    return Outcome(accuracy, {row.client: row.cluster for row in honest if row.cluster is not None}, rate)


def backdoor_rate(result: Result, federation: Federation, hostile: Sequence[str]) -> float:
    """How often the mark makes an honest client's model say class 0."""
    fooled = total = 0
    for row in result.clients:
        test = federation[row.client].test
        others = test.y != 0
        if row.client in hostile or not bool(others.any()):
            continue
        module = result.model_of(row.client).eval()
        with torch.no_grad():
            said = predicted_labels(module(with_trigger(test.x)[others]))
        fooled, total = fooled + int((said == 0).sum()), total + len(said)
    return fooled / max(1, total)


@dataclass(frozen=True)
class AttackResult:
    """What honest clients were left with, over the seeds. Losses are in shares of one, not in points."""

    scenario: str
    method: str
    rule: str
    attack: str
    hostile: int
    accuracy: float
    """Mean over the honest clients, each on its own test data."""
    lost: float
    """Below the same clients' mean under the same rule without attack."""
    most: float
    """The most that was lost with one of the seeds."""
    worst: float
    """The most that one honest client lost, mean over the seeds."""
    partition: float
    """Adjusted Rand index between the honest clients' clusters and those without attack, the least of the seeds."""
    price: float
    """What the rule costs without attack: below the weighted mean's accuracy."""
    price_worst: float
    """The same of the client that it costs most, mean over the seeds."""
    backdoor: float | None = None


def cell(options: Mapping[str, Any], attack: str, hostile: int) -> dict[str, Any]:
    """One run as plain values."""
    found = attacked_run(make_config(options), attack, hostile)
    return {"accuracy": found.accuracy, "cluster": found.cluster, "backdoor": found.backdoor}


def attack_table(
    options: Mapping[str, Any],
    scenarios: Sequence[str],
    methods: Sequence[str],
    attacks: Sequence[str],
    rules: Sequence[str],
    hostile: Sequence[int],
    seeds: Sequence[int],
    cells: Cells,
) -> list[AttackResult]:
    """Every scenario × method × rule × attack × number of hostile clients; what `cells` has is not run again."""
    for attack in attacks:
        find_attack(attack)
    plan: dict[tuple[str, str, str, str, int], list[Jobs]] = {}
    for scenario, method, rule, attack, count in product(scenarios, methods, rules, attacks, hostile):
        shown = 0 if attack == "none" else count
        named = f"expect_hostile={count}" if rule == EXPECTED else rule
        own = dict(options) | {"scenario": scenario, "method": method}
        ways = [(rule, attack), (rule, "none"), ("mean", "none")]
        plan[scenario, method, named, attack, shown] = [_jobs(own, *way, count, seeds) for way in ways]
    jobs = {key: job for ways in plan.values() for runs in ways for key, job in runs.items()}
    found = cells.many(jobs) if cells.workers != 1 else {key: cells.one(key, job) for key, job in jobs.items()}
    return [_averaged(row, *([found[key] for key in runs] for runs in ways)) for row, ways in plan.items()]


def _jobs(options: Mapping[str, Any], rule: str, attack: str, count: int, seeds: Sequence[int]) -> Jobs:
    """The runs of all seeds by their keys."""
    hostile = 0 if attack == "none" else count
    chosen: dict[str, Any] = {"expect_hostile": count} if rule == EXPECTED else {"aggregate": rule}
    found: Jobs = {}
    for seed in seeds:
        asked = dict(options) | chosen | {"seed": seed}
        key = " ".join(f"{name}={asked[name]}" for name in sorted(asked))
        found[f"{key} {attack} {hostile}"] = partial(cell, asked, attack, hostile)
    return found


def _averaged(
    row: tuple[str, str, str, str, int],
    own: Sequence[Mapping[str, Any]],
    quiet: Sequence[Mapping[str, Any]],
    plain: Sequence[Mapping[str, Any]],
) -> AttackResult:
    """The row with means over the runs of all seeds: under attack, without, and without by the weighted mean."""
    drops = [_drops(q["accuracy"], o["accuracy"]) for o, q in zip(own, quiet, strict=True)]
    prices = [_drops(p["accuracy"], q["accuracy"]) for q, p in zip(quiet, plain, strict=True)]
    rates = [one["backdoor"] for one in own if one["backdoor"] is not None]
    return AttackResult(
        *row,
        accuracy=fmean(fmean(one["accuracy"].values()) for one in own),
        lost=fmean(map(fmean, drops)),
        most=max(map(fmean, drops)),
        worst=fmean(map(max, drops)),
        partition=min(_likeness(q["cluster"], o["cluster"]) for o, q in zip(own, quiet, strict=True)),
        price=fmean(map(fmean, prices)),
        price_worst=fmean(map(max, prices)),
        backdoor=fmean(rates) if rates else None,
    )


def _drops(before: Mapping[str, float], after: Mapping[str, float]) -> list[float]:
    """What each client of `after` lost."""
    return [before[client] - value for client, value in after.items()]


def _likeness(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """The adjusted Rand index between two partitions of the clients of `after`."""
    return adjusted_rand_index([before[client] for client in after], list(after.values()))


def as_markdown(results: Iterable[AttackResult]) -> str:
    """The table as text, in points; `lost` is the mean over honest clients, `worst` the one that lost most."""
    lines = [
        "| scenario | method | rule | price | to the worst | attack | hostile | accuracy % | lost | with a seed | "
        "worst | partition | backdoor % |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lost = [f"{100 * number:.1f}" for number in (r.lost, r.most, r.worst)] + [f"{r.partition:.2f}"]
        rate = "" if r.backdoor is None else f"{100 * r.backdoor:.0f}"
        cells = [r.scenario, r.method, r.rule, f"{100 * r.price:.1f}", f"{100 * r.price_worst:.1f}", r.attack]
        cells += [str(r.hostile), f"{100 * r.accuracy:.1f}", *(lost if r.attack != "none" else [""] * 4), rate]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
