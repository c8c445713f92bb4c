"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020): each client chooses the model that fits it best, then improves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.averaging import cluster_info
from coterie.methods.base import Assignment, ClusterInfo, Event, Hidden, Info, method
from coterie.methods.ifca_growing import GrowingState, growing_assignment, growing_round, place_growing, start_growing
from coterie.methods.ifca_hidden import check_hidden, hidden_round, kept_name
from coterie.methods.ifca_init import perturbed_models, random_models, share, worst_fitted_models
from coterie.methods.needs import Needs
from coterie.methods.placing import lowest_loss
from coterie.methods.published import Departure
from coterie.methods.server import Server
from coterie.parameters import gather, scatter
from coterie.snapshot import saved
from coterie.tasks import Choose, Evaluate, Gradient, HeldOut, Request, Train
from coterie.trainers.base import Training

SETTLED = 0.05
"""Choices count as settled while at most this share of a round's participants moves."""


@saved
class Restart:
    """One run of IFCA; with restarts there are several side by side."""

    models: Tensor
    """The cluster models `(k, d)`."""
    choices: dict[str, int]
    """The cluster each client chose when it last took part."""
    latest: list[str]
    """Who took part in the last round."""
    loss: float
    """Mean training loss of the last round's participants."""
    steady: int
    """Rounds in a row in which nobody moved to another cluster or chose for the first time."""
    unchecked: int
    """Rounds since all the models were last sent to everybody."""
    idle: list[int]
    """For each cluster, rounds in a row in which nobody chose it."""
    sizes: list[int] = dataclasses.field(default_factory=list)
    """With hidden choices: how many clients chose each model in the last round; `choices` is empty then."""

    @classmethod
    def fresh(cls, models: Tensor) -> Restart:
        """A restart that has not begun."""
        return cls(models, {}, [], float("inf"), 0, 0, [0] * len(models))


@saved
class State:
    """All restarts, each with its own models."""

    runs: list[Restart]

    @property
    def best(self) -> int:
        """The restart with the lowest training loss in its last round."""
        return min(range(len(self.runs)), key=lambda r: self.runs[r].loss)


@dataclasses.dataclass
class RoundStats:
    """What a round's replies add up to."""

    sums: list[WeightedSum]
    choices: dict[str, int] = dataclasses.field(default_factory=dict)
    mean_loss: float = float("inf")


