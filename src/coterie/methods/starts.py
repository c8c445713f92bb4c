"""The k models that a method starts from.

A start has `models(server, k, draw, shared) -> (k, d)`; every `draw` is independent of the others, for restarts, and
`shared` are the places of layers that the models will have in common. One that `looks_at_clients` decides by single
clients' losses, which secure sums and differential privacy do not show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError, RunError
from coterie.methods.aggregation import vector_of
from coterie.methods.options import Parts, part
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server, apply_update
from coterie.methods.sharing import Spans, share
from coterie.randomness import numpy_generator, torch_generator
from coterie.tasks import Evaluate

STARTS = Parts("init")
CANDIDATES = 4
"""Clients that are tried for one model, where no other client needs the first one's: one more than hostile ones are
expected."""
AUTHORS_SHARES = {1: 0.0, 2: 0.35, 4: 0.1}
"""The share of clients that must choose each of k models, in the public CIFAR code of IFCA's authors."""


@part(STARTS, "random")
class RandomStart:
    """k independent random initialisations."""

    looks_at_clients: ClassVar[bool] = False

    def models(self, server: Server, k: int, draw: int, shared: Spans = ()) -> Tensor:
        return torch.stack([server.initial_model(draw * k + j) for j in range(k)])


@part(STARTS, "perturbed")
class PerturbedStart:
    """One random initialisation, k times, with noise.

    The size of a tensor's numbers is their root mean square, so a tensor that starts at zero stays there.
    """

    scale: PositiveFloat = 0.1
    """Size of the noise relative to that of each tensor's numbers."""
    looks_at_clients: ClassVar[bool] = False

    def models(self, server: Server, k: int, draw: int, shared: Spans = ()) -> Tensor:
        base = server.initial_model(draw)
        return torch.stack([base + self.scale * _noise_like(base, server, draw, j) for j in range(k)])


@part(STARTS, "redrawn")
class RedrawnStart:
    """Random initialisations, drawn again until enough clients choose each, as in the public code of IFCA's authors.

    A draw is sent to a round's participants, who say their losses under each model.
    """

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of the clients asked that must choose each model; by default the authors', for k = 2 and 4."""
    draws: PositiveInt = 100
    """The most draws."""
    looks_at_clients: ClassVar[bool] = True

    def models(self, server: Server, k: int, draw: int, shared: Spans = ()) -> Tensor:
        least = self._share_of(k)
        for attempt in range(draw * self.draws, (draw + 1) * self.draws):
            models = share(RandomStart().models(server, k, attempt), shared)
            clients = server.participants(-1 - attempt)  # negative rounds come before the first
            choices = list(lowest_loss(dict(enumerate(models)), clients, server).values())
            shares = [choices.count(j) / max(1, len(choices)) for j in range(k)]
            if choices and min(shares) >= least:
                return models
        raise RunError(
            f"init=redrawn: in none of {self.draws} draws was each of {k} models chosen by {least:.0%} of the clients: "
            f"give a smaller share, as redrawn({least / 2:.2g}), more draws, as redrawn({least:g},draws="
            f"{10 * self.draws}), or init=k-means++"
        )

    def _share_of(self, k: int) -> float:
        share = AUTHORS_SHARES.get(k) if self.share is None else self.share
        if share is None:
            raise ConfigError(
                f"init=redrawn with k={k}: the authors give shares for k=2 and 4, write redrawn({0.4 / k:.2g})"
            )
        if share > 1 / k:
            raise ConfigError(
                f"init=redrawn({share:g}) with k={k}: not all can have that share, give less than {1 / k:.2g}"
            )
        return share


@part(STARTS, "k-means++")
class WorstFittedStart:
    """Each model trained by the one client that the models before it fit worst.

    The first client is drawn at random. Each seeding client trains `rounds` times the first round's training from
    one common initialisation. Choosing the worst, not drawing in proportion to the loss, makes it repeatable. A client
    whose training fails seeds nothing, nor does one whose model no client would choose, not even itself: that is what
    a hostile client sends. Where no other client gains as much by a client's model, others are tried in its place, up
    to `CANDIDATES`, and one of them counts if two clients need it as much: a client with labels of its own gets no
    model that a group needs. Where too few can, the last models are fresh draws.
    """

    rounds: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many rounds' training a seeding client does by itself."""
    looks_at_clients: ClassVar[bool] = True

    def models(self, server: Server, k: int, draw: int, shared: Spans = ()) -> Tensor:
        first = int(numpy_generator(server.seed, "k-means++", draw).integers(len(server.clients)))
        seeding = _Seeding(server, [*server.clients[first:], *server.clients[:first]], draw, self.rounds)
        models = [seed.model for seed in seeding.seeds(k)]
        return torch.stack([*models, *(server.initial_model(draw * k + j) for j in range(len(models), k))])


@part(STARTS, "auto")
class AutoStart:
    """k-means++; random where single clients must not decide (secure sums, privacy), or with one model."""

    looks_at_clients: ClassVar[bool] = False

    def models(self, server: Server, k: int, draw: int, shared: Spans = ()) -> Tensor:
        start = WorstFittedStart() if server.shows_updates and k > 1 else RandomStart()
        return start.models(server, k, draw)


