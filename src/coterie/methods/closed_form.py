"""How should these clients share models? Every way is solved in closed form, and judged on data that it did not use.

Inputs become random features and the network ridge regression, so that each way of sharing is a linear system: one
model, one with a private output offset per client, k models of clusters found from the data, a model per client drawn
to the one it would share. The simplest way stays unless a richer one surely serves the clients better, by the test of
`coterie.benefit` on parts of their data that took no part in fitting it or in finding its clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.benefit import FEWEST, LEVEL, Benefit, benefit
from coterie.clustering.agglomerative import cut, dendrogram
from coterie.methods.server import Server
from coterie.randomness import derive, numpy_generator
from coterie.tasks import FeatureMoments, InputMoments, Request
from coterie.tasks.serving import SCALES
from coterie.trainers.threads import one_torch_thread

FEATURES = 128
"""Random features per input: a budget of bytes and time, a few rounds of a small network."""
PARTS = 3
"""Parts of a client's data, each held out once."""
MOST_CLIENTS = 100
"""Clients that are solved for; of more, this number is drawn, and the others choose among the models found."""
MOST_CLUSTERS = 8
"""Clusters that are tried."""
RIDGES = (10.0, 1.0, 0.1, 0.01)
"""How strongly models are drawn to zero, or those of single clients to the shared one, in samples."""

T = TypeVar("T")
Choice = npt.NDArray[np.int64]
"""(m,) the model of each client."""


@dataclass(frozen=True)
class Way:
    """A way of sharing models that was tried."""

    kind: str
    """offset, clusters or own."""
    option: float
    """The offset's scale, the number of clusters, or how strongly own models are drawn to the shared one."""
    over: str
    """The simpler way that was best until then."""
    gain: Benefit
    """What it gains over that one, the mean over clients of log (held-out error there / here): what decides."""
    whole: Benefit
    """What it gains over one model."""
    chosen: bool = False

    @property
    def name(self) -> str:
        """The way in words."""
        return {
            "offset": "private output offsets beside one model",
            "clusters": f"{self.option:.0f} models, one per cluster",
            "own": "models of the clients' own",
        }[self.kind]

    @property
    def change(self) -> str:
        """What it gains over one model, in words."""
        left = math.exp(-self.whole.gain)
        share = f"{100 * abs(1 - left):.1f} ± {100 * left * self.whole.error:.1f} %"
        return f"{share} {'less' if left <= 1 else 'more'} error than one model"

    def sentence(self, level: float) -> str:
        """What held-out data says of it: against one model, and by the comparison that decided."""
        verdict = "surely better" if self.chosen else "not surely better"
        p_value = f"p = {self.gain.p_value:.1g}, sure below {level:.1g}"
        return f"{self.name}: {self.change}, {verdict} than {self.over} ({p_value})"


@dataclass(frozen=True)
class Sharing:
    """What was tried, in order, and what held-out data chose."""

    ways: tuple[Way, ...]
    level: float
    """What the p-value of each comparison was held against."""
    clients: int
    """Clients that were compared."""
    clusters: tuple[tuple[str, ...], ...] = ()
    """Who shares a model, where clusters were chosen and every part of the data finds the same ones."""

    @property
    def chosen(self) -> Way | None:
        """The way that was chosen last; None: one model."""
        return next((way for way in reversed(self.ways) if way.chosen), None)

    def best(self, kind: str) -> Way | None:
        """Of the ways of a kind the one chosen last, else the one that gained most; None where none was tried."""
        own = [way for way in self.ways if way.kind == kind]
        chosen = [way for way in own if way.chosen]
        return chosen[-1] if chosen else max(own, key=lambda way: way.gain.gain, default=None)

    def words(self) -> list[str]:
        """The evidence in sentences, made from the numbers that decided."""
        best = [self.best(kind) for kind in ("offset", "clusters", "own")]
        return [way.sentence(self.level) for way in best if way is not None]

    @property
    def advised(self) -> Way | None:
        """The way to begin with: clusters where every part of the data finds the same ones, else what was chosen."""
        return self.best("clusters") if self.clusters else self.chosen

    def sentence(self) -> str:
        """What was found, in one sentence."""
        way = self.advised
        if way is None:
            return f"on held-out data of {self.clients} clients nothing is surely better than one model"
        sure = f"surely less than {way.over} (p = {way.gain.p_value:.1g})"
        text = f"{way.name}, make {way.change} on held-out data, and {sure}"
        sizes = ", ".join(str(len(members)) for members in self.clusters)
        return f"{text}: training begins with clusters of {sizes} clients" if self.clusters else text


