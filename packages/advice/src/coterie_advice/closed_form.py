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
from torch.nn.utils.rnn import pad_sequence

from coterie.federation import Client, Federation
from coterie.randomness import numpy_generator, torch_generator
from coterie.trainers import one_torch_thread

FEATURES = 128
"""Random features: enough for the ranking of the ways of sharing, few enough to solve in a millisecond."""
MOST_SAMPLES = 300
"""Samples per client that are looked at."""
MOST_CLIENTS = 100
"""Clients that are looked at; of more, so many are drawn."""
MOST_ALONE = 20
"""Clients whose own models are made, which cost one system each."""
FOLDS = 3
"""Parts of a client's samples, of which each is held out once."""
MOST_CLUSTERS = 8
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
PULLS = (0.3, 1.5, 8.0)
CHOICES = 6
"""Times that clients choose again, for each number of clusters."""
WORSE_AGAIN = 3
"""Numbers of clusters in a row that serve worse than a smaller one, after which no larger one is tried."""
NEARLY = 1.01
"""The smallest number of clusters whose loss is at most so many times the lowest is taken."""

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sharing:
    """Ways to share models, each by its scores on held-out data: accuracies, or shares of the variance explained."""

    clients: tuple[str, ...]
    """The clients that were compared."""
    one: Scores
    """One model for all."""
    personal: Scores
    """A model for each, pulled to the common one."""
    local: Scores
    """A model for each by itself."""
    several_gain: Scores
    """What the model that each chose among `k` gains over one for all: of all clients, not of `clients` alone."""
    k: int
    """The number of models that serves them best, not counting those that nobody chose; 1 where none do better."""
    clusters: tuple[tuple[str, ...], ...]
    """Who chose the same."""
    skew: float
    """The share of a client's samples that would need another label to have everybody's label mix, beyond chance.
    Of a regression: the share of the targets' variance that lies between clients."""


@dataclass(frozen=True)
class _Fold:
    """The clients with a part of their samples held out. Short clients end in rows of zeros, which change nothing."""

    z: Tensor
    """Features to fit `(m, n, p)`."""
    y: Tensor
    """Targets to fit `(m, n, c)`."""
    sizes: Tensor
    """Samples to fit `(m,)`."""
    z_held: Tensor
    y_held: Tensor
    labels_held: Tensor | None
    """Labels of held-out samples `(m, h)`, below zero where there is none."""
    sizes_held: Tensor

    def first(self, count: int) -> _Fold:
        """Some of the clients."""
        labels = None if self.labels_held is None else self.labels_held[:count]
        own = (self.z, self.y, self.sizes, self.z_held, self.y_held, self.sizes_held)
        z, y, sizes, z_held, y_held, sizes_held = (part[:count] for part in own)
        return _Fold(z, y, sizes, z_held, y_held, labels, sizes_held)

    def fit_losses(self, model: Tensor) -> Tensor:
        """Squared error of a model `(p, c)` on what is fitted, by client `(m,)`."""
        return (self.z @ model - self.y).square().sum((1, 2)) / self.sizes

    def losses(self, outputs: Tensor) -> Tensor:
        """Squared error of outputs `(m, h, c)` on what is held out, by client `(m,)`."""
        return (outputs - self.y_held).square().sum((1, 2)) / self.sizes_held

    def scores(self, outputs: Tensor) -> Scores:
        """Accuracy, or the share of the variance explained, of outputs `(m, h, c)` by client `(m,)`."""
        if self.labels_held is None:
            return (1 - self.losses(outputs) / outputs.shape[2]).double().numpy()
        return ((outputs.argmax(2) == self.labels_held).sum(1) / self.sizes_held).double().numpy()


def compare_sharing(federation: Federation, *, linear: bool, seed: int) -> Sharing | None:
    """Solve the ways of sharing on a federation; None where samples are no vectors or images with one target.

    Args:
        federation: the clients, of whom training and validation data is used.
        linear: whether the run's own model is linear, so that the features should be.
        seed: of the features, and of what is held out.
    """
    with one_torch_thread():  # many small systems: a second thread only waits, and sums would depend on their number
        return _compared(federation, linear, seed)


