"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020): each client chooses the model that fits it best, then improves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.errors import ConfigError
from coterie.messages import Order
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.ifca_init import perturbed_models, random_models, sent_numbers, share, worst_fitted_models
from coterie.methods.ifca_pruning import Merge, cheapest_merge
from coterie.methods.server import Server, Tally, moved
from coterie.parameters import gather, scatter
from coterie.snapshot import saved
from coterie.tasks import Choose, Evaluate, Gradient, Train

SETTLED = 0.05
"""Choices count as settled while at most this share of a round's participants moves."""


@saved
@dataclasses.dataclass(frozen=True)
class Attempt:
    """One run of IFCA; with restarts there are several side by side."""

    models: Tensor
    """The cluster models `(k, d)`."""
    choices: dict[str, int]
    """The cluster each client chose when it last took part."""
    latest: list[str]
    """Who took part in the last round."""
    loss: float
    """Mean training loss of the last round's participants."""
    first_loss: float
    """The same in the first round, before anything was learned."""
    steady: int
    """Rounds in a row in which nobody moved to another cluster or chose for the first time."""
    settled: int
    """Rounds in a row in which nearly nobody did."""
    unchecked: int
    """Rounds since all the models were last sent to everybody."""
    idle: list[int]
    """For each cluster, rounds in a row in which nobody chose it."""

    @classmethod
    def fresh(cls, models: Tensor) -> Attempt:
        """An attempt that has not begun."""
        return cls(models, {}, [], float("inf"), float("inf"), 0, 0, 0, [0] * len(models))


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """All restarts, each with its own models."""

    attempts: list[Attempt]

    @property
    def best(self) -> int:
        """The attempt with the lowest training loss in its last round."""
        return min(range(len(self.attempts)), key=lambda r: self.attempts[r].loss)


