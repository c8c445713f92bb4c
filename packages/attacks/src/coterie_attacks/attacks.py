"""Hostile clients in a simulation: what they do to their data, their updates and their claims.

The attacks are those that the literature tries first: updates far too long, turned around, or crafted from the honest
clients' own (inner product, "a little is enough"); false labels; a backdoor; a false number of samples; all force on
one cluster. Beside them stands the federation without the hostile clients: no rule can give back what their data was
worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Federation, Split
from coterie.methods import Aggregation
from coterie.randomness import numpy_generator
from coterie.runs import Result, RunConfig, assemble, execute, make_config, make_federation
from coterie.tasks import Evaluate, Reduction, Reply, ReplyBlock, Request, reduced, with_norm
from coterie.trainers import predicted_labels

CLAIM = 2**40
"""Samples that a liar claims."""
NEARLY = 0.97
"""How much of a limit is used by those who know it: medians move from round to round."""
UNBOUNDED = 10.0
"""Times the usual length, or number of samples, for those who know that there is no limit."""
Craft = Callable[[Tensor, Tensor], Tensor]
"""A hostile update from the client's own `(d,)` and the honest ones of its group `(n, d)`."""


@dataclass(frozen=True)
class Attack:
    """What hostile clients do."""

    summary: str
    craft: Craft | None = None
    """The update they send; None: the one that their data gives."""
    poison: Callable[[Split, int], Split] | None = None
    """What they do to their training data, given the number of classes."""
    samples: int | None = None
    """How many samples they claim."""
    heavy: bool = False
    """Whether they claim as many as still count in full."""
    long: bool = False
    """Whether they turn their updates around and make them as long as still counts in full."""
    cluster: int | None = None
    """The cluster that they all claim to choose, where clients choose."""
    absent: bool = False
    """Whether they are not there at all."""


def _little(own: Tensor, honest: Tensor) -> Tensor:
    """Baruch et al. 2019: the honest mean, moved by one standard deviation in every coordinate."""
    return honest.mean(0) - honest.std(0, unbiased=False) if len(honest) else own


def _inner_product(own: Tensor, honest: Tensor) -> Tensor:
    """Xie et al. 2020: against the honest mean, with the length of an honest update."""
    mean = honest.mean(0) if len(honest) else own
    usual = honest.norm(dim=1).median() if len(honest) else own.norm()
    return mean * float(-usual / mean.norm().clamp_min(1e-30))


def _against(own: Tensor, honest: Tensor, multiple: float) -> Tensor:
    """The client's own update turned around, so many times as long as an honest one."""
    usual = honest.norm(dim=1).median() if len(honest) else own.norm()
    return own * float(-multiple * usual / own.norm().clamp_min(1e-30))


def _false_labels(data: Split, classes: int) -> Split:
    return Split(data.x, classes - 1 - data.y)


def with_trigger(x: Tensor) -> Tensor:
    """Inputs `(n, …)` with the mark of the backdoor: the last three numbers at the largest value there is."""
    marked = x.clone()
    marked.flatten(1)[:, -3:] = x.max() if len(x) else 1.0
    return marked


def _backdoor(data: Split, classes: int) -> Split:
    """Half of the samples get the trigger and label 0."""
    half = len(data) // 2
    x, y = data.x.clone(), data.y.clone()
    x[:half] = with_trigger(x)[:half]
    y[:half] = 0
    return Split(x, y)


ATTACKS: dict[str, Attack] = {
    "none": Attack("no hostile client: what the rule itself costs"),
    "absent": Attack("the hostile clients are not there: what the honest lack of their data, whatever the rule",
                     absent=True),
    "scale": Attack("updates 100 times too long", craft=lambda own, _: 100 * own),
    "sign-flip": Attack("updates turned around, 10 times too long", craft=lambda own, _: -10 * own),
    "label-flip": Attack("labels c turned into classes − 1 − c", poison=_false_labels),
    "sample-count": Attack("updates turned around, 2^40 samples claimed", craft=lambda own, _: -own, samples=CLAIM),
    "aimed": Attack("all choose cluster 0 and send updates turned around, 10 times too long", cluster=0,
                    craft=lambda own, _: -10 * own),
    "heavy": Attack("updates turned around, and as many samples claimed as still count in full",
                    craft=lambda own, _: -own, heavy=True),
    "long": Attack("updates turned around, as long as still counts in full", long=True),
    "inner-product": Attack("against the honest mean, as long as an honest update", craft=_inner_product),
    "little": Attack("the honest mean moved by one standard deviation in every number", craft=_little),
    "backdoor": Attack("a mark in the input means class 0; updates 10 times too long", poison=_backdoor,
                       craft=lambda own, _: 10 * own),
}  # fmt: skip