@dataclass(frozen=True)
class Moments:
    """Sums of products by client and part: of m clients with PARTS parts, p features and c targets, float64."""

    clients: tuple[str, ...]
    gram: Tensor
    """(m, parts, p, p)"""
    cross: Tensor
    """(m, parts, p, c)"""
    square: Tensor
    """(m, parts)"""
    count: Tensor
    """(m, parts)"""

    def of(self, parts: Sequence[int]) -> Fit:
        """The means over some of the parts."""
        count = self.count[:, parts].sum(1)
        gram = self.gram[:, parts].sum(1) / count[:, None, None]
        cross = self.cross[:, parts].sum(1) / count[:, None, None]
        return Fit(gram, cross, self.square[:, parts].sum(1) / count, count)


@dataclass(frozen=True)
class Fit:
    """Mean products of each client over some parts of its data."""

    gram: Tensor
    cross: Tensor
    square: Tensor
    count: Tensor

    def losses(self, models: Tensor) -> Tensor:
        """The mean squared error `(m,)` of models `(m, p, c)`, one per client, or of one `(p, c)`."""
        inner = self.gram @ models - 2 * self.cross
        return (models * inner).sum((1, 2)) + self.square

    def losses_of_all(self, models: Sequence[Tensor]) -> Tensor:
        """The mean squared error `(m, K)` of each client under each of K models `(p, c)`, in one product."""
        stacked = torch.stack(list(models))
        flat = stacked.permute(1, 0, 2).flatten(1)  # (p, K·c)
        squares: Tensor = (flat * (self.gram @ flat)).sum(1).unflatten(1, (len(models), -1)).sum(2)
        products: Tensor = torch.einsum("mpc,kpc->mk", self.cross, stacked)
        return squares - 2 * products + self.square[:, None]

    def shared(self, members: Tensor, ridge: float) -> Tensor:
        """The model `(p, c)` of some clients, each of the same weight."""
        gram, cross = self.gram[members].mean(0), self.cross[members].mean(0)
        return _solved(gram, cross, ridge / self.count[members].sum())

    def own(self, towards: Tensor, ridge: float) -> Tensor:
        """A model `(m, p, c)` per client, drawn to those given."""
        weight = (ridge / self.count)[:, None, None]
        return _solved(self.gram, self.cross + weight * towards, weight)

    def centred(self, scale: float) -> Fit:
        """The same with a share of each client's means taken out, which an offset of its own explains."""
        mean, target = self.gram[:, :, -1:], self.cross[:, -1:]
        return replace(self, gram=self.gram - scale * mean @ mean.mT, cross=self.cross - scale * mean @ target)

    def with_offset(self, models: Tensor, scale: float) -> Tensor:
        """The models `(m, p, c)` with a share of each client's mean residual added to their constant."""
        models = models.expand(len(self.gram), *models.shape[-2:]).clone()
        residual = self.cross[:, -1] - (self.gram[:, -1:] @ models)[:, 0]
        models[:, -1] += scale * residual
        return models

    def models_of(self, choice: Choice, ridge: float) -> Tensor:
        """The model `(m, p, c)` that each client shares with those who chose the same."""
        made, place = self.by_choice(choice, ridge), np.unique(choice, return_inverse=True)[1]
        return torch.stack([made[k] for k in place])

    def by_choice(self, choice: Choice, ridge: float) -> list[Tensor]:
        """The model `(p, c)` of those who chose the same, for each number that was chosen."""
        rows = torch.from_numpy(choice)
        return [self.shared(torch.nonzero(rows == int(k))[:, 0], ridge) for k in np.unique(choice)]


def _solved(gram: Tensor, cross: Tensor, ridge: Tensor) -> Tensor:
    model: Tensor = torch.linalg.solve(gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype), cross)
    return model


def compare_sharing(server: Server) -> Sharing | None:
    """Which way of sharing held-out data chooses; None where features cannot be made of the clients' samples."""
    if len(server.clients) < 2:
        return None
    order = numpy_generator(server.seed, "sharing").permutation(len(server.clients)).tolist()
    drawn = [server.clients[i] for i in sorted(order[:MOST_CLIENTS])]
    ask = _feature_task(drawn, server)
    found = None if ask is None else _moments(drawn, ask, server)
    if ask is None or found is None or len(found.clients) < 2:
        return None
    with one_torch_thread():  # many small systems: a second thread only waits
        comparison = _Comparison(found)
        sharing = comparison.result()
        if not sharing.clusters:
            return sharing
        rest = [client for client in server.clients if client not in set(found.clients)]
        return replace(sharing, clusters=comparison.joined_by(rest, sharing, ask, server))