@dataclasses.dataclass
class Harvest:
    """What a round's replies add up to."""

    tallies: list[Tally]
    choices: dict[str, int] = dataclasses.field(default_factory=dict)
    losses: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Losses under all k models, of those who were sent all."""
    mean_loss: float = float("inf")


@method("ifca")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IFCA:
    """k models; each client picks the one with its lowest training loss and helps to improve it (Algorithm 1)."""

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = 2
    """Number of clusters, or "auto": begin with `k_max`, drop clusters nobody chooses and merge redundant ones."""
    averaging: Literal["model", "gradient"] = "model"
    """Option II (clients train, models are averaged) or option I (one gradient step a round, by the server)."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in a mean: one, as in the paper, or its number of samples."""
    init: Literal["random", "perturbed", "k-means++"] = "random"
    """Independent draws, one draw perturbed, or each next model from the client that the others fit worst."""
    perturbation: PositiveFloat = 0.1
    """For init="perturbed": noise relative to the size of each tensor's numbers."""
    seeding_rounds: PositiveInt = 5
    """For init="k-means++": how many rounds' training a seeding client does by itself."""
    restarts: PositiveInt = 1
    """Independent attempts side by side; the one with the lowest last training loss counts. All are communicated."""
    clustered: str | tuple[str, ...] = "all"
    """Layers that each cluster has for itself ("last" or names); all others are averaged over everybody."""
    stable_after: PositiveInt | None = None
    """Send each client only its own cluster's model once nobody has moved for so many rounds; None: always all k."""
    recheck_every: PositiveInt = 10
    """While that saving is on, all models are sent, and choices made anew, every so many rounds."""
    k_max: PositiveInt = 8
    """For k="auto": how many clusters to begin with (at most one a client)."""
    patience: PositiveInt = 5
    """For k="auto": rounds without a taker before a cluster is dropped, and of settled choices before any merge."""
    merge_below: NonNegativeFloat = 0.3
    """For k="auto": merge a cluster whose clients lose at most this share of what training gained; 0 never merges."""

    def start(self, server: Server) -> State:
        k = min(self.k_max, len(server.clients)) if self.k == "auto" else self.k
        if k > len(server.clients):
            raise ConfigError(f"k={k} with {len(server.clients)} clients: ask for at most one cluster a client")
        shared = self.shared(server)
        return State([Attempt.fresh(share(self._initial(server, k, r), shared)) for r in range(self.restarts)])

    def _initial(self, server: Server, k: int, restart: int) -> Tensor:
        if self.init == "random":
            return random_models(server, k, restart)
        if self.init == "perturbed":
            return perturbed_models(server, k, restart, self.perturbation)
        return worst_fitted_models(server, k, restart, self.seeding_rounds)

    def shared(self, server: Server) -> tuple[slice, ...]:
        """The places of the layers that all clusters share (section 4.1); none when every layer is per cluster."""
        if self.clustered == "all":
            return ()
        names = (self.clustered,) if isinstance(self.clustered, str) else self.clustered
        known = ", ".join(server.engine.layout.layers)
        if not any(names):
            raise ConfigError(f"clustered={self.clustered!r} leaves nothing to cluster: name some of {known}, or 'all'")
        rest = server.engine.layout.complement(server.engine.layout.select(names))
        if not rest:
            raise ConfigError(f"clustered={self.clustered!r} leaves nothing to share: name fewer of {known}, or 'all'")
        return rest

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        done = [self._round_of(attempt, t, server) for attempt in state.attempts]
        after = State([attempt for attempt, _ in done])
        return after, done[after.best][1]

    def _round_of(self, attempt: Attempt, t: int, server: Server) -> tuple[Attempt, Info]:
        steady = self._is_steady(attempt)
        harvest = self._exchange(attempt, t, server, steady)
        before, now = attempt.choices, harvest.choices
        moves = [c for c in now if c in before and before[c] != now[c]]
        first_timers = [c for c in now if c not in before]
        present = set(server.clients)  # a client that left chooses anew if it returns
        unsure = len(moves) + (0 if steady else len(first_timers))
        after = Attempt(
            models=self._averaged(attempt.models, harvest.tallies, server, t),
            choices={c: j for c, j in (before | now).items() if c in present},
            latest=list(now),
            loss=harvest.mean_loss if now else attempt.loss,
            first_loss=attempt.first_loss if before else _mean_lowest(harvest.losses),
            steady=0 if unsure else attempt.steady + 1,
            settled=attempt.settled + 1 if unsure <= SETTLED * len(now) else 0,
            unchecked=attempt.unchecked + 1 if steady else 0,
            idle=[0 if tally.count else n + 1 for n, tally in zip(attempt.idle, harvest.tallies, strict=True)],
        )
        events = []
        if moves:
            details = {"clients": len(moves), "participants": len(now)}
            events.append(Event("moved", f"{len(moves)} of {len(now)} participants changed cluster", details))
        if self._is_steady(after) and not self._is_steady(attempt) and not attempt.unchecked:
            text = f"nobody moved for {after.steady} rounds: each client is sent its own model only"
            events.append(Event("stable", text, {"rounds": after.steady}))
        tallies = harvest.tallies
        if self.k == "auto":
            after, pruned, kept = self._pruned(after, harvest)
            events += pruned
            tallies = [tallies[j] for j in kept]
            if t == server.rounds:
                remain = len(set(after.choices.values()))
                details = {"clusters": remain, "began": len(attempt.models)}
                events.append(Event("clusters", f"{remain} clusters remain", details))
        return after, Info(_cluster_infos(after, tallies, server.engine.layout.trainable), events)

    def _is_steady(self, attempt: Attempt) -> bool:
        """Does each client of the next round get only the model it chose before?"""
        if self.stable_after is None or attempt.steady < self.stable_after:
            return False
        return attempt.unchecked < self.recheck_every - 1

    def _exchange(self, attempt: Attempt, t: int, server: Server, steady: bool) -> Harvest:
        """Ask the participants and add up their replies by cluster."""
        harvest = Harvest([Tally(attempt.models.shape[1]) for _ in attempt.models])
        orders = list(self._orders(attempt, t, server, steady))
        known = [0 if isinstance(order.task, Choose) else attempt.choices[order.client] for order in orders]
        for reply in server.total(orders, harvest.tallies, self.weighting, known):
            harvest.choices[reply.client] = reply.group
            if "losses" in reply.values:
                harvest.losses[reply.client] = reply.values["losses"]
        weight = sum(tally.weight for tally in harvest.tallies)
        if weight:
            harvest.mean_loss = sum(tally.loss for tally in harvest.tallies) / weight
        return harvest

    def _orders(self, attempt: Attempt, t: int, server: Server, steady: bool) -> Iterator[Order]:
        """Lines 4-10: choose and work; when choices are steady, just work from the cluster's own model."""
        how = server.schedule.at(t) if self.averaging == "model" else None
        sent = sent_numbers(server.engine.layout, self.shared(server), len(attempt.models))
        rows = [row.clone() for row in attempt.models]
        for client in server.participants(t):
            seed = server.seed_of(t, client)
            if not steady or client not in attempt.choices:
                yield Order(client, Choose(attempt.models, how, seed, sent))
            elif how is not None:
                yield Order(client, Train(rows[attempt.choices[client]], how, seed))
            else:
                yield Order(client, Gradient(rows[attempt.choices[client]]))

    def _averaged(self, models: Tensor, tallies: list[Tally], server: Server, t: int) -> Tensor:
        """Lines 13-14: the models after the round; shared layers follow everybody, an empty cluster stays."""
        weight = sum(tally.weight for tally in tallies)
        if not weight:
            return models
        shared = self.shared(server)
        everybody = gather(sum((tally.total for tally in tallies), torch.zeros(())) / weight, shared)
        after = []
        for model, tally in zip(models, tallies, strict=True):
            if self.averaging == "gradient":
                # Option I divides by all participants, not by those of the cluster.
                step, lr = tally.total / weight, -server.schedule.at(t).lr
            else:
                step, lr = tally.mean(), 1.0
            scatter(step, shared, everybody)
            after.append(moved(model, step, lr))
        return torch.stack(after)

    def _pruned(self, attempt: Attempt, harvest: Harvest) -> tuple[Attempt, list[Event], list[int]]:
        """The attempt without clusters that nobody has chosen for long, at most one redundant cluster merged.

        Also what happened, and the former numbers of the clusters that remain.
        """
        merge = self._redundant(attempt, harvest)
        choices = dict(attempt.choices)
        if merge is not None:
            choices = {client: merge.into if j == merge.gone else j for client, j in choices.items()}
        unwanted = [j for j, n in enumerate(attempt.idle) if n >= self.patience and j not in choices.values()]
        gone = {*unwanted, *([merge.gone] if merge else [])}
        kept = [j for j in range(len(attempt.models)) if j not in gone]
        place = {j: i for i, j in enumerate(kept)}
        after = dataclasses.replace(
            attempt,
            models=attempt.models[kept],
            choices={client: place[j] for client, j in choices.items()},
            idle=[attempt.idle[j] for j in kept],
        )
        events = []
        if merge is not None:
            share_lost = f"its clients lose {100 * merge.lost:.1f} % of what training gained"
            text = f"cluster {merge.gone} merged into {merge.into}: {share_lost}; {len(kept)} clusters remain"
            events.append(Event("merged", text, merge._asdict() | {"remain": len(kept)}))
        if unwanted:
            text = f"nobody chose {len(unwanted)} clusters for {self.patience} rounds: dropped; {len(kept)} remain"
            events.append(Event("dropped", text, {"dropped": unwanted, "remain": len(kept)}))
        return after, events, kept

    def _redundant(self, attempt: Attempt, harvest: Harvest) -> Merge | None:
        """The merge to make now, if choices have settled and one is cheap enough."""
        if not self.merge_below or attempt.settled < self.patience or not harvest.losses:
            return None
        chosen = [harvest.choices[client] for client in harvest.losses]
        merge = cheapest_merge(list(harvest.losses.values()), chosen, attempt.first_loss)
        return merge if merge is not None and merge.lost <= self.merge_below else None

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with the model of its lowest training loss; clusters without a client have no place.

        Those who took part in the last round keep the choice they made there; the others are asked now, since
        the models may have changed much since they were last seen, if ever.
        """
        attempt = state.attempts[state.best]
        choices = {client: attempt.choices[client] for client in attempt.latest if client in attempt.choices}
        absent = [client for client in server.clients if client not in choices]
        for reply in server.ask_all(absent, Evaluate(attempt.models, "train")):
            choices[reply.client] = int(np.argmin(np.nan_to_num(reply.values["loss"], nan=np.inf)))
        for client in absent:
            choices.setdefault(client, attempt.choices.get(client, 0))
        members = [[c for c in server.clients if choices[c] == j] for j in range(len(attempt.models))]
        taken = [j for j, clients in enumerate(members) if clients]
        return Assignment([attempt.models[j] for j in taken], [members[j] for j in taken])


def _mean_lowest(losses: dict[str, list[float]]) -> float:
    """The clients' mean loss under the best model each was offered."""
    return float(np.mean([min(row) for row in losses.values()])) if losses else float("inf")


def _cluster_infos(attempt: Attempt, tallies: list[Tally], trainable: int) -> list[ClusterInfo]:
    """What was seen of each cluster that has clients, in the order of the assignment."""
    members = list(attempt.choices.values())
    return [
        ClusterInfo(members.count(j), tally.mean_loss(), float(tally.mean()[:trainable].norm()), tally.max_norm)
        for j, tally in enumerate(tallies)
        if j in members
    ]
