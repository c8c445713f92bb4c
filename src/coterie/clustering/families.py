"""Families of clients by the words that their centroids share: one family unless the evidence says several (FLT).

A *word* is a dense patch of the plane in which all clients' centroids lie, a *vocabulary* the words at one scale.
Clients of one family use the same words together. The null model is one family: every client keeps how its centroids
bunch (so many in its first word, so many in its second, …) and every word its popularity, but which words stand
together in a client is chance. What is compared with it is the silhouette of clusters by shared words. Real families
exceed the null model too, because k-means spreads a client's centroids; so several families need a margin, set by
federations of one family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.clustering.clearest_cut import clearest_cut, mean_silhouette, stand_alone
from coterie.clustering.dendrogram import cut
from coterie.clustering.relatedness import real_centroids
from coterie.randomness import numpy_generator

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


class Scale(NamedTuple):
    """How HDBSCAN makes the words of one vocabulary."""

    selection: Literal["eom", "leaf"]
    """Of the tree of ever denser patches: the most persistent ones, or the densest."""
    share: float
    """Centroids that make a word, at the least, for each client; never fewer than FEWEST."""
    neighbours: int
    """Neighbours, a centroid itself included, within which the density around it is measured."""


# These were chosen on federations 0 to 107 of the recipe `flt-decisions`, and judged on others.
SCALES = (Scale("eom", 0.15, 3), Scale("leaf", 0.2, 5), Scale("leaf", 0.15, 3), Scale("leaf", 0.25, 3))
FEWEST = 4
APART = 0.5
"""For the evidence clusters merge while their members share more than this part of their words on average."""
EXCESS = 0.41
"""Silhouette above the null model's that several families must have: none of 74 federations of one family among 177
below number 3066 has it (mean 0.16, highest 0.40): with 95 % confidence fewer than 4 % false alarms. Of the 103 of
several 97 do."""
LEVEL = 0.01
"""False alarms of `unlike` at the most."""
DRAWS = 20
"""Federations drawn from the null model."""
MOST = 400
"""Clients in a federation drawn from the null model, at the most: its mean silhouette needs no more."""


@dataclass(frozen=True)
class Families:
    """The families of clients, and the evidence for them."""

    labels: Labels
    """`(M,)`: the family of each client, numbered by first member; all 0 where the evidence is not enough."""
    words: int
    """Patches of centroids that were told apart."""
    silhouette: float
    """How well the clusters stand apart, at most 1; 0 for a single cluster."""
    expected: float
    """The mean of the same in federations drawn from the null model of one family."""
    layout: int = 0
    """Which of the layouts shows the families best."""

    @property
    def excess(self) -> float:
        """The evidence: silhouette above the null model's."""
        return self.silhouette - self.expected

    def describe(self) -> str:
        """The evidence in words."""
        verdict = "enough" if self.several else "not enough"
        return (
            f"{self.words} patches of centroids; clusters by shared patches have silhouette {self.silhouette:.2f}, one "
            f"family would have {self.expected:.2f} ({verdict}: several need {EXCESS:g} more)"
        )

    @property
    def several(self) -> bool:
        """Whether there is more than one family."""
        return bool(self.labels.max() > 0)


def find_families(
    *layouts: npt.NDArray[np.floating], seed: int = 0, centroids: npt.NDArray[np.floating] | None = None
) -> Families:
    """The families of clients whose centroids lie at positions `(M, k, u)`, nan where a client has fewer than k.

    Several layouts of the same centroids make the answer steady: one may draw two patches into each other. The evidence
    is the mean over them, and clients share the words of all. Where there are several families, a client whose
    `centroids` `(M, k, e)` themselves are far from all others' is one of its own.
    """
    vocabularies = [count_words(positions) for positions in layouts]
    generator = numpy_generator(seed, "families")
    silhouettes, expected = np.transpose([_evidence(counts, generator) for counts in vocabularies])
    together = [counts for layout in vocabularies for counts in layout]
    words, whole = max(counts.shape[1] for counts in together), np.zeros(len(layouts[0]), dtype=np.int64)
    found = Families(whole, words, float(silhouettes.mean()), float(expected.mean()))
    if found.excess < EXCESS:
        return found
    labels = family_labels(together)
    if centroids is not None:
        labels = stand_alone(labels, centroids)
    return replace(found, labels=labels, layout=clearest_layout(vocabularies, labels))


def family_labels(counts: Sequence[Labels]) -> Labels:
    """The clusters `(M,)` that stand apart best by what clients do not share. counts: `(M, W)` each."""
    from scipy.spatial.distance import squareform

    return clearest_cut(squareform(unshared(counts)), word_merges(counts))


def _evidence(counts: Sequence[Labels], generator: np.random.Generator) -> tuple[float, float]:
    """The silhouette of the clusters in one layout, and its mean in federations drawn from the null model."""
    silhouette, labels = separated(counts)
    if labels.max() == 0:
        return 0.0, 0.0
    return silhouette, float(np.mean([separated(shuffled(counts, generator))[0] for _ in range(DRAWS)]))