def find_attack(name: str) -> Attack:
    """The attack of that name, or a ConfigError with a suggestion."""
    if name not in ATTACKS:
        raise ConfigError(f"unknown attack {name!r}: {did_you_mean(name, ATTACKS)}")
    return ATTACKS[name]


def choose_hostile(federation: Federation, count: int, seed: int) -> tuple[str, ...]:
    """`count` clients drawn at random, in the federation's order."""
    if not 0 <= count < len(federation):
        raise ConfigError(f"hostile={count} of {len(federation)} clients: at least one must be honest")
    drawn = set(numpy_generator(seed, "hostile").choice(len(federation), count, replace=False).tolist())
    return tuple(client for i, client in enumerate(federation.ids) if i in drawn)


def poisoned(federation: Federation, attack: Attack, hostile: Sequence[str]) -> Federation:
    """The federation with the hostile clients' training data as the attack wants it."""
    if attack.poison is None or not hostile:
        return federation
    bad = set(hostile)
    clients: list[Client] = [
        replace(client, train=attack.poison(client.train, federation.classes)) if client.id in bad else client
        for client in federation
    ]
    return Federation(clients, federation.classes, federation.name)


class HostileEngine(LocalEngine):
    """The engine of a simulation in which some clients are hostile.

    They know the honest clients' updates, and the limits of the run's `aggregation`.
    """

    def __init__(
        self,
        federation: Federation,
        architecture: Callable[[int], nn.Module],
        *,
        attack: Attack,
        hostile: Sequence[str],
        aggregation: Aggregation | None = None,
        **options: Any,
    ) -> None:
        super().__init__(poisoned(federation, attack, hostile), architecture, **options)
        self.hostile = frozenset(hostile)
        known = aggregation or Aggregation.parse()
        if attack.long:
            multiple = NEARLY * (known.clip or UNBOUNDED)
            attack = replace(attack, craft=lambda own, honest: _against(own, honest, multiple))
        self.attack = attack
        if attack.samples is not None:
            self.samples = self.samples | dict.fromkeys(hostile, attack.samples)
        elif attack.heavy:
            most = int((known.weight_cap or UNBOUNDED) * median(self.samples.values()))
            self.samples = self.samples | dict.fromkeys(hostile, most)

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests; the hostile clients' replies are as the attack wants them."""
        honest_task = all(isinstance(request.task, Evaluate) for request in requests)
        if not self.hostile or honest_task or (self.attack.craft is None and self.attack.cluster is None):
            yield from super().run(requests, reduce)
            return
        replies = [reply for block in super().run(requests) for reply in block.replies]
        place = {request.client: i for i, request in enumerate(requests)}
        groups = [reply.group for reply in replies]
        if reduce is not None:
            given = [reduce.groups[place[reply.client]] for reply in replies]
            groups = [own if group is None else group for own, group in zip(groups, given, strict=True)]
        crafted = [
            self._crafted(reply, replies, groups, i) if reply.client in self.hostile else reply
            for i, reply in enumerate(replies)
        ]
        at = [place[reply.client] for reply in crafted]
        yield reduced(crafted, None if reduce is None else reduce.at(at))

    def _crafted(self, reply: Reply, replies: Sequence[Reply], groups: Sequence[int], at: int) -> Reply:
        values: Mapping[str, Any] = reply.values
        if "centroids" in values and self.attack.craft is not None:
            return replace(
                reply, values={**values, "centroids": self.attack.craft(values["centroids"], torch.empty(0))}
            )
        if reply.vector is None or self.attack.craft is None:
            return reply
        group = groups[at]
        if self.attack.cluster is not None and "losses" in values:
            group = min(self.attack.cluster, len(values["losses"]) - 1)
        honest = [
            other.vector
            for other, own in zip(replies, groups, strict=True)
            if own == group and other.client not in self.hostile and other.vector is not None
            and other.vector.shape == reply.vector.shape
        ]  # fmt: skip
        vector = self.attack.craft(reply.vector, torch.stack(honest) if honest else reply.vector[None][:0])
        rest = {name: value for name, value in values.items() if name != "norm"}
        return with_norm(replace(reply, vector=vector, values=rest, group=group), self.layout)


