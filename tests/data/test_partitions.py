"""Partitions: disjoint, complete where promised, of the right sizes, repeatable, and never hanging."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.allocation import largest_remainder, within_supply
from coterie.data.partitions import (
    Partition,
    by_group_classes,
    by_key,
    classes_per_client,
    dirichlet,
    iid,
    power_law_sizes,
    structured_power_law,
)
from coterie.errors import DataError

seeds = st.integers(0, 2**32)
label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)


def check_partition(parts: Partition, n: int, complete: bool = False) -> None:
    together = np.concatenate(parts)
    assert all(len(part) > 0 and part.dtype == np.int64 for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < n
    if complete:
        assert len(together) == n


@given(st.integers(1, 300), st.integers(1, 20), seeds)
def test_iid_deals_everything_in_even_sizes(n: int, clients: int, seed: int) -> None:
    if clients > n:
        with pytest.raises(DataError, match=f"at most {n} clients"):
            iid(n, clients, seed=seed)
        return
    parts = iid(n, clients, seed=seed)
    check_partition(parts, n, complete=True)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_iid_with_a_size_and_too_few_samples() -> None:
    assert [len(part) for part in iid(100, 7, 13, seed=1)] == [13] * 7
    with pytest.raises(DataError, match="at most 14 samples per client"):
        iid(100, 7, 15)
    with pytest.raises(DataError, match="at least one"):
        iid(100, 0)


def test_power_law_sizes_by_hand() -> None:
    # beta = ln 2, delta = 1: 3 + 2, 3 + 4, 3 + 8, 3 + 16.
    assert power_law_sizes(42, 4, 3, 1.0).tolist() == [5, 7, 11, 19]
    # delta = 0: every client has alpha + e^beta.
    assert power_law_sizes(40, 4, 3, 0.0).tolist() == [10] * 4
    # Nothing beyond the minimum.
    assert power_law_sizes(12, 4, 3, 1.0).tolist() == [3] * 4


@given(st.integers(1, 5000), st.integers(1, 60), st.integers(1, 20), st.floats(0, 3))
def test_power_law_sizes_sum_and_stay_in_order(total: int, clients: int, minimum: int, exponent: float) -> None:
    if clients * minimum > total:
        with pytest.raises(DataError):
            power_law_sizes(total, clients, minimum, exponent)
        return
    sizes = power_law_sizes(total, clients, minimum, exponent)
    assert sizes.sum() == total
    assert sizes.min() >= minimum
    steps = np.diff(sizes)
    assert (steps >= 0).all() or total <= clients * (minimum + 1)


@given(seeds)
def test_power_law_is_complete(seed: int) -> None:
    parts = structured_power_law(np.zeros(500), [[0]], [0] * 20, minimum=5, exponent=0.5, seed=seed)
    check_partition(parts, 500, complete=True)
    assert [len(part) for part in parts] == power_law_sizes(500, 20, 5, 0.5).tolist()


def test_structured_power_law_keeps_groups_in_their_classes() -> None:
    labels = np.repeat(np.arange(6), 50)
    sets = [[0, 3], [1, 2], [4, 5]]
    group_of = [0, 1, 2] * 4
    parts = structured_power_law(labels, sets, group_of, minimum=4, exponent=0.6, seed=3)
    check_partition(parts, 300, complete=True)
    for part, group in zip(parts, group_of, strict=True):
        assert set(labels[part]) <= set(sets[group])
    assert [len(parts[m]) for m in (0, 3, 6, 9)] == power_law_sizes(100, 4, 4, 0.6).tolist()
    with pytest.raises(DataError, match="disjoint"):
        structured_power_law(labels, [[0, 1], [1, 2]], [0, 1], minimum=4, exponent=0.6, seed=3)


@given(label_lists, st.integers(1, 12), st.floats(0.001, 1000), seeds, st.integers(1, 4))
def test_dirichlet_deals_everything(
    labels: npt.NDArray[np.int64], clients: int, alpha: float, seed: int, minimum: int
) -> None:
    if clients * minimum > len(labels):
        with pytest.raises(DataError, match="ask for at most"):
            dirichlet(labels, clients, alpha, seed, minimum=minimum)
        return
    parts = dirichlet(labels, clients, alpha, seed, minimum=minimum)
    check_partition(parts, len(labels), complete=True)
    assert min(len(part) for part in parts) >= minimum


@given(label_lists, st.integers(1, 12), st.floats(0.001, 1000), seeds, st.integers(1, 30))
def test_dirichlet_with_a_size(
    labels: npt.NDArray[np.int64], clients: int, alpha: float, seed: int, samples: int
) -> None:
    if clients * samples > len(labels):
        with pytest.raises(DataError, match="samples per client"):
            dirichlet(labels, clients, alpha, seed, samples_per_client=samples)
        return
    parts = dirichlet(labels, clients, alpha, seed, samples_per_client=samples)
    check_partition(parts, len(labels))
    assert [len(part) for part in parts] == [samples] * clients


@given(st.integers(1, 20), seeds)
def test_dirichlet_with_an_alpha_each_is_complete_and_even(clients: int, seed: int) -> None:
    labels = np.arange(203) % 7
    parts = dirichlet(labels, clients, [0.1 * (m + 1) for m in range(clients)], seed)
    check_partition(parts, 203, complete=True)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def skew(labels: npt.NDArray[np.int64], parts: Partition) -> npt.NDArray[np.float64]:
    """Total variation between each client's labels and the whole: 0 is iid, 0.9 one class of ten."""
    shares = np.stack([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
    skewed: npt.NDArray[np.float64] = np.abs(shares - 0.1).sum(axis=1) / 2
    return skewed


def test_dirichlet_quarters_differ_in_skew_even_when_every_sample_is_dealt() -> None:
    labels = np.arange(20_000) % 10
    alphas = np.repeat([1000.0, 1.0, 0.5, 0.1], 10)
    for parts in (dirichlet(labels, 40, alphas.tolist(), 1), dirichlet(labels, 40, alphas.tolist(), 1, 200)):
        quarter = skew(labels, parts).reshape(4, 10).mean(axis=1)
        assert (np.diff(quarter) > 0).all()
        assert quarter[0] < 0.15
        assert quarter[3] > 0.6


def test_dirichlet_alpha_sets_the_skew() -> None:
    labels = np.arange(20_000) % 10
    assert skew(labels, dirichlet(labels, 20, 1000.0, 1)).max() < 0.1
    assert skew(labels, dirichlet(labels, 20, 0.05, 1, 100)).mean() > 0.6
    # With headroom (a tenth of the data is asked), proportions are Dirichlet's own: mean 0.1, sd sqrt(.09/(10a+1)).
    parts = dirichlet(labels, 100, 1.0, 1, 20)
    shares = np.stack([np.bincount(labels[part], minlength=10) / 20 for part in parts])
    assert shares.std() == pytest.approx(np.sqrt(0.09 / 11), rel=0.15)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), [1.0, 2.0]])