def _feature_task(clients: Sequence[str], server: Server) -> FeatureMoments | None:
    replies = list(server.ask_all(clients, InputMoments()))
    widths = {len(reply.values["mean"]) for reply in replies}
    if len(widths) != 1 or not all(np.isfinite(reply.values["mean"]).all() for reply in replies):
        return None
    mean = torch.tensor([reply.values["mean"] for reply in replies], dtype=torch.float64).mean(0)
    square = torch.tensor([reply.values["square"] for reply in replies], dtype=torch.float64).mean(0)
    spread = (square - mean.square()).clamp_min(0).sqrt()
    if len(mean) > FEATURES:  # of images and the like: pixels keep their proportions
        spread = spread.square().mean().sqrt().expand_as(spread)
    unit = torch.where(spread > 0, spread, torch.ones_like(spread)) * math.sqrt(len(mean))
    linear = sum(len(entry.shape) > 1 for entry in server.layout.entries) <= 1
    classes = int(max(reply.values["classes"] for reply in replies))
    return FeatureMoments(
        mean.float(), unit.float(), FEATURES, linear, classes, PARTS, derive(server.seed, "features"), 0
    )


def _moments(clients: Sequence[str], ask: FeatureMoments, server: Server) -> Moments | None:
    """The moments of those clients that have samples in every part."""
    requests = [Request(c, replace(ask, own_seed=server.seed_of(0, c, "parts"))) for c in clients]
    p, c = ask.width, max(1, ask.classes)
    triangle = torch.triu_indices(p, p)
    names, grams, crosses, rest = [], [], [], []
    for reply in server.ask(requests):
        if reply.vector is None or not bool(torch.isfinite(reply.vector).all()):
            continue
        upper, cross, counts = reply.vector.double().view(PARTS, -1).split([p * (p + 1) // 2, p * c, 2], 1)
        if not bool((counts[:, 1] > 0).all()):
            continue
        gram = torch.zeros(PARTS, p, p, dtype=torch.float64)
        gram[:, triangle[0], triangle[1]] = upper
        grams.append(gram + gram.mT - torch.diag_embed(gram.diagonal(dim1=1, dim2=2)))
        crosses.append(cross.reshape(PARTS, p, c))
        rest.append(counts)
        names.append(reply.client)
    if not names:
        return None
    gram, cross, counts = torch.stack(grams), torch.stack(crosses), torch.stack(rest)
    return _standardised(Moments(tuple(names), gram, cross, counts[..., 0], counts[..., 1]))


def _standardised(found: Moments) -> Moments:
    """The moments of features with mean zero, and of length one together."""
    whole = found.of(range(PARTS)).gram.mean(0)
    mean = whole[-1, :-1]
    spread = (whole.diagonal()[:-1] - mean.square()).clamp_min(0).sqrt()
    unit = torch.where(spread > 1e-6, spread, torch.ones_like(spread)) * math.sqrt(len(mean))
    turn = torch.diag(torch.cat([1 / unit, unit.new_ones(1)]))
    turn[-1, :-1] = -mean / unit
    return replace(found, gram=turn.T @ found.gram @ turn, cross=turn.T @ found.cross)


class _Comparison:
    """The ways of sharing, each fitted on all parts but one and judged on that one."""

    def __init__(self, found: Moments) -> None:
        self.found = found
        self.folds = [(found.of([j for j in range(PARTS) if j != i]), found.of([i])) for i in range(PARTS)]
        self.whole = found.of(range(PARTS))
        everyone = torch.arange(len(found.clients))
        one = {ridge: [fit.shared(everyone, ridge) for fit, _ in self.folds] for ridge in RIDGES}
        losses = {ridge: self._judged(models) for ridge, models in one.items()}
        self.ridge = min(losses, key=lambda ridge: float(losses[ridge].mean()))
        self.one, self.start = one[self.ridge], losses[self.ridge]
        self.best = self.start
        self.ways: list[Way] = []
        self.named = "one model"

    def _judged(self, models: Sequence[Tensor]) -> Tensor:
        """Held-out losses `(m, parts)` of each fold's models."""
        return torch.stack([held.losses(own) for (_, held), own in zip(self.folds, models, strict=True)], 1)

    def result(self) -> Sharing:
        """Go through the ways, the simplest first."""
        candidates = self._clusters()
        self.count = len(SCALES) + len(candidates) + len(RIDGES)
        everyone = np.zeros(len(self.found.clients), dtype=np.int64)
        offsets = {scale: self._with_offset([everyone] * PARTS, scale) for scale in SCALES}
        scale = self._try("offset", offsets)
        shared = offsets[scale] if scale else self.one
        clusters = 0
        for k, choices in candidates.items():  # one by one: a number is taken if it is surely better than a smaller one
            models = self._with_offset(choices, scale)
            if self._try("clusters", {k: models}):
                clusters, shared = k, models
        self._try("own", {ridge: [fit.own(own, ridge) for fit, own in self._fits(shared)] for ridge in RIDGES})
        members = self._reproduced(clusters, candidates[clusters]) if clusters else ()
        return Sharing(tuple(self.ways), LEVEL / self.count, len(self.found.clients), members)

    def _with_offset(self, choices: Sequence[Choice], scale: float) -> list[Tensor]:
        """Of each fold the models of those who chose the same, with a share of a private offset per client."""
        made = [fit.centred(scale).models_of(choice, self.ridge) for fit, choice in self._fits(choices)]
        return [fit.with_offset(models, scale) for fit, models in self._fits(made)]

    def _fits(self, own: Sequence[T]) -> Iterator[tuple[Fit, T]]:
        """What each fold is fitted on, with something of its own."""
        return zip((fit for fit, _ in self.folds), own, strict=True)

    def _reproduced(self, k: int, choices: Sequence[Choice]) -> tuple[tuple[str, ...], ...]:
        """The clusters that all data says, if every part of it says the same: else they are no place to begin."""
        self.choice = self._partitions(self.whole)[k]
        found = tuple(self._members(self.choice))
        return found if all(set(self._members(choice)) == set(found) for choice in choices) else ()

    def _members(self, choice: Choice) -> Iterator[tuple[str, ...]]:
        for k in np.unique(choice):
            yield tuple(client for client, own in zip(self.found.clients, choice, strict=True) if own == k)

    def _try(self, kind: str, options: Mapping[float, Sequence[Tensor]]) -> float:
        """Judge the options of a way against the best until now, and take the best of those that are surely better.

        Returns:
            The option that was taken, or 0.
        """
        tried = {option: self._judged(models) for option, models in options.items()}
        ways = {
            option: Way(kind, option, self.named, self._gain(self.best, losses), self._gain(self.start, losses))
            for option, losses in tried.items()
        }
        sure = [way for way in ways.values() if way.gain.p_value <= LEVEL / self.count]
        taken = max(sure, key=lambda way: way.gain.gain, default=None)
        self.ways += [replace(way, chosen=way is taken) for way in ways.values()]
        if taken is None:
            return 0.0
        self.best, self.named = tried[taken.option], taken.name
        return taken.option

    @staticmethod
    def _gain(before: Tensor, losses: Tensor) -> Benefit:
        """What a way gains over another, as the logarithm of how many times the error of each client falls.

        Few clients have no spread to speak of: there the parts of their data are the unit.
        """
        few = len(losses) < FEWEST
        old, new = (held.flatten() if few else held.mean(1) for held in (before, losses))
        return benefit((old.clamp_min(1e-30) / new.clamp_min(1e-30)).log().numpy())

    def _clusters(self) -> dict[int, list[Choice]]:
        """Who chose the same, by the number of clusters and fold."""
        by_fold = [self._partitions(fit) for fit, _ in self.folds]
        return {k: [found[k] for found in by_fold] for k in by_fold[0]}

    def _partitions(self, fit: Fit) -> dict[int, Choice]:
        """Ways to cluster the clients, by the number of clusters: by how badly their models serve one another.

        The levels of a dendrogram are where clients begin; then all choose among the clusters' models until none moves.
        """
        count = len(fit.gram)
        common = fit.shared(torch.arange(count), self.ridge)
        own = fit.own(common, ridge=1.0)  # as if one sample spoke for the common model
        losses = fit.losses_of_all(own.unbind())  # (client, model)
        excess = (losses - losses.diagonal()[:, None]).clamp_min(0)
        tree = dendrogram((excess + excess.T).sqrt().numpy(), "ward")
        return {k: self._settled(fit, cut(tree, k)) for k in range(2, min(MOST_CLUSTERS, count) + 1)}

    def _settled(self, fit: Fit, choice: Choice) -> Choice:
        for _ in range(MOST_CLUSTERS):
            choice, before = self._chosen(fit, fit.by_choice(choice, self.ridge)), choice
            if (choice == before).all():
                break
        return choice

    @staticmethod
    def _chosen(fit: Fit, models: Sequence[Tensor]) -> Choice:
        return fit.losses_of_all(models).argmin(1).numpy()

    def joined_by(
        self, clients: Sequence[str], sharing: Sharing, ask: FeatureMoments, server: Server
    ) -> tuple[tuple[str, ...], ...]:
        """The clusters with those clients that were not compared: each chooses the model that serves it best."""
        models, members = self.whole.by_choice(self.choice, self.ridge), [list(own) for own in sharing.clusters]
        largest = max(range(len(members)), key=lambda k: len(members[k]))
        left = iter(clients)
        while some := list(islice(left, MOST_CLIENTS)):
            found = _moments(some, ask, server)
            known = () if found is None else found.clients
            chose = [] if found is None else self._chosen(found.of(range(PARTS)), models).tolist()
            chosen = dict(zip(known, chose, strict=True))
            for client in some:
                members[chosen.get(client, largest)].append(client)
        return tuple(tuple(own) for own in members)
