"""The k models IFCA starts from: independent draws, one draw perturbed, or clients that nothing so far fits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.errors import RunError
from coterie.methods.server import Server, apply_update
from coterie.randomness import numpy_generator, torch_generator
from coterie.tasks import Evaluate


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
    hostile client sends. Where too few can, the last models are fresh draws.
    """
    clients = server.clients
    first = int(numpy_generator(server.seed, "k-means++", restart).integers(len(clients)))
    untried = [*clients[first:], *clients[:first]]
    models: list[Tensor] = []
    losses: list[dict[str, float]] = []
    while len(models) < k and untried:
        fit = {client: min((row[client] for row in losses if client in row), default=math.inf) for client in untried}
        worst = max(fit, key=lambda client: fit[client])
        untried.remove(worst)
        model = _trained_alone(server, worst, restart, rounds)
        if model is None:
            continue
        models.append(model)
        losses.append(_losses(server, clients, model))
        chosen = {min(range(len(losses)), key=lambda j: losses[j].get(client, math.inf)) for client in clients}
        models, losses = [models[j] for j in sorted(chosen)], [losses[j] for j in sorted(chosen)]
    return torch.stack([*models, *(server.initial_model(restart * k + j) for j in range(len(models), k))])


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