@method("ifca")
class IFCA:
    """k models; each client picks the one with its lowest training loss and helps to improve it (Algorithm 1)."""

    server_steps: ClassVar[bool] = True

    departures: ClassVar[tuple[Departure, ...]] = (
        Departure("init", "random", "models begin with clients that the others fit worst: random ones often share one"),
    )

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = 2
    """Number of clusters, or "auto": begin with one model, and make two of one where held-out data says that those who
    chose it are surely better served apart."""
    averaging: Literal["model", "gradient"] = "model"
    """Option II (clients train, models are averaged) or option I (one gradient step per round, by the server)."""
    gradient_batch: PositiveInt | None = None
    """Option I: samples that a client takes its gradient on; None is all of them, as in the paper."""
    divide_by: Literal["participants", "clients"] = "participants"
    """Option I divides the sum of gradients by m. With everybody there that is the number of clients; below full
    participation the paper does not say: dividing by the participants keeps the step's size, by all clients shrinks it
    with the participation."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in a mean: one, as in the paper, or its number of samples."""
    init: Literal["auto", "random", "perturbed", "k-means++"] = "auto"
    """Independent draws (random, as in the paper), one draw perturbed, or each next model from the client that the
    others fit worst (k-means++). auto is k-means++, but random where no single client is to decide: under secure sums,
    differential privacy and robust aggregation, and with one model."""
    perturbation: PositiveFloat = 0.1
    """For init="perturbed": noise relative to the size of each tensor's numbers."""
    seeding_rounds: Annotated[int, Field(ge=1, le=1000)] = 5
    """For k-means++: how many rounds' training a seeding client does by itself."""
    restarts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Independent restarts side by side; the one with the lowest last training loss counts. All are communicated."""
    clustered: str | tuple[str, ...] = "all"
    """Layers that each cluster has for itself ("last" or names); all others are averaged over everybody."""
    stable_after: PositiveInt | None = None
    """Send each client only its own cluster's model once nobody has moved for so many rounds; None: always all k."""
    recheck_every: PositiveInt = 10
    """While that saving is on, all models are sent, and choices made again, every so many rounds."""
    patience: PositiveInt = 5
    """Rounds without a taker after which an event says so."""
    hide_choice: bool = False
    """On secure sums: clients send a block for every model, zeros but for the chosen one, so that nobody learns who
    chose what. The records hold sizes and means over all clients only."""

    @property
    def needs(self) -> Needs:
        """Sums by choice; single clients' updates where k-means++ makes the first models, or models grow."""
        unnoised = ""
        if self.k == "auto" or self.restarts > 1 or self.stable_after or self.init == "k-means++":
            unnoised = "k='auto', restarts, stable_after and init='k-means++' decide by exact losses or choices"
        elif self.averaging != "model" or self.clustered != "all":
            unnoised = "shared layers and gradients are divided by exact numbers of clients"
        return Needs(
            "must" if self.k == "auto" else "may",
            (HeldOut,) if self.k == "auto" else (),
            "hidden" if self.hide_choice else "seen",
            unnoised=unnoised,
            instead="k=auto compares halves of clients' data, give k",
        )

    def start(self, server: Server) -> State | GrowingState:
        if self.hide_choice:
            self._check_hidden(server)
        if self.k == "auto":
            self._check_growing()
            return start_growing(server)
        k = self.k
        if k > len(server.clients):
            raise ConfigError(f"k={k} with {len(server.clients)} clients: ask for at most one cluster per client")
        if self.averaging == "model" and (self.gradient_batch is not None or self.divide_by != "participants"):
            raise ConfigError("gradient_batch and divide_by are of option I: give averaging=gradient too")
        if self.averaging == "gradient" and (how := server.schedule.at(1)).optimizer != "sgd":
            raise ConfigError(f"averaging=gradient sends gradients: clients take no steps, leave out {how.optimizer}")
        if self.clustered != "all" and server.optimizer.rule != "none":
            raise ConfigError(
                f"server_optimizer={server.optimizer.rule!r} does not go with clustered={self.clustered!r}: the "
                "layers that clusters share would part, use clustered='all'"
            )
        shared = self.shared(server)
        return State([Restart.fresh(share(self._initial(server, k, r), shared)) for r in range(self.restarts)])

    def _check_growing(self) -> None:
        """Refuse options that have no effect, or none that is known, on models that become more."""
        wrong = {
            "averaging=gradient": self.averaging == "gradient",
            f"restarts={self.restarts}": self.restarts > 1,
            f"clustered={self.clustered}": self.clustered != "all",
            f"stable_after={self.stable_after}": self.stable_after is not None,
            f"init={self.init}": self.init != "auto",
        }
        if found := [name for name, given in wrong.items() if given]:
            raise ConfigError(f"k=auto with {found[0]}: it begins with one model that grows, leave that out or give k")

    def _check_hidden(self, server: Server) -> None:
        """Refuse what needs to know who chose what, or shows it."""
        check_hidden(server)
        wrong = {
            "k=auto": self.k == "auto",
            f"stable_after={self.stable_after}": self.stable_after is not None,
            "weighting=samples": self.weighting == "samples",
            "averaging=gradient": self.averaging == "gradient",
            "init=k-means++": self.init == "k-means++",
        }
        if found := [name for name, given in wrong.items() if given]:
            raise ConfigError(
                f"hide_choice=True with {found[0]}: that needs clients' own choices or losses, leave it out"
            )

    def _initial(self, server: Server, k: int, restart: int) -> Tensor:
        hidden = server.engine.secure or server.user_privacy is not None or server.aggregation.rule != "mean"
        if self.init == "random" or (self.init == "auto" and (hidden or k == 1)):
            return random_models(server, k, restart)
        if self.init == "perturbed":
            return perturbed_models(server, k, restart, self.perturbation)
        return worst_fitted_models(server, k, restart, self.seeding_rounds)

    def shared(self, server: Server) -> tuple[slice, ...]:
        """The places of the layers that all clusters share (section 4.1); none when every layer is per cluster."""
        if self.clustered == "all":
            return ()
        names = (self.clustered,) if isinstance(self.clustered, str) else self.clustered
        known = ", ".join(server.layout.layers)
        if not any(names):
            raise ConfigError(f"clustered={self.clustered!r} leaves nothing to cluster: name some of {known}, or 'all'")
        rest = server.layout.complement(server.layout.select(names))
        if not rest:
            raise ConfigError(f"clustered={self.clustered!r} leaves nothing to share: name fewer of {known}, or 'all'")
        return rest

    def round(self, state: State | GrowingState, t: int, server: Server) -> tuple[State | GrowingState, Info]:
        if isinstance(state, GrowingState):
            return growing_round(state, t, server, self.weighting)
        done = [self._round_of(restart, r, t, server) for r, restart in enumerate(state.runs)]
        after = State([restart for restart, _ in done])
        return after, done[after.best][1]

    def _round_of(self, restart: Restart, r: int, t: int, server: Server) -> tuple[Restart, Info]:
        if self.hide_choice:
            return self._hidden_round_of(restart, r, t, server)
        steady = self._is_steady(restart)
        stats = self._exchange(restart, t, server, steady)
        before, now = restart.choices, stats.choices
        moves = [c for c in now if c in before and before[c] != now[c]]
        first_timers = [c for c in now if c not in before]
        present = set(server.clients)  # a client that left chooses again if it returns
        unsure = len(moves) + (0 if steady else len(first_timers))
        after = Restart(
            models=self._averaged(restart.models, stats.sums, server, t, r),
            choices={c: j for c, j in (before | now).items() if c in present},
            latest=list(now),
            loss=stats.mean_loss if now else restart.loss,
            steady=0 if unsure else restart.steady + 1,
            unchecked=restart.unchecked + 1 if steady else 0,
            idle=[0 if total.count else n + 1 for n, total in zip(restart.idle, stats.sums, strict=True)],
        )
        events = []
        if moves:
            details = {"clients": len(moves), "participants": len(now)}
            events.append(Event("moved", f"{len(moves)} of {len(now)} participants changed cluster", details))
        if self._is_steady(after) and not self._is_steady(restart) and not restart.unchecked:
            text = f"nobody moved for {after.steady} rounds: each client is sent its own model only"
            events.append(Event("stable", text, {"rounds": after.steady}))
        sums = stats.sums
        events += self._at_the_end(after, moves, server) if t == server.rounds else self._unused(after)
        return after, Info(_cluster_infos(after, sums, server), events)

    def _hidden_round_of(self, restart: Restart, r: int, t: int, server: Server) -> tuple[Restart, Info]:
        """The round where only the clients know what they chose."""
        found = hidden_round(restart.models, server.schedule.at(t), kept_name(r), t, server)
        after = dataclasses.replace(
            restart,
            models=self._averaged(restart.models, found.sums, server, t, r),
            loss=found.loss,
            idle=[0 if size else n + 1 for n, size in zip(restart.idle, found.sizes, strict=True)],
            sizes=found.sizes,
        )
        events = self._unused(after)
        if found.closed:
            few = f"fewer than {server.engine.least_in_sum} clients"
            text = f"{len(found.closed)} models were chosen by {few}: they stay closed"
            events.append(Event("closed", text, {"models": found.closed}))
        infos = [
            dataclasses.replace(cluster_info(size, total, server, j), train_loss=None, max_norm=None)
            for j, (size, total) in enumerate(zip(found.sizes, found.sums, strict=True))
            if size
        ]
        return after, Info(infos, events)

    def _unused(self, restart: Restart) -> list[Event]:
        """A word on models that nobody has chosen for a while, once when that becomes so."""
        unused = [j for j, n in enumerate(restart.idle) if n >= self.patience]
        if not any(restart.idle[j] == self.patience for j in unused):
            return []
        left = len(restart.models) - len(unused)
        text = (
            f"nobody chose {len(unused)} of the {len(restart.models)} models for {self.patience} rounds: "
            f"{left} {'cluster remains' if left == 1 else 'clusters remain'}; if more were expected, {self._next_try()}"
        )
        return [Event("unused", text, {"models": unused, "remain": left})]

    def _at_the_end(self, restart: Restart, moves: Sequence[str], server: Server) -> list[Event]:
        """A word after the last round on models that nobody chose last, and on models that exchange clients."""
        events = []
        unused = [j for j in range(len(restart.models)) if j not in restart.choices.values()]
        left = len(restart.models) - len(unused)
        if unused and left:
            share = "share one model" if left == 1 else f"share {left} models"
            text = (
                f"{len(unused)} of the {len(restart.models)} models were nobody's last choice, and "
                f"{len(restart.choices)} clients {share}: if more groups were expected, {self._next_try()}; "
                f"if not, give k={left}"
            )
            events.append(Event("unused", text, {"models": unused, "remain": left}))
        if left > 1 and len(moves) > max(1, SETTLED * len(restart.latest)):
            to = sorted({restart.choices[client] for client in moves})
            text = (
                f"{len(moves)} of {len(restart.latest)} clients still changed model in the last round, to "
                f"{', '.join(map(str, to))}: the models share clients; give more rounds, or a smaller k"
            )
            events.append(Event("unsettled", text, {"clients": len(moves), "models": to}))
        return events

    def _next_try(self) -> str:
        """The start to try next, in words."""
        return (
            f"try restarts={3 * self.restarts}"
            if self.init in ("auto", "k-means++")
            else "try init=k-means++ or restarts=3"
        )

    def _is_steady(self, restart: Restart) -> bool:
        """Does each client of the next round get only the model it chose before?"""
        if self.stable_after is None or restart.steady < self.stable_after:
            return False
        return restart.unchecked < self.recheck_every - 1

    def _exchange(self, restart: Restart, t: int, server: Server, steady: bool) -> RoundStats:
        """Ask the participants and add up their replies by cluster."""
        requests = list(self._requests(restart, t, server, steady))
        known = [None if isinstance(r.task, Choose) else restart.choices[r.client] for r in requests]
        sums, replies = server.aggregate(requests, self.weighting, known, len(restart.models))
        stats = RoundStats(sums)
        for reply in replies:
            stats.choices[reply.client] = reply.group
        weight = sum(total.weight for total in sums)
        if weight:
            stats.mean_loss = sum(total.loss for total in sums) / weight
        return stats

    def _requests(self, restart: Restart, t: int, server: Server, steady: bool) -> Iterator[Request]:
        """Lines 4-10: choose and work; when choices are steady, just work from the cluster's own model."""
        how = self._work(t, server)
        shared = tuple((span.start, span.stop) for span in self.shared(server))
        rows = [row.clone() for row in restart.models]
        for client in server.participants(t):
            seed = server.seed_of(t, client)
            if not steady or client not in restart.choices:
                yield Request(client, Choose(restart.models, how, seed, shared))
            elif how is not None:
                yield Request(client, Train(rows[restart.choices[client]], how, seed))
            else:
                yield Request(client, Gradient(rows[restart.choices[client]]))

    def _work(self, t: int, server: Server) -> Training | None:
        """How a client works from its model; None is the gradient on all of its samples."""
        if self.averaging == "model":
            return server.schedule.at(t)
        # A step of size one is the negative gradient.
        return None if self.gradient_batch is None else Training(lr=1.0, steps=1, batch_size=self.gradient_batch)

    def _averaged(self, models: Tensor, sums: list[WeightedSum], server: Server, t: int, r: int) -> Tensor:
        """Lines 13-14: the models after the round; shared layers follow everybody, an empty cluster stays."""
        weight = sum(total.weight for total in sums)
        if not weight:
            return models
        if self.averaging == "gradient" and self.divide_by == "clients":
            weight = sum(server.weight(client, self.weighting) for client in server.clients)
        shared = self.shared(server)
        everybody = gather(sum((total.total for total in sums), torch.zeros(())) / weight, shared)
        sign = -1 if self.gradient_batch is None else 1
        after = []
        for j, (model, total) in enumerate(zip(models, sums, strict=True)):
            if self.averaging == "gradient":
                # Option I divides by all, not by those of the cluster.
                step, lr = total.total / weight, sign * server.schedule.at(t).lr
            else:
                step, lr = total.mean(), 1.0
            scatter(step, shared, everybody)
            after.append(server.step(model, step, f"{r}/{j}", lr))
        return torch.stack(after)

    def assignment(self, state: State | GrowingState, server: Server) -> Assignment:
        """Every client with the model of its lowest training loss; clusters without a client have no place.

        Those who took part in the last round keep the choice they made there; the others are asked now, since
        the models may have changed much since they were last seen, if ever.
        """
        if isinstance(state, GrowingState):
            return growing_assignment(state, server)
        restart = state.runs[state.best]
        if self.hide_choice:
            taken = [j for j, size in enumerate(restart.sizes) if size] or [0]
            sizes = [restart.sizes[j] if restart.sizes else len(server.clients) for j in taken]
            hidden = Hidden(kept_name(state.best), restart.models, sizes)
            return Assignment([restart.models[j] for j in taken], [[] for _ in taken], ids=taken, hidden=hidden)
        choices = {client: restart.choices[client] for client in restart.latest if client in restart.choices}
        absent = [client for client in server.clients if client not in choices]
        for reply in server.ask_all(absent, Evaluate(restart.models, "train")):
            choices[reply.client] = int(np.argmin(np.nan_to_num(reply.values["loss"], nan=np.inf)))
        for client in absent:
            choices.setdefault(client, restart.choices.get(client, 0))
        members = [[c for c in server.clients if choices[c] == j] for j in range(len(restart.models))]
        # Which models nobody chose is exact, and must not be told where numbers of clients have noise.
        taken = [j for j, clients in enumerate(members) if clients or server.user_privacy is not None]
        return Assignment([restart.models[j] for j in taken], [members[j] for j in taken], ids=taken)

    def place(self, state: State | GrowingState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each newcomer's data, among those that somebody chose."""
        if isinstance(state, GrowingState):
            return place_growing(state, clients, server)
        restart = state.runs[state.best]
        sizes = dict(enumerate(restart.sizes))
        chosen = [j for j, size in sizes.items() if size] if sizes else sorted(set(restart.choices.values()))
        return lowest_loss({j: restart.models[j] for j in chosen}, clients, server)


def _cluster_infos(restart: Restart, sums: list[WeightedSum], server: Server) -> list[ClusterInfo]:
    """What was seen of each cluster that has clients."""
    members = list(restart.choices.values())
    return [cluster_info(members.count(j), total, server, j) for j, total in enumerate(sums) if j in members]