def _compared(federation: Federation, linear: bool, seed: int) -> Sharing | None:
    chosen = _drawn(federation, seed)
    first = federation[chosen[0]].train
    one_target = first.y.ndim == 1 or (first.y.ndim == 2 and first.y.shape[1] == 1)
    if not first.x.is_floating_point() or not one_target or len(chosen) < 2:
        return None
    folds, labels, targets = _folds(federation, chosen, linear, seed)
    ridge, scores = None, []
    for fold in folds:
        grams, crosses = fold.z.mT @ fold.z, fold.z.mT @ fold.y
        if ridge is None:
            common, ridge = _common(fold, grams.sum(0), crosses.sum(0))
            choice, models = _choose(fold, grams, crosses, common, ridge)
            several = fold.scores(fold.z_held @ models[choice]) - fold.scores(fold.z_held @ common)
        else:
            common = _solved(grams.sum(0), crosses.sum(0), ridge)
        some = fold.first(MOST_ALONE)
        scores.append((some.scores(some.z_held @ common), *_own_models(some, common)))
    one, personal, local = (np.mean(own, axis=0) for own in zip(*scores, strict=True))
    chose = choice.tolist()
    used = sorted(set(chose), key=chose.index)
    return Sharing(
        tuple(chosen[:MOST_ALONE]),
        one,
        personal,
        local,
        several,
        len(used),
        tuple(tuple(chosen[i] for i, c in enumerate(chose) if c == j) for j in used),
        _skew(labels, federation.classes) if labels is not None else _between(targets),
    )


def _drawn(federation: Federation, seed: int) -> list[str]:
    """The clients with enough samples to fit and to judge, at most so many, in a random order."""
    enough = [client.id for client in federation if len(client.train) + len(client.validation) >= FOLDS]
    order = numpy_generator(seed, "advise-clients").permutation(len(enough))
    return [enough[i] for i in order[:MOST_CLIENTS]] or [federation.ids[0]]


def _folds(
    federation: Federation, chosen: Sequence[str], linear: bool, seed: int
) -> tuple[list[_Fold], list[Tensor] | None, list[Tensor]]:
    """The clients with a third of their samples held out, each third once; their labels if any, and their targets."""
    xs, ys = [], []
    for name in chosen:
        x, y = _samples(federation[name], torch_generator(seed, "advise-held-out", name))
        xs.append(x.flatten(1))
        ys.append(y.reshape(len(x), -1))
    sizes = [len(x) for x in xs]
    z = _features(torch.cat(xs).float(), linear, seed).split(sizes)
    raw = torch.cat(ys)
    if federation.regression:
        labels, wanted = None, (raw.float() - raw.float().mean(0)) / raw.float().std(0).clamp_min(1e-9)
    else:
        labels = list(raw[:, 0].long().split(sizes))
        wanted = torch.nn.functional.one_hot(raw[:, 0].long(), federation.classes).float() - 1 / federation.classes
    targets = list(wanted.split(sizes))
    zs, padded = pad_sequence(z, batch_first=True), pad_sequence(targets, batch_first=True)
    named = None if labels is None else pad_sequence(labels, batch_first=True, padding_value=-1)
    folds = []
    place = torch.arange(zs.shape[1])
    for j in range(FOLDS):
        fit, held = place[place % FOLDS != j], place[place % FOLDS == j]
        held_sizes = torch.tensor([len(range(j, size, FOLDS)) for size in sizes])
        own = None if named is None else named[:, held]
        fitted = torch.tensor(sizes) - held_sizes
        folds.append(_Fold(zs[:, fit], padded[:, fit], fitted, zs[:, held], padded[:, held], own, held_sizes))
    return folds, labels, targets


