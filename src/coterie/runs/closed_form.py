"""One model, several, or each its own? The question asked of a model that is solved exactly: ridge regression.

Inputs become a few hundred random features, labels become indicators, and every way of sharing is a linear system: a
model for all, a model per client, a model per client that is pulled to the common one, and k models that clients
choose among as in IFCA, trained to the end. It takes less time than a few rounds of training, and how well each serves
data that was held out says which way of sharing suits these clients, whatever the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.federation import Federation
from coterie.randomness import numpy_generator, torch_generator

FEATURES = 128
"""Random features: enough for the ranking of the ways of sharing, few enough to solve in a millisecond."""
MOST_SAMPLES = 300
"""Samples per client that are looked at."""
MOST_CLIENTS = 100
"""Clients that are looked at; of more, so many are drawn."""
MOST_ALONE = 24
"""Clients whose own models are made, which cost one system each."""
HELD_OUT = 1 / 3
"""The share of a client's samples that models are judged on."""
MOST_CLUSTERS = 8
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
PULLS = (0.1, 0.5, 2.0, 10.0)
CHOICES = 6
"""Times that clients choose again, for each number of clusters."""
WORSE_AGAIN = 3
"""Numbers of clusters in a row that serve worse than a smaller one, after which no larger one is tried."""
NEARLY = 1.01
"""The smallest number of clusters whose loss is at most so many times the lowest is taken."""

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sharing:
    """Ways to share models, each by its score on every client's held-out data: `(clients,)` accuracy, or R²."""

    clients: tuple[str, ...]
    """The clients that were compared."""
    one: Scores
    """One model for all."""
    personal: Scores
    """A model for each, pulled to the common one."""
    local: Scores
    """A model for each by itself."""
    several: Scores
    """The model that each chose among `k`."""
    k: int
    """The number of models that serves them best, not counting those that nobody chose; 1 where none do better."""
    clusters: tuple[tuple[str, ...], ...]
    """Who chose the same."""
    skew: float
    """The share of a client's samples that would need another label to have everybody's label mix, beyond chance.
    Of a regression: the share of the targets' variance that lies between clients."""


@dataclass(frozen=True)
class _Client:
    """A client's features `(n, p)`, targets `(n, c)` and labels, to fit and to judge."""

    z: Tensor
    y: Tensor
    z_held: Tensor
    y_held: Tensor
    labels_held: Tensor | None

    def score(self, outputs: Tensor) -> float:
        if self.labels_held is None:
            return 1 - float((outputs - self.y_held).square().mean())
        return float((outputs.argmax(1) == self.labels_held).double().mean())

    def loss(self, outputs: Tensor) -> float:
        return float((outputs - self.y_held).square().sum(1).mean())


def compare_sharing(federation: Federation, *, linear: bool, seed: int) -> Sharing | None:
    """Solve the ways of sharing on a federation; None where samples are no vectors or images with one target.

    Args:
        federation: the clients, of whom training and validation data is used.
        linear: whether the run's own model is linear, so that the features should be.
        seed: of the features, and of what is held out.
    """
    chosen = _drawn(federation, seed)
    first = federation[chosen[0]].train
    one_target = first.y.ndim == 1 or (first.y.ndim == 2 and first.y.shape[1] == 1)
    if not first.x.is_floating_point() or not one_target or len(chosen) < 2:
        return None
    clients, labels = _as_clients(federation, chosen, linear, seed)
    grams = torch.stack([client.z.T @ client.z for client in clients])
    crosses = torch.stack([client.z.T @ client.y for client in clients])
    common, ridge = _common(clients, grams.sum(0), crosses.sum(0))
    alone = list(range(len(clients)))[:MOST_ALONE]
    personal = _best_pull([clients[i] for i in alone], common)
    local = _best_pull([clients[i] for i in alone], torch.zeros_like(common))
    choice, models = _choose(clients, grams, crosses, common, ridge)
    several = [clients[i].score(clients[i].z_held @ models[choice[i]]) for i in alone]
    used = sorted(set(choice), key=lambda j: choice.index(j))
    return Sharing(
        tuple(chosen[i] for i in alone),
        np.array([clients[i].score(clients[i].z_held @ common) for i in alone]),
        personal,
        local,
        np.array(several),
        len(used),
        tuple(tuple(chosen[i] for i, c in enumerate(choice) if c == j) for j in used),
        _skew(labels, federation.classes) if labels is not None else _between(clients),
    )