def test_dirichlet_refuses_a_bad_alpha(alpha: float | list[float]) -> None:
    with pytest.raises(DataError, match="alpha"):
        dirichlet(np.arange(10), 3, alpha)


@given(st.integers(1, 25), st.integers(1, 6), seeds)
def test_classes_per_client(clients: int, c: int, seed: int) -> None:
    labels = np.arange(240) % 6
    parts = classes_per_client(labels, clients, c, seed)
    check_partition(parts, 240, complete=clients * c >= 6)
    held = [set(labels[part].tolist()) for part in parts]
    assert all(len(classes) == c for classes in held)
    holders = [sum(k in classes for classes in held) for k in range(6)]
    assert max(holders) - min(holders) <= 1


def test_classes_per_client_makes_no_hidden_groups() -> None:
    labels = np.arange(1000) % 10
    held = {tuple(sorted(set(labels[part].tolist()))) for part in classes_per_client(labels, 20, 2, seed=1)}
    assert len(held) > 10


def test_classes_per_client_with_a_size_and_what_cannot_be() -> None:
    labels = np.arange(600) % 6
    parts = classes_per_client(labels, 10, 3, seed=1, samples=31)
    for part in parts:
        assert sorted(np.unique(labels[part], return_counts=True)[1].tolist()) == [10, 10, 11]
    with pytest.raises(DataError, match=r"ask for 1\.\.6"):
        classes_per_client(labels, 10, 7)
    with pytest.raises(DataError, match="gets no sample of class"):
        classes_per_client(np.array([0] * 50 + [1]), 5, 2)