def _samples(client: Client, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Training and validation samples in a random order, at most so many. Each fold holds out every third of them."""
    splits = [split for split in (client.train, client.validation) if len(split)]
    order = torch.randperm(sum(map(len, splits)), generator=generator)
    if len(order) <= MOST_SAMPLES:
        x, y = torch.cat([split.x for split in splits])[order], torch.cat([split.y for split in splits])[order]
        return x, y
    places, begin, parts = order[:MOST_SAMPLES], 0, []
    for split in splits:  # what is not drawn may lie on disk, and stays there
        own = places[(places >= begin) & (places < begin + len(split))] - begin
        parts.append((split.x[own], split.y[own]))
        begin += len(split)
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


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
    model: Tensor = torch.linalg.solve(gram + ridge * torch.eye(len(gram)), cross)
    return model


def _common(fold: _Fold, gram: Tensor, cross: Tensor) -> tuple[Tensor, float]:
    """The model of all `(p, c)` and the ridge that serves held-out data best."""
    found = [(ridge, _solved(gram, cross, ridge)) for ridge in RIDGES]
    ridge, model = min(found, key=lambda pair: float(fold.losses(fold.z_held @ pair[1]).mean()))
    return model, ridge


def _own_models(fold: _Fold, common: Tensor) -> tuple[Scores, Scores]:
    """The scores of each client's own model, pulled to the common one and to zero, as strongly as serves all best.

    argmin ‖ZW − Y‖² + μ‖W − C‖² is C + Zᵀ(ZZᵀ + μ)⁻¹(Y − ZC), a system of the client's number of samples.
    """
    inner, there, base = fold.z @ fold.z.mT, fold.z_held @ fold.z.mT, fold.z_held @ common
    rest = torch.cat([fold.y - fold.z @ common, fold.y], 2)
    found = []
    for pull in PULLS:
        pulled, free = (there @ torch.linalg.solve(inner + pull * torch.eye(inner.shape[1]), rest)).chunk(2, 2)
        found.append((base + pulled, free))
    best = [min(way, key=lambda outputs: float(fold.losses(outputs).mean())) for way in zip(*found, strict=True)]
    return fold.scores(best[0]), fold.scores(best[1])


def _choose(fold: _Fold, grams: Tensor, crosses: Tensor, common: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Each client's choice `(m,)` among as many models as serve held-out data best, and these models `(k, p, c)`.

    Models begin with those of single clients, each of the client that the ones before fit worst; then all choose, and
    the models are solved again, until nobody moves.
    """
    count = len(fold.z)
    found = [(float(fold.losses(fold.z_held @ common).mean()), torch.zeros(count, dtype=torch.long), common[None])]
    seeds: list[Tensor] = []
    seed_losses: list[Tensor] = []
    for k in range(1, min(MOST_CLUSTERS, count // 2) + 1):
        worst = int(torch.stack(seed_losses).amin(0).argmax()) if seeds else 0
        seeds.append(_solved(grams[worst], crosses[worst], ridge))
        seed_losses.append(fold.fit_losses(seeds[-1]))
        if k == 1:
            continue
        models, losses = list(seeds), list(seed_losses)
        choice, before = torch.stack(losses).argmin(0), torch.full((count,), -1)
        for _ in range(CHOICES):
            for j in range(k):
                mine = choice == j
                if bool(mine.any()) and not torch.equal(mine, before == j):
                    models[j] = _solved(grams[mine].sum(0), crosses[mine].sum(0), ridge)
                    losses[j] = fold.fit_losses(models[j])
            before, choice = choice, torch.stack(losses).argmin(0)
            if torch.equal(before, choice):
                break
        stacked = torch.stack(models)
        found.append((float(fold.losses(fold.z_held @ stacked[choice]).mean()), choice, stacked))
        if len(found) > WORSE_AGAIN and min(loss for loss, _, _ in found[-WORSE_AGAIN:]) > min(row[0] for row in found):
            break
    lowest = min(loss for loss, _, _ in found)
    return next((choice, models) for loss, choice, models in found if loss <= NEARLY * lowest)


def _skew(labels: Sequence[Tensor], classes: int) -> float:
    """The mean total variation of the clients' label mixes from everybody's, less what equal mixes would show."""
    counts = torch.stack([torch.bincount(own, minlength=classes) for own in labels]).double()
    sizes, shares = counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    seen = (counts / sizes - shares).abs().sum(1) / 2
    # The mean of |X/n − p| for a binomial X is about √(2p(1−p)/(πn)).
    chance = (2 * shares * (1 - shares) / (math.pi * sizes)).sqrt().sum(1) / 2
    return float((seen - chance).clamp_min(0).mean())


def _between(targets: Sequence[Tensor]) -> float:
    """The share of the targets' variance that lies between clients."""
    within = sum(float((y - y.mean(0)).square().sum()) for y in targets)
    whole = torch.cat(list(targets))
    return max(0.0, 1 - within / max(float((whole - whole.mean(0)).square().sum()), 1e-9))
