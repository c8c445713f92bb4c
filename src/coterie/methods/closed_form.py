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
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.benefit import FEWEST, LEVEL, Benefit, benefit
from coterie.clustering.agglomerative import cut, dendrogram
from coterie.methods.server import Server
from coterie.randomness import derive, numpy_generator
from coterie.tasks import FeatureMoments, InputMoments, Request
from coterie.tasks.moments import factors_of, numbers_in
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
RIDGES = (10.0, 1.0)
"""How strongly models are drawn to zero, or those of single clients to the shared one, in samples."""

TINY = torch.finfo(torch.float32).eps
"""What is sent is not known better than that: added to products, it keeps systems positive where features are alike."""

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
    """Who shares a model, where clusters were chosen."""

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
        """The way to begin with: clusters where some were chosen, else what was."""
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
    """Of m clients with PARTS parts, p features and c targets, part by part, float64: products of their samples."""

    clients: tuple[str, ...]
    factor: Tensor
    """(m, parts, rows, p) R, of which RᵀR are the sums of products of features."""
    target: Tensor
    """(m, parts, rows, c) B, of which RᵀB are the sums of products of features and targets."""
    square: Tensor
    """(m, parts)"""
    count: Tensor
    """(m, parts)"""

    def of(self, parts: Sequence[int]) -> Fit:
        """The means over some of the parts."""
        count = self.count[:, parts].sum(1)
        share = count.sqrt()[:, None, None]
        factor, target = (own[:, parts].flatten(1, 2) / share for own in (self.factor, self.target))
        return Fit(*_square(factor, target), self.square[:, parts].sum(1) / count, count)