def start_models(init: str, k: int, draw: int, shared: Spans, server: Server) -> Tensor:
    """The models `(k, d)` of the start that is written as `init`, with the `shared` layers in common."""
    if k > len(server.clients):
        raise ConfigError(f"k={k} with {len(server.clients)} clients: ask for at most one cluster per client")
    return share(STARTS.make(init).models(server, k, draw, shared), shared)


class Seed(NamedTuple):
    """A client's own model `(d,)`, and every client's loss under it."""

    client: str
    model: Tensor
    losses: dict[str, float]

    def gains(self, best: Mapping[str, float]) -> list[float]:
        """By how much it lowers the clients' best losses."""
        return [max(0.0, best.get(client, loss) - loss) for client, loss in self.losses.items()]

    def serves_a_group(self, best: Mapping[str, float], other: Seed) -> bool:
        """Whether two clients or more gain half as much by it as anybody does by the other."""
        least = max(other.gains(best), default=0.0) / 2
        return sum(gain >= least for gain in self.gains(best)) > 1


def _best(seeds: Sequence[Seed]) -> dict[str, float]:
    """Every client's lowest loss."""
    best: dict[str, float] = {}
    for seed in seeds:
        best |= {client: min(loss, best.get(client, math.inf)) for client, loss in seed.losses.items()}
    return best


def _chosen(seeds: list[Seed], clients: Sequence[str]) -> list[Seed]:
    """The seeds that some client would choose."""
    chosen = {min(range(len(seeds)), key=lambda j: seeds[j].losses.get(client, math.inf)) for client in clients}
    return [seeds[j] for j in sorted(chosen)]


class _Seeding(NamedTuple):
    """The search for clients whose own models become the first; those tried are struck off `untried`."""

    server: Server
    untried: list[str]
    draw: int
    rounds: int

    def seeds(self, k: int) -> list[Seed]:
        """Up to k seeds; each that serves no group is replaced by one that does, if one is found."""
        seeds: list[Seed] = []
        while len(seeds) < k and (seed := self.next(_best(seeds))) is not None:
            self.untried.remove(seed.client)
            seeds = _chosen([*seeds, seed], self.server.clients)
        for lonely in [one for one in seeds if not one.serves_a_group(_best(_without(seeds, one)), one)]:
            seeds = self._replaced(lonely, seeds)
        return seeds

    def _replaced(self, lonely: Seed, seeds: list[Seed]) -> list[Seed]:
        """The seeds with a client's that two others need in place of one that serves its own client only."""
        others = _without(seeds, lonely)
        best = _best(others)
        other = self.next(best) if others else None
        if other is None or not other.serves_a_group(best, lonely):
            return seeds
        self.untried.remove(other.client)
        return [other if seed is lonely else seed for seed in seeds]

    def next(self, best: Mapping[str, float]) -> Seed | None:
        """The model of the client with the worst of the `best` losses or, where no other needs it, another's."""
        found: list[Seed] = []
        for client in sorted(self.untried, key=lambda client: -best.get(client, math.inf)):
            model = self._trained_alone(client)
            if model is None:
                self.untried.remove(client)
                continue
            found.append(Seed(client, model, _losses(self.server, model)))
            if found[-1].serves_a_group(best, found[0]):
                return found[-1]
            if len(found) == CANDIDATES:
                break
        return found[0] if found else None

    def _trained_alone(self, client: str) -> Tensor | None:
        """The model that a client makes of the common initialisation; None where that fails."""
        model, how = self.server.initial_model(self.draw), self.server.schedule.at(1)
        for step in range(1, self.rounds + 1):
            # Negative rounds come before the first, so that their batches are drawn again.
            try:
                (reply,) = self.server.ask(self.server.training_requests([client], model, -step, how))
            except (RunError, ValueError):  # it diverged, or gave no answer
                return None
            model = apply_update(model, vector_of(reply).double())
        return model


def _without(seeds: Sequence[Seed], one: Seed) -> list[Seed]:
    return [seed for seed in seeds if seed is not one]


def _losses(server: Server, model: Tensor) -> dict[str, float]:
    """The clients' training losses under a model, as far as they are finite."""
    replies = server.ask_all(server.clients, Evaluate(model[None], "train"))
    losses = {reply.client: float(reply.values["loss"][0]) for reply in replies}
    return {client: loss for client, loss in losses.items() if math.isfinite(loss)}


def _noise_like(model: Tensor, server: Server, restart: int, j: int) -> Tensor:
    generator = torch_generator(server.seed, "perturbed", restart, j)
    noise = torch.randn(len(model), generator=generator, dtype=torch.float64)
    for entry in server.layout.entries:
        place = slice(entry.start, entry.stop)
        size = 0.0 if entry.buffer else float(model[place].double().square().mean().sqrt())
        noise[place] *= size
    return noise.to(model.dtype)
