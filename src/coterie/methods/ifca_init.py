"""The k models IFCA starts from: independent draws, one draw perturbed, or clients that nothing so far fits."""

from __future__ import annotations

import torch
from torch import Tensor

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
    one common initialisation. Choosing the worst, not drawing in proportion to the loss, makes it repeatable.
    """
    clients = server.clients
    first = int(numpy_generator(server.seed, "k-means++", restart).integers(len(clients)))
    models = [_trained_alone(server, clients[first], restart, rounds)]
    fit = torch.full((len(clients),), torch.inf)
    place = {client: i for i, client in enumerate(clients)}
    while len(models) < k:
        for reply in server.ask_all(clients, Evaluate(models[-1][None], "train")):
            row = place[reply.client]
            fit[row] = min(float(fit[row]), float(reply.values["loss"][0]))
        fit[~torch.isfinite(fit)] = -torch.inf  # a client that gave no answer cannot seed a model
        models.append(_trained_alone(server, clients[int(fit.argmax())], restart, rounds))
    return torch.stack(models)


def _trained_alone(server: Server, client: str, restart: int, rounds: int) -> Tensor:
    model = server.initial_model(restart)
    for step in range(1, rounds + 1):
        # Negative rounds come before the first, so that their batches are drawn again.
        for reply in server.train([client], model, -step, server.schedule.at(1)):
            assert reply.vector is not None
            model = apply_update(model, reply.vector.double())
    return model


def share(models: Tensor, shared: tuple[slice, ...]) -> Tensor:
    """The models `(k, d)` with the numbers in the `shared` places taken from the first one."""
    for place in shared:
        models[:, place] = models[0, place]
    return models