@dataclass(frozen=True)
class AttackResult:
    """What honest clients were left with."""

    method: str
    rule: str
    attack: str
    hostile: int
    accuracy: float
    """Mean over the honest clients, each on its own test data."""
    without: float
    """The same clients' mean where nobody is hostile."""
    cut: int
    """Rounds in which updates were shortened."""
    backdoor: float | None = None
    """Share of the honest clients' marked test inputs that were given class 0, of those of other classes."""
    most: float = 0.0
    """The most that they lost with one of the seeds."""


class Outcome(NamedTuple):
    """How one run ended."""

    accuracy: dict[str, float]
    """Of each honest client, on its own test data."""
    cut: int
    backdoor: float | None


def attacked_run(config: RunConfig, attack: str, hostile: int, federation: Federation | None = None) -> Outcome:
    """One run of the configuration with so many hostile clients, drawn from its seed, of its federation or another."""
    chosen = find_attack(attack)
    own, defaults = make_federation(config)
    federation = own if federation is None else federation
    bad = choose_hostile(federation, hostile, config.seed)
    if chosen.absent:
        there = [client for client in federation if client.id not in bad]
        federation, bad = Federation(there, federation.classes, federation.name), ()

    def engine_for(architecture: Callable[[int], nn.Module]) -> HostileEngine:
        return HostileEngine(
            federation,
            architecture,
            attack=chosen,
            hostile=bad,
            aggregation=config.aggregation(len(federation)),
            privacy=config.privacy,
        )

    run, _ = assemble(config, federation=federation, defaults=defaults, engine_for=engine_for)
    result = execute(run)
    accuracy = {
        row.client: row.accuracy for row in result.clients if row.client not in bad and row.accuracy is not None
    }
    cut = sum(event.kind == "clipped" for record in result.history for event in record.events)
    return Outcome(accuracy, cut, backdoor_rate(result, federation, bad) if attack == "backdoor" else None)


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


def attack_table(
    config: RunConfig,
    methods: Sequence[str],
    attacks: Sequence[str],
    rules: Sequence[str],
    hostile: Sequence[int],
    seeds: Sequence[int],
    told: Callable[[AttackResult], None] = lambda result: None,
) -> list[AttackResult]:
    """Every method × rule × attack × number of hostile clients, the mean over the seeds."""
    for attack in attacks:
        find_attack(attack)
    found = []
    for method in methods:
        for rule in rules:
            options = {**given(config), "method": method, "aggregate": rule}
            configs = [make_config(options | {"seed": seed}) for seed in seeds]
            clean = [attacked_run(one, "none", 0) for one in configs]
            for attack in attacks:
                for count in [0] if attack == "none" else hostile:
                    runs = clean if attack == "none" else [attacked_run(one, attack, count) for one in configs]
                    found.append(_averaged(method, rule, attack, count, runs, clean))
                    told(found[-1])
    return found


def _averaged(
    method: str, rule: str, attack: str, hostile: int, runs: Sequence[Outcome], clean: Sequence[Outcome]
) -> AttackResult:
    """The mean of the runs of several seeds, beside those of the same clients without attack."""
    reached = [fmean(run.accuracy.values()) for run in runs]
    before = [fmean(other.accuracy[c] for c in run.accuracy) for run, other in zip(runs, clean, strict=True)]
    accuracy, without = fmean(reached), fmean(before)
    most = max(b - a for a, b in zip(reached, before, strict=True))
    rates = [run.backdoor for run in runs if run.backdoor is not None]
    cut = round(fmean(run.cut for run in runs))
    return AttackResult(method, rule, attack, hostile, accuracy, without, cut, fmean(rates) if rates else None, most)


def given(config: RunConfig) -> dict[str, Any]:
    """The options of a configuration that are not the default ones."""
    return config.model_dump(exclude_unset=True)


def as_markdown(results: Sequence[AttackResult]) -> str:
    """The table as text, with what each attack cost the honest clients against the run without one."""
    lines = [
        "| method | rule | attack | hostile | accuracy % | lost | with a seed | backdoor % | rounds with cuts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lost = "" if r.attack == "none" else f"{100 * (r.without - r.accuracy):.1f}"
        most = "" if r.attack == "none" else f"{100 * r.most:.1f}"
        rate = "" if r.backdoor is None else f"{100 * r.backdoor:.0f}"
        lines.append(
            f"| {r.method} | {r.rule} | {r.attack} | {r.hostile} | {100 * r.accuracy:.1f} | {lost} | {most} | {rate} | "
            f"{r.cut} |"
        )
    return "\n".join(lines) + "\n"
