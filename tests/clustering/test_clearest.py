"""The clearest threshold: families with stragglers between them are told apart, one heap is one family."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering import adjusted_rand_index, auto_gamma, min_pair_distances, related, ward_clusters
from coterie.clustering.clearest import clearest_gamma


def families(seed: int, bridges: float) -> tuple[np.ndarray, np.ndarray]:
    """Centroids (60, 5, 2) of six families in a row; a share `bridges` of the centroids lies with the next family."""
    rng = np.random.default_rng(seed)
    groups = np.arange(60) % 6
    home = groups[:, None] + (rng.random((60, 5)) < bridges)
    centres = np.stack([4.0 * home, np.zeros_like(home, dtype=float)], axis=2)
    return centres + 0.4 * rng.normal(size=(60, 5, 2)), groups


@pytest.mark.parametrize("seed", range(5))
def test_families_with_stragglers_are_told_apart(seed: int) -> None:
    points, groups = families(seed, bridges=0.06)
    distances = min_pair_distances(points)
    labels = ward_clusters(related(distances, clearest_gamma(distances, longest=1.5)))
    assert adjusted_rand_index(labels, groups) > 0.9


def test_gamma_scales_with_the_distances_and_respects_its_bound() -> None:
    distances = min_pair_distances(families(0, 0.05)[0])
    gamma = clearest_gamma(distances)
    assert clearest_gamma(3 * distances) == pytest.approx(3 * gamma)
    assert clearest_gamma(distances, longest=0.2) <= 0.2 * (1 + 1e-9)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_are_left_to_the_distances(clients: int) -> None:
    distances = min_pair_distances(np.random.default_rng(0).normal(size=(clients, 2, 2)))
    assert clearest_gamma(distances) == auto_gamma(distances)


def test_identical_clients_are_one_family() -> None:
    distances = np.zeros((8, 8))
    assert related(distances, clearest_gamma(distances)).all()
