"""The k models IFCA starts from: independent draws, one draw perturbed, or clients that nothing so far fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.errors import RunError
from coterie.methods.server import Server, apply_update
from coterie.randomness import numpy_generator, torch_generator
from coterie.tasks import Evaluate

CANDIDATES = 4
"""Clients that are tried for one model, where nobody else needs the first one's: one more than hostile ones are
expected."""


def random_models(server: Server, k: int, restart: int) -> Tensor:
    """k independent random initialisations `(k, d)`."""
    return torch.stack([server.initial_model(restart * k + j) for j in range(k)])


def perturbed_models(server: Server, k: int, restart: int, scale: float) -> Tensor:
    """One random initialisation, k times `(k, d)`, each with noise of `scale` times the size of each tensor's numbers.

    The size is the root mean square, so a tensor that starts at zero stays there.
    """
    base = server.initial_model(restart)
    return torch.stack([base + scale * _noise_like(base, server, restart, j) for j in range(k)])


def _noise_like(model: Tensor, server: Server, restart: int, j: int) -> Tensor:
    generator = torch_generator(server.seed, "perturbed", restart, j)
    noise = torch.randn(len(model), generator=generator, dtype=torch.float64)
    for entry in server.layout.entries:
        place = slice(entry.start, entry.stop)
        size = 0.0 if entry.buffer else float(model[place].double().square().mean().sqrt())
        noise[place] *= size
    return noise.to(model.dtype)


def worst_fitted_models(server: Server, k: int, restart: int, rounds: int) -> Tensor:
    """k models `(k, d)`, each trained by the one client that the models before it fit worst (`init="k-means++"`).

    The first client is drawn at random. Each seeding client trains `rounds` times the first round's training from
    one common initialisation. Choosing the worst, not drawing in proportion to the loss, makes it repeatable. A client
    whose training fails seeds nothing, nor does one whose model nobody would choose, not even itself: that is what a
    hostile client sends. Where nobody else gains as much by a client's model, others are tried in its place, up to
    `CANDIDATES`, and one of them counts if two clients need it as much: a client with labels of its own gets no model
    that a group needs. Where too few can, the last models are fresh draws.
    """
    clients = server.clients
    first = int(numpy_generator(server.seed, "k-means++", restart).integers(len(clients)))
    untried = [*clients[first:], *clients[:first]]
    seeds: list[Seed] = []
    while len(seeds) < k and untried:
        seed = _next_seed(server, untried, _best(seeds), restart, rounds)
        if seed is None:
            break
        untried.remove(seed.client)
        seeds = _chosen([*seeds, seed], clients)
    for lonely in [one for one in seeds if not one.serves_a_group(_best([s for s in seeds if s is not one]), one)]:
        others = [seed for seed in seeds if seed is not lonely]
        other = _next_seed(server, untried, _best(others), restart, rounds) if untried and others else None
        if other is not None and other.serves_a_group(_best(others), lonely):
            untried.remove(other.client)
            seeds = [other if seed is lonely else seed for seed in seeds]
    models = [seed.model for seed in seeds]
    return torch.stack([*models, *(server.initial_model(restart * k + j) for j in range(len(models), k))])


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


def _next_seed(server: Server, untried: list[str], best: Mapping[str, float], restart: int, rounds: int) -> Seed | None:
    """The model of the client with the worst of the `best` losses or, where nobody else needs it, another's.

    Clients that fail are struck off `untried`.
    """
    found: list[Seed] = []
    for client in sorted(untried, key=lambda client: -best.get(client, math.inf)):
        model = _trained_alone(server, client, restart, rounds)
        if model is None:
            untried.remove(client)
            continue
        found.append(Seed(client, model, _losses(server, server.clients, model)))
        if found[-1].serves_a_group(best, found[0]):
            return found[-1]
        if len(found) == CANDIDATES:
            break
    return found[0] if found else None


def _losses(server: Server, clients: tuple[str, ...], model: Tensor) -> dict[str, float]:
    """The clients' training losses under a model, as far as they are finite."""
    replies = server.ask_all(clients, Evaluate(model[None], "train"))
    losses = {reply.client: float(reply.values["loss"][0]) for reply in replies}
    return {client: loss for client, loss in losses.items() if math.isfinite(loss)}


def _trained_alone(server: Server, client: str, restart: int, rounds: int) -> Tensor | None:
    model = server.initial_model(restart)
    for step in range(1, rounds + 1):
        # Negative rounds come before the first, so that their batches are drawn again.
        try:
            (reply,) = server.train([client], model, -step, server.schedule.at(1))
        except (RunError, ValueError):  # it diverged, or gave no answer
            return None
        assert reply.vector is not None
        model = apply_update(model, reply.vector.double())
    return model


def share(models: Tensor, shared: tuple[slice, ...]) -> Tensor:
    """The models `(k, d)` with the numbers in the `shared` places taken from the first one."""
    for place in shared:
        models[:, place] = models[0, place]
    return models