def _drawn(federation: Federation, seed: int) -> list[str]:
    """The clients with enough samples to fit and to judge, at most so many."""
    enough = [client.id for client in federation if len(client.train) + len(client.validation) >= 3]
    order = numpy_generator(seed, "advise-clients").permutation(len(enough))
    return [enough[i] for i in order[:MOST_CLIENTS]] or [federation.ids[0]]


def _as_clients(
    federation: Federation, chosen: Sequence[str], linear: bool, seed: int
) -> tuple[list[_Client], list[Tensor] | None]:
    """The clients' features and targets, and their labels if they have any."""
    parts = []
    for name in chosen:
        client = federation[name]
        splits = [split for split in (client.train, client.validation) if len(split)]
        x = torch.cat([split.x[:MOST_SAMPLES] for split in splits])[:MOST_SAMPLES]
        parts.append((x, torch.cat([split.y[:MOST_SAMPLES] for split in splits])[:MOST_SAMPLES].reshape(len(x), -1)))
    sizes = [len(x) for x, _ in parts]
    z = _features(torch.cat([x.flatten(1) for x, _ in parts]).float(), linear, seed)
    raw = torch.cat([y for _, y in parts])
    if federation.regression:
        labels, y = None, (raw.float() - raw.float().mean(0)) / raw.float().std(0).clamp_min(1e-9)
    else:
        labels = raw[:, 0].long()
        y = torch.nn.functional.one_hot(labels, federation.classes).float() - 1 / federation.classes
    clients = []
    own = labels.split(sizes) if labels is not None else [None] * len(sizes)
    for name, zs, ys, ls in zip(chosen, z.split(sizes), y.split(sizes), own, strict=True):
        order = torch.randperm(len(zs), generator=torch_generator(seed, "advise-held-out", name))
        count = max(1, round(HELD_OUT * len(zs)))
        held, fit = order[:count], order[count:]
        clients.append(_Client(zs[fit], ys[fit], zs[held], ys[held], None if ls is None else ls[held]))
    return clients, None if labels is None else list(labels.split(sizes))


def _features(x: Tensor, linear: bool, seed: int) -> Tensor:
    """Features `(n, p)` of length about one, the last of them constant: the inputs, a projection, or random ReLUs."""
    x = x - x.mean(0)
    spread = x.std(0)
    x = x / (spread.clamp_min(1e-6) if x.shape[1] <= FEATURES else spread.mean().clamp_min(1e-6))
    x = x / x.norm(dim=1).mean().clamp_min(1e-6)
    generator = torch_generator(seed, "advise-features")
    if not linear or x.shape[1] > FEATURES:
        x = x @ torch.randn(x.shape[1], FEATURES, generator=generator)
    if not linear:
        x = torch.relu(x + torch.randn(FEATURES, generator=generator) / 2)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6) / math.sqrt(x.shape[1])
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def _solved(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram)), cross)


def _common(clients: Sequence[_Client], gram: Tensor, cross: Tensor) -> tuple[Tensor, float]:
    """The model of all `(p, c)` and the ridge that serves held-out data best."""
    found = [(ridge, _solved(gram, cross, ridge)) for ridge in RIDGES]
    ridge, model = min(found, key=lambda pair: sum(c.loss(c.z_held @ pair[1]) for c in clients))
    return model, ridge