def count_words(positions: npt.NDArray[np.floating]) -> list[Labels]:
    """How many centroids of each client lie in each word: `(M, W)` for each of SCALES. positions: `(M, k, u)`.

    Words are the clusters of HDBSCAN; a centroid outside all of them counts to that of its nearest neighbour inside.
    """
    real = real_centroids(positions)
    points, rows = np.asarray(positions[real], dtype=np.float64), np.nonzero(real)[0]
    counts = []
    for scale in SCALES:
        word = _words(points, scale, max(FEWEST, round(scale.share * len(positions))))
        counts.append(np.zeros((len(positions), int(word.max()) + 1), dtype=np.int64))
        np.add.at(counts[-1], (rows, word), 1)
    return counts


def _words(points: Floats, scale: Scale, least: int) -> Labels:
    """The word `(n,)` of each of the points `(n, u)`, of at least so many points."""
    from scipy.spatial import KDTree
    from sklearn.cluster import HDBSCAN

    if len(points) <= least:
        return np.zeros(len(points), dtype=np.int64)
    clustering = HDBSCAN(
        min_cluster_size=least, min_samples=scale.neighbours, cluster_selection_method=scale.selection, copy=True
    )
    word = np.asarray(clustering.fit_predict(points), dtype=np.int64)
    inside = word >= 0
    if not inside.any():
        return np.zeros(len(points), dtype=np.int64)
    if not inside.all():
        word[~inside] = word[inside][KDTree(points[inside]).query(points[~inside])[1]]
    return word


def unshared(counts: Sequence[Labels]) -> Floats:
    """The part of their words that two clients do not share, 0 to 1, in scipy's condensed form; the mean over several
    vocabularies. counts: `(M, W)` each."""
    from scipy.spatial.distance import pdist

    parts = [pdist(own / own.sum(axis=1, keepdims=True), "cityblock") / 2 for own in counts]
    return np.asarray(np.mean(parts, axis=0))


def word_merges(counts: Sequence[Labels]) -> Floats:
    """The dendrogram of average linkage on what clients do not share: `(M - 1, 4)` in scipy's form, M >= 2."""
    from scipy.cluster.hierarchy import linkage

    return np.asarray(linkage(unshared(counts), "average"))


def separated(counts: Sequence[Labels]) -> tuple[float, Labels]:
    """The silhouette of the clusters that stand APART, and their labels `(M,)`."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if len(counts[0]) < 2:
        return 0.0, np.zeros(len(counts[0]), dtype=np.int64)
    distances = unshared(counts)
    merges = linkage(distances, "average")
    labels = cut(merges, 1 + int(np.count_nonzero(merges[:, 2] > APART)))
    return mean_silhouette(squareform(distances), labels), labels


def clearest_layout(vocabularies: Sequence[Sequence[Labels]], labels: Labels) -> int:
    """The layout by whose words, as `count_words` gives them, the clusters `(M,)` stand apart best."""
    from scipy.spatial.distance import squareform

    if labels.max() == 0:
        return 0
    return int(np.argmax([mean_silhouette(squareform(unshared(counts)), labels) for counts in vocabularies]))


def shuffled(counts: Sequence[Labels], generator: np.random.Generator) -> list[Labels]:
    """A federation of one family, of MOST clients at most: in each vocabulary each client's numbers stay, on words
    drawn anew by their popularity."""
    clients = len(counts[0])
    some = np.arange(clients) if clients <= MOST else generator.choice(clients, MOST, replace=False)
    drawn = []
    for own in counts:
        with np.errstate(divide="ignore"):
            popularity = np.log(own.sum(axis=0))
        # The largest of log-weights with Gumbel noise are a draw without replacement in proportion to the weights.
        keys = popularity + generator.gumbel(size=(len(some), own.shape[1]))
        drawn.append(np.zeros((len(some), own.shape[1]), dtype=np.int64))
        np.put_along_axis(drawn[-1], np.argsort(-keys, axis=1), -np.sort(-own[some], axis=1), axis=1)
    return drawn


def unlike(counts: Labels, seed: int = 0) -> bool:
    """Whether clients share fewer words than if every centroid could be any client's. counts: `(M, W)`.

    False alarms: LEVEL at most, for clients that draw from one distribution (less, because k-means spreads a client's
    centroids over the words more evenly than chance does).
    """
    clients, words = counts.shape
    generator, sizes = numpy_generator(seed, "unlike"), counts.sum(axis=1)
    pool, observed = np.repeat(np.arange(words), counts.sum(axis=0)), unshared([counts]).sum()
    for _ in range(round(1 / LEVEL) - 1):
        drawn = np.zeros_like(counts)
        np.add.at(drawn, (np.repeat(np.arange(clients), sizes), generator.permutation(pool)), 1)
        if unshared([drawn]).sum() >= observed:
            return False
    return True