def test_by_group_classes_with_overlapping_neighbours() -> None:
    labels = np.arange(1000) % 10
    sets = [[(2 * g + i) % 10 for i in range(3)] for g in range(5)]
    group_of = [m % 5 for m in range(20)]
    everything = by_group_classes(labels, sets, group_of, seed=1)
    check_partition(everything, 1000, complete=True)
    sized = by_group_classes(labels, sets, group_of, samples=30, seed=1)
    check_partition(sized, 1000)
    assert [len(part) for part in sized] == [30] * 20
    for parts in (everything, sized):
        assert all(set(labels[part]) == set(sets[g]) for part, g in zip(parts, group_of, strict=True))
    assert all(np.bincount(labels[part], minlength=10).max() == 10 for part in sized)


def test_by_group_classes_shares_a_scarce_class_and_fills_from_the_others() -> None:
    labels = np.array([0] * 10 + [1] * 90)
    parts = by_group_classes(labels, [[0, 1]], [0] * 5, samples=20, seed=1)
    check_partition(parts, 100, complete=True)
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[2, 18]] * 5


def test_by_group_classes_says_what_is_wrong() -> None:
    labels = np.arange(100) % 4
    with pytest.raises(DataError, match="label 9"):
        by_group_classes(labels, [[0, 9]], [0])
    with pytest.raises(DataError, match="used up"):
        by_group_classes(labels, [[0], [1, 2, 3]], [0, 0, 1], samples=20)
    with pytest.raises(DataError, match="no classes"):
        by_group_classes(labels, [[]], [0])
    with pytest.raises(DataError, match=r"0\.\.0"):
        by_group_classes(labels, [[1]], [1])


def test_by_key() -> None:
    keys = np.array([7, 3, 7, 3, 7, 5])
    assert [part.tolist() for part in by_key(keys, 3, 1, seed=0)] == [[1, 3], [5], [0, 2, 4]]
    assert [part.tolist() for part in by_key(keys, 2, 2, seed=0)] == [[1, 3], [0, 2, 4]]
    assert len(by_key(keys, 2, 1, seed=4)) == 2
    with pytest.raises(DataError, match=r"ask for 1\.\.2"):
        by_key(keys, 3, 2, seed=0)


LABELS = np.arange(300) % 10


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: iid(300, 10, seed=seed),
        lambda seed: structured_power_law(LABELS, [[0, 1, 2], [5, 6]], [0, 1, 0, 1], 5, 0.5, seed),
        lambda seed: dirichlet(LABELS, 10, 0.5, seed),
        lambda seed: dirichlet(LABELS, 10, 0.5, seed, 20),
        lambda seed: classes_per_client(LABELS, 10, 2, seed),
        lambda seed: by_group_classes(LABELS, [[0, 1], [2, 3]], [0, 1, 0], 10, seed),
        lambda seed: by_key(LABELS, 5, 1, seed),
    ],
)
def test_a_seed_repeats_and_another_differs(make: Callable[[int], Partition]) -> None:
    first, again, other = ([part.tolist() for part in make(seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@given(st.lists(st.floats(0.001, 50), min_size=1, max_size=12), st.integers(0, 100))
def test_largest_remainder_moves_a_share_by_less_than_one(weights: list[float], total: int) -> None:
    shares = np.array(weights) / np.sum(weights) * total
    counts = largest_remainder(shares[None, :], np.array([total]))[0]
    assert counts.sum() == total
    assert (np.abs(counts - shares) < 1 + 1e-6).all()


@given(st.integers(1, 8), st.integers(1, 5), seeds)
def test_within_supply_never_exceeds_it(clients: int, classes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    supply = generator.integers(0, 40, classes) + clients
    sizes = np.full(clients, supply.sum() // clients)
    counts = within_supply(generator.dirichlet(np.full(classes, 0.1), clients), sizes, supply)
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) == sizes).all()
    assert (counts.sum(axis=0) <= supply).all()