def _best_pull(clients: Sequence[_Client], centre: Tensor) -> Scores:
    """The scores of each client's own model, pulled to `centre` as strongly as serves all best.

    argmin ‖ZW − Y‖² + μ‖W − C‖² is C + Zᵀ(ZZᵀ + μ)⁻¹(Y − ZC), a system of the client's number of samples.
    """
    losses, scores = np.zeros(len(PULLS)), np.zeros((len(PULLS), len(clients)))
    for i, client in enumerate(clients):
        inner, rest, there = client.z @ client.z.T, client.y - client.z @ centre, client.z_held @ client.z.T
        base, eye = client.z_held @ centre, torch.eye(len(client.z))
        for j, pull in enumerate(PULLS):
            outputs = base + there @ torch.linalg.solve(inner + pull * eye, rest)
            losses[j] += client.loss(outputs)
            scores[j, i] = client.score(outputs)
    best: Scores = scores[int(losses.argmin())]
    return best


def _choose(
    clients: Sequence[_Client], grams: Tensor, crosses: Tensor, common: Tensor, ridge: float
) -> tuple[list[int], list[Tensor]]:
    """Each client's choice among the number of models that serves held-out data best, and the models.

    Models begin with those of single clients, each of the client that the ones before fit worst; then all choose, and
    the models are solved again, until nobody moves.
    """
    sizes = [len(client.z) for client in clients]
    z, y = torch.cat([client.z for client in clients]), torch.cat([client.y for client in clients])
    owner = torch.arange(len(clients)).repeat_interleave(torch.tensor(sizes))
    counts = torch.tensor(sizes, dtype=torch.float32)

    def fit_losses(model: Tensor) -> Tensor:
        each = (z @ model - y).square().sum(1)
        return torch.zeros(len(clients)).index_add_(0, owner, each) / counts

    everybody = [0] * len(clients)
    found = [(_held_out_loss(clients, everybody, [common]), everybody, [common])]
    seeds: list[Tensor] = []
    seed_losses: list[Tensor] = []
    for k in range(1, min(MOST_CLUSTERS, len(clients) - 1) + 1):
        worst = int(torch.stack(seed_losses).amin(0).argmax()) if seeds else 0
        seeds.append(_solved(grams[worst], crosses[worst], ridge))
        seed_losses.append(fit_losses(seeds[-1]))
        if k == 1:
            continue
        models, losses = list(seeds), list(seed_losses)
        choice, before = torch.stack(losses).argmin(0), torch.full((len(clients),), -1)
        for _ in range(CHOICES):
            for j in range(k):
                mine = choice == j
                if bool(mine.any()) and not torch.equal(mine, before == j):
                    models[j] = _solved(grams[mine].sum(0), crosses[mine].sum(0), ridge)
                    losses[j] = fit_losses(models[j])
            before, choice = choice, torch.stack(losses).argmin(0)
            if torch.equal(before, choice):
                break
        found.append((_held_out_loss(clients, choice.tolist(), models), choice.tolist(), models))
        if len(found) > WORSE_AGAIN and min(loss for loss, _, _ in found[-WORSE_AGAIN:]) > min(loss for loss, _, _ in found):
            break
    lowest = min(loss for loss, _, _ in found)
    return next((choice, models) for loss, choice, models in found if loss <= NEARLY * lowest)


def _held_out_loss(clients: Sequence[_Client], choice: Sequence[int], models: Sequence[Tensor]) -> float:
    return sum(c.loss(c.z_held @ models[j]) for c, j in zip(clients, choice, strict=True)) / len(clients)


def _skew(labels: Sequence[Tensor], classes: int) -> float:
    """The mean total variation of the clients' label mixes from everybody's, less what equal mixes would show."""
    counts = torch.stack([torch.bincount(own, minlength=classes) for own in labels]).double()
    sizes, shares = counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    seen = (counts / sizes - shares).abs().sum(1) / 2
    # The mean of |X/n − p| for a binomial X is about √(2p(1−p)/(πn)).
    chance = (2 * shares * (1 - shares) / (math.pi * sizes)).sqrt().sum(1) / 2
    return float((seen - chance).clamp_min(0).mean())


def _between(clients: Sequence[_Client]) -> float:
    """The share of the targets' variance that lies between clients."""
    own = [torch.cat([client.y, client.y_held]) for client in clients]
    within = sum(float((y - y.mean(0)).square().sum()) for y in own)
    whole = torch.cat(own)
    return max(0.0, 1 - within / max(float((whole - whole.mean(0)).square().sum()), 1e-9))