def _square(factor: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """R and B with at most p rows."""
    rows, p = factor.shape[1:]
    if rows <= p:
        return factor, target
    gram = factor.mT @ factor + TINY * torch.eye(p, dtype=factor.dtype)
    lower = torch.linalg.cholesky(gram)
    return lower.mT, torch.linalg.solve_triangular(lower, factor.mT @ target, upper=False)


@dataclass(frozen=True)
class Fit:
    """Mean products of each client over some parts of its data."""

    factor: Tensor
    """(m, rows, p)"""
    target: Tensor
    """(m, rows, c)"""
    square: Tensor
    """(m,) the mean of ‖y‖²"""
    count: Tensor
    """(m,)"""

    @cached_property
    def gram(self) -> Tensor:
        """The mean products of features, `(m, p, p)`."""
        return self.factor.mT @ self.factor

    @cached_property
    def cross(self) -> Tensor:
        """The mean products of features and targets, `(m, p, c)`."""
        return self.factor.mT @ self.target

    @cached_property
    def kernel(self) -> Tensor:
        """The products of rows, `(m, rows, rows)`."""
        return self.factor @ self.factor.mT

    @cached_property
    def rest(self) -> Tensor:
        """What no model explains of the mean of ‖y‖², `(m,)`."""
        return self.square - self.target.square().sum((1, 2))

    def losses(self, models: Tensor) -> Tensor:
        """The mean squared error `(m,)` of models `(m, p, c)`, one per client, or of one `(p, c)`."""
        return (self.target - self.factor @ models).square().sum((1, 2)) + self.rest

    def losses_of_all(self, models: Tensor) -> Tensor:
        """The mean squared error `(m, K)` of each client under each of K models `(K, p, c)`, in one product."""
        flat = models.permute(1, 0, 2).flatten(1)  # (p, K·c)
        outputs = (self.factor @ flat).unflatten(2, (len(models), -1))
        losses: Tensor = (self.target[:, :, None] - outputs).square().sum((1, 3)) + self.rest[:, None]
        return losses

    def by_choice(self, choice: Choice, ridge: float, scale: float = 0.0) -> Tensor:
        """The model `(K, p, c)` of those who chose the same, each client of the same weight, for each number chosen.

        With `scale` that share of each client's means is taken out, which an offset of its own explains.
        """
        chose = torch.from_numpy(np.unique(choice)[:, None] == choice).to(self.gram.dtype)  # (K, m)
        share = chose / chose.sum(1, keepdim=True)
        gram = (share @ self.gram.flatten(1)).unflatten(1, self.gram.shape[1:])
        cross = (share @ self.cross.flatten(1)).unflatten(1, self.cross.shape[1:])
        if scale:
            means = self.gram[:, -1] * share.sqrt()[:, :, None]  # (K, m, p)
            targets = self.cross[:, -1] * share.sqrt()[:, :, None]
            gram, cross = gram - scale * means.mT @ means, cross - scale * means.mT @ targets
        return _solved(gram, cross, ridge / (chose @ self.count))

    def models_of(self, choice: Choice, ridge: float, scale: float = 0.0) -> Tensor:
        """The model `(m, p, c)` that each client shares with those who chose the same, with a share of its offset."""
        models = self.by_choice(choice, ridge, scale)[np.unique(choice, return_inverse=True)[1]]
        return self.with_offset(models, scale) if scale else models

    def centred(self) -> Fit:
        """The same without each client's means, which an offset of its own explains."""
        constant = self.factor[:, :, -1:]  # (m, rows, 1), of length one, because the mean of ones is one
        means = constant.mT @ self.target
        square = self.square - means.square().sum((1, 2))
        return Fit(
            self.factor - constant @ (constant.mT @ self.factor), self.target - constant @ means, square, self.count
        )

    def own(self, towards: Tensor, ridge: float) -> Tensor:
        """A model `(m, p, c)` per client, drawn to those given."""
        left = _solved(self.kernel, self.target - self.factor @ towards, ridge / self.count)
        return towards + self.factor.mT @ left

    def with_offset(self, models: Tensor, scale: float) -> Tensor:
        """The models `(m, p, c)` with a share of each client's mean residual added to their constant."""
        models = models.expand(len(self.gram), *models.shape[-2:]).clone()
        residual = self.cross[:, -1] - (self.gram[:, -1:] @ models)[:, 0]
        models[:, -1] += scale * residual
        return models


def _solved(products: Tensor, right: Tensor, ridge: Tensor) -> Tensor:
    """The solution of each of several positive semidefinite systems, to whose diagonal a ridge is added."""
    eye = torch.eye(products.shape[-1], dtype=products.dtype)
    lower = torch.linalg.cholesky(products + (ridge + TINY)[:, None, None] * eye)
    return torch.cholesky_solve(right, lower)


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
    names, factors, targets, sums = [], [], [], []
    for reply in server.ask(requests):
        counts = [int(count) for count in reply.values["sums"][:, 1].tolist()]
        if min(counts) < 1 or reply.values["factors"].shape[1] < numbers_in(max(counts), p, c):
            continue
        factor, target = factors_of(reply.values["factors"].double(), counts, p, c)
        factors.append(factor)
        targets.append(target)
        sums.append(reply.values["sums"].double())
        names.append(reply.client)
    if not names:
        return None
    square, count = torch.stack(sums).unbind(2)
    return _standardised(Moments(tuple(names), _padded(factors), _padded(targets), square, count))


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Several `(parts, rows, width)` as one, with rows of zeros where some have fewer."""
    rows = max(own.shape[1] for own in parts)
    return torch.stack([torch.nn.functional.pad(own, (0, 0, 0, rows - own.shape[1])) for own in parts])


def _standardised(found: Moments) -> Moments:
    """The moments of features with mean zero, and of length one together."""
    whole = found.count.sum(1)[:, None]
    mean = ((found.factor * found.factor[..., -1:]).sum((1, 2)) / whole).mean(0)[:-1]
    square = (found.factor.square().sum((1, 2)) / whole).mean(0)[:-1]
    spread = (square - mean.square()).clamp_min(0).sqrt()
    unit = torch.where(spread > 1e-6, spread, torch.ones_like(spread)) * math.sqrt(len(mean))
    constant = found.factor[..., -1:]
    return replace(found, factor=torch.cat([(found.factor[..., :-1] - constant * mean) / unit, constant], -1))


def _together(choice: Choice) -> set[frozenset[int]]:
    """Who chose the same, by their places."""
    return {frozenset(np.flatnonzero(choice == k).tolist()) for k in np.unique(choice)}


class _Comparison:
    """The ways of sharing, each fitted on all parts but one and judged on that one."""

    def __init__(self, found: Moments) -> None:
        self.found = found
        self.folds = [(found.of([j for j in range(PARTS) if j != i]), found.of([i])) for i in range(PARTS)]
        self.everyone = np.zeros(len(found.clients), dtype=np.int64)
        self.one = self._shared(self.everyone, 0.0)
        self.best = self.start = self._judged(self.one)
        self.ways: list[Way] = []
        self.named = "one model"

    def _judged(self, models: Sequence[Tensor]) -> Tensor:
        """Held-out losses `(m, parts)` of each fold's models."""
        return torch.stack([held.losses(own) for (_, held), own in zip(self.folds, models, strict=True)], 1)

    def result(self) -> Sharing:
        """Go through the ways, the simplest first."""
        candidates = self._clusters()
        self.count = len(SCALES) + len(candidates) + len(RIDGES)
        offsets = {scale: self._shared(self.everyone, scale) for scale in SCALES}
        scale = self._try("offset", offsets)
        shared = offsets[scale] if scale else self.one
        clusters = 0
        for k, choice in candidates.items():  # one by one: a number is taken if it is surely better than a smaller one
            models = self._shared(choice, scale)
            if self._try("clusters", {k: models}):
                clusters, shared = k, models
        own = {
            ridge: [fit.own(models, ridge) for (fit, _), models in zip(self.folds, shared, strict=True)]
            for ridge in RIDGES
        }
        self._try("own", own)
        self.choice = candidates.get(clusters, self.everyone)
        members = tuple(self._members()) if clusters else ()
        return Sharing(tuple(self.ways), LEVEL / self.count, len(self.found.clients), members)

    def _shared(self, choice: Choice, scale: float) -> list[Tensor]:
        """Of each fold the models of those who chose the same, with a share of a private offset per client.

        Every way has the ridge that serves it best: one that lets a model for all bear conflicts holds others back.
        """
        tried = [[fit.models_of(choice, ridge, scale) for fit, _ in self.folds] for ridge in RIDGES]
        return min(tried, key=lambda models: float(self._judged(models).mean()))

    def _members(self) -> Iterator[tuple[str, ...]]:
        for k in np.unique(self.choice):
            yield tuple(client for client, own in zip(self.found.clients, self.choice, strict=True) if own == k)

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

    def _clusters(self) -> dict[int, Choice]:
        """Who chooses the same, by the number of clusters, where every fold finds the same ones.

        Others are no place to begin: where label proportions differ there are as many as one looks for.
        """
        fits = [fit.centred() for fit, _ in self.folds]
        trees = [self._dendrogram(fit) for fit in fits]
        found = {}
        for k in range(2, min(MOST_CLUSTERS, len(self.everyone)) + 1):
            first, *others = ((fit, cut(tree, k)) for fit, tree in zip(fits, trees, strict=True))
            choice = self._settled(*first)
            if all(_together(self._settled(*other)) == _together(choice) for other in others):
                found[k] = choice
        return found

    def _dendrogram(self, fit: Fit) -> npt.NDArray[np.float64]:
        """How clients come together: by how badly models of their own serve one another."""
        ridge = min(RIDGES)
        losses = fit.losses_of_all(fit.own(fit.by_choice(self.everyone, ridge), ridge))  # (client, model)
        excess = (losses - losses.diagonal()[:, None]).clamp_min(0)
        return dendrogram((excess + excess.T).sqrt().numpy(), "ward")

    def _settled(self, fit: Fit, choice: Choice) -> Choice:
        """From there all clients choose among the clusters' models until none moves."""
        for _ in range(MOST_CLUSTERS):
            choice, before = self._chosen(fit, fit.by_choice(choice, min(RIDGES))), choice
            if (choice == before).all():
                break
        return choice

    @staticmethod
    def _chosen(fit: Fit, models: Tensor) -> Choice:
        return fit.losses_of_all(models).argmin(1).numpy()

    def joined_by(
        self, clients: Sequence[str], sharing: Sharing, ask: FeatureMoments, server: Server
    ) -> tuple[tuple[str, ...], ...]:
        """The clusters with those clients that were not compared: each chooses the model that serves it best."""
        whole = self.found.of(range(PARTS)).centred()
        models, members = whole.by_choice(self.choice, min(RIDGES)), [list(own) for own in sharing.clusters]
        largest = max(range(len(members)), key=lambda k: len(members[k]))
        left = iter(clients)
        while some := list(islice(left, MOST_CLIENTS)):
            found = _moments(some, ask, server)
            known = () if found is None else found.clients
            chose = [] if found is None else self._chosen(found.of(range(PARTS)).centred(), models).tolist()
            chosen = dict(zip(known, chose, strict=True))
            for client in some:
                members[chosen.get(client, largest)].append(client)
        return tuple(tuple(own) for own in members)
