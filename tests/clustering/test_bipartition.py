"""The bipartition is optimal (against all splits of up to nine clients), a partition, deterministic and fast."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import Bipartition, alpha_cross_max, bipartition
from coterie.clustering.agglomerative import cut


def every_split(clients: int) -> np.ndarray:
    """All 2^(M-1) - 1 splits as rows of booleans, client 0 always on the False side."""
    codes = np.arange(1, 2 ** (clients - 1))
    sides = (codes[:, None] >> np.arange(clients - 1)) & 1
    return np.concatenate([np.zeros((len(codes), 1), dtype=bool), sides.astype(bool)], axis=1)


SPLITS = {clients: every_split(clients) for clients in range(2, 10)}


def brute_force(similarity: np.ndarray) -> float:
    sides = SPLITS[len(similarity)]
    across = sides[:, :, None] != sides[:, None, :]
    return float(np.where(across, similarity, -np.inf).max(axis=(1, 2)).min())


def check(similarity: np.ndarray, split: Bipartition) -> None:
    clients = len(similarity)
    assert split.first[0] == 0
    assert len(split.second) > 0
    assert sorted([*split.first, *split.second]) == list(range(clients))
    assert (np.diff(split.first) > 0).all()
    assert (np.diff(split.second) > 0).all()
    sides = np.isin(np.arange(clients), split.second)
    assert split.alpha_cross_max == alpha_cross_max(similarity, sides)


def symmetric(values: np.ndarray) -> np.ndarray:
    upper = np.triu(values, 1)
    return np.asarray(upper + upper.T + np.eye(len(values)))


@pytest.mark.parametrize("values", [None, [-1.0, 0.0, 1.0], [0.25, 0.5], [-0.5], [1.0], [-0.9, -0.8, -0.7, -0.1]])
def test_equals_brute_force_on_thousands_of_matrices(values: list[float] | None) -> None:
    rng = np.random.default_rng(11)
    for _ in range(600):
        clients = int(rng.integers(2, 10))
        shape = (clients, clients)
        similarity = symmetric(rng.uniform(-1, 1, shape) if values is None else rng.choice(values, shape))
        split = bipartition(similarity)
        check(similarity, split)
        assert split.alpha_cross_max == brute_force(similarity)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=2, max_size=9).filter(
        lambda rows: any(x or y for x, y in rows)
    )
)
def test_equals_brute_force_on_cosines_with_duplicate_and_zero_clients(rows: list[tuple[int, int]]) -> None:
    points = np.array(rows, dtype=float)
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    unit = np.divide(points, lengths, out=np.zeros_like(points), where=lengths > 0)
    similarity = symmetric(unit @ unit.T)
    split = bipartition(similarity)
    check(similarity, split)
    assert split.alpha_cross_max == brute_force(similarity)


def test_hand_worked_chain_where_complete_linkage_is_not_optimal() -> None:
    # 0-1-2-3 hang together by 0.9, 0.8, 0.9; 4 has 0.4 to 2 and 0.5 to 3. Optimal: {4} alone, 0.5 across.
    # Complete linkage looks at the worst pair, joins 4 to {2, 3} (0.4) and so tears 1 from 2.
    similarity = np.full((5, 5), -0.5)
    for i, j, value in [(0, 1, 0.9), (1, 2, 0.8), (2, 3, 0.9), (2, 4, 0.4), (3, 4, 0.5)]:
        similarity[i, j] = similarity[j, i] = value
    single = bipartition(similarity)
    assert single.second.tolist() == [4]
    assert single.alpha_cross_max == 0.5
    complete = bipartition(similarity, linkage="complete")
    check(similarity, complete)
    assert complete.second.tolist() == [2, 3, 4]
    assert complete.alpha_cross_max == 0.8


def test_complete_linkage_always_gives_two_sides_even_when_all_is_tied() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        similarity = symmetric(rng.choice([0.0, 0.5], (int(rng.integers(2, 10)),) * 2))
        split = bipartition(similarity, linkage="complete")
        check(similarity, split)
        assert split.alpha_cross_max >= bipartition(similarity).alpha_cross_max
    check(np.ones((6, 6)), bipartition(np.ones((6, 6)), linkage="complete"))


def test_ties_go_to_the_most_balanced_split() -> None:
    assert len(bipartition(np.ones((8, 8))).first) == 4
    groups = np.repeat(np.arange(4), 3)
    similarity = np.where(groups[:, None] == groups, 1.0, -1 / 3)
    split = bipartition(similarity)
    assert len(split.first) == len(split.second) == 6
    assert not set(groups[split.first]) & set(groups[split.second])


def test_two_clients_and_a_float32_matrix() -> None:
    split = bipartition(np.array([[1, 0.25], [0.25, 1]], dtype=np.float32))
    assert (split.first.tolist(), split.second.tolist(), split.alpha_cross_max) == ([0], [1], 0.25)


def test_split_follows_the_clients_when_they_are_reordered() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        similarity = symmetric(rng.uniform(-1, 1, (9, 9)))
        order = rng.permutation(9)
        split, moved = bipartition(similarity), bipartition(similarity[np.ix_(order, order)])
        sides = {frozenset(split.first.tolist()), frozenset(split.second.tolist())}
        assert {frozenset(order[moved.first].tolist()), frozenset(order[moved.second].tolist())} == sides


@pytest.mark.parametrize("similarity", [np.ones((1, 1)), np.ones((2, 3)), np.array([[1, np.nan], [np.nan, 1]])])
def test_what_cannot_be_split_is_refused(similarity: np.ndarray) -> None:
    with pytest.raises(ValueError, match="similarity"):
        bipartition(similarity)


def test_unknown_linkage_is_refused() -> None:
    with pytest.raises(ValueError, match="average"):
        bipartition(np.eye(3), linkage="average")  # type: ignore[arg-type]


def test_cut_gives_exactly_as_many_clusters_as_asked_numbered_by_first_member() -> None:
    # Heights all tied: ((0, 3), (1, 2)), then 4.
    merges = np.array([[1, 2, 1, 2], [0, 3, 1, 2], [5, 6, 1, 4], [4, 7, 1, 5]], dtype=float)
    expected = {1: [0] * 5, 2: [0, 0, 0, 0, 1], 3: [0, 1, 1, 0, 2], 4: [0, 1, 1, 2, 3], 5: [0, 1, 2, 3, 4]}
    assert {clusters: cut(merges, clusters).tolist() for clusters in expected} == expected
    with pytest.raises(ValueError, match="6"):
        cut(merges, 6)
