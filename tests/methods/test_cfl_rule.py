"""The split rule of CFL: numbers worked by hand, invariances, and what must never split or block a split."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from label_sums import label_sums

from coterie.clustering import half_vectors
from coterie.methods import cfl_harm
from coterie.methods import cfl_rule as rule
from coterie.methods.cfl_check import without_copies


def gram_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products (2M, 2M) of half-updates a, b: (M, d)."""
    vectors = np.concatenate([a, b])
    return vectors @ vectors.T


def two_groups(
    sizes: tuple[int, ...], noise: float = 0.3, dimension: int = 50, common: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Half-updates of groups with directions of their own, a direction in common, and independent noise."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((len(sizes), dimension))
    shared = generator.standard_normal(dimension)
    mean = np.concatenate([np.tile(directions[g] + common * shared, (n, 1)) for g, n in enumerate(sizes)])
    a, b = (mean + noise * generator.standard_normal(mean.shape) for _ in range(2))
    return a, b


def probe_of(a: np.ndarray, b: np.ndarray, age: int = 10, loss: float = 1.0, names: str = "c") -> rule.Probe:
    clients = len(a)
    ids = tuple(f"{names}{i}" for i in range(clients))
    return rule.Probe(age, ids, np.ones(clients), gram_of(a, b)[None], np.full(clients, loss))


def check(probe: rule.Probe, *before: rule.Probe) -> tuple[rule.Evidence, list[rule.Fork]]:
    """The first part of a check after earlier ones."""
    records: list[rule.Record] = []
    for earlier in before:
        records.append(rule.look(earlier, records)[0])
    _, evidence, forks = rule.look(probe, records)
    return evidence, forks


def test_the_ages_of_checks_grow_and_their_cost_is_bounded() -> None:
    ages = [rule.next_check(0)]
    while rule.next_check(ages[-1]) <= 100:
        ages.append(rule.next_check(ages[-1]))
    assert ages == [5, 9, 13, 17, 23, 30, 39, 51, 67, 88]
    assert rule.allowance(100, 1.0) == pytest.approx(15.0)
    for rounds, participation, share in ((100, 0.3, 0.25), (300, 0.1, 0.25), (400, 1.0, 0.15)):
        assert rule.allowance(rounds, participation) / (rounds * participation) == pytest.approx(share)
    assert rule.allowance(100, 0.1) / (100 * 0.1) == pytest.approx(0.25)


def test_the_p_value_of_two_clients_by_hand() -> None:
    # Four halves have three matchings. Halves that agree inside the clients and oppose across are the best of them.
    a = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert half_vectors.p_value(gram_of(a, a)) == pytest.approx(1 / 3)
    # Halves that oppose inside the clients: another matching is better.
    assert half_vectors.p_value(gram_of(a, -a)) > 1 / 3


def test_the_p_value_of_three_clients_by_hand() -> None:
    # Orthogonal clients: only the true one of the 15 matchings pairs like with like.
    assert half_vectors.p_value(gram_of(np.eye(3), np.eye(3))) == pytest.approx(1 / 15)
    # Two alike and one apart: the two may be paired in 3 ways that are all as good.
    a = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert half_vectors.p_value(gram_of(a, a)) == pytest.approx(3 / 15)
    assert half_vectors.reachable_p_value(2, 1) == pytest.approx(3 / 15)


def test_p_values_are_uniform_for_clients_of_one_distribution_and_small_for_several() -> None:
    generator = np.random.default_rng(1)
    values = []
    for _ in range(200):
        noise = 1 + 3 * generator.random(8)[:, None]  # clients of very different sizes
        a, b = (2 * np.ones(20) + noise * generator.standard_normal((8, 20)) for _ in range(2))
        values.append(half_vectors.p_value(gram_of(a, b), draws=199))
    ranks = np.sort(values)
    distance = np.abs(ranks - (np.arange(200) + 0.5) / 200).max()
    assert distance < 1.36 / math.sqrt(200)  # Kolmogorov and Smirnov, 5 %
    assert half_vectors.p_value(gram_of(*two_groups((4, 4)))) < 0.01


def grams_by_part(a: np.ndarray, b: np.ndarray, parts: int) -> np.ndarray:
    """Inner products of the whole half-updates, then of equal parts of them."""
    whole = gram_of(a, b)[None]
    return np.concatenate(
        [whole, [gram_of(*pair) for pair in zip(np.split(a, parts, 1), np.split(b, parts, 1), strict=True)]]
    )


def test_p_values_stay_uniform_when_parts_are_compared() -> None:
    generator = np.random.default_rng(2)
    values = []
    for _ in range(200):
        noise = 1 + 3 * generator.random(8)[:, None]
        a, b = (2 * np.ones(40) + noise * generator.standard_normal((8, 40)) for _ in range(2))
        values.append(half_vectors.p_value(grams_by_part(a, b, 10), draws=199))
    distance = np.abs(np.sort(values) - (np.arange(200) + 0.5) / 200).max()
    assert distance < 1.36 / math.sqrt(200)  # Kolmogorov and Smirnov, 5 %


def test_a_difference_in_two_of_ten_parts_is_seen_there_and_decides_who_goes_with_whom() -> None:
    seen, lost, right = [], [], 0
    for seed in range(10):
        generator = np.random.default_rng(seed)
        mean, noise = np.zeros((12, 400)), np.full(400, 5.0)
        mean[6:, :80], noise[:80] = 2.0, 1.0
        a, b = (mean + noise * generator.standard_normal(mean.shape) for _ in range(2))
        parts = grams_by_part(a, b, 10)
        scores = half_vectors.part_scores(parts, draws=499)
        seen.append(half_vectors.p_value_of(scores))
        lost.append(half_vectors.p_value(parts[0], draws=499))
        cosines, ones = half_vectors.weighted_cosines(parts, scores[:, 0]), np.ones(12)
        second = half_vectors.find_sides(
            half_vectors.cross_products(cosines, ones), half_vectors.cosines_of_clients(cosines, ones)
        )
        right += second is not None and second.tolist() == [False] * 6 + [True] * 6
    assert np.median(seen) < 0.05 < 0.1 < np.median(lost)
    assert right >= 7
    # Where nothing differs the whole vectors are compared, as without parts.
    assert np.allclose(half_vectors.weighted_cosines(parts, -np.ones(11)), half_vectors.unit_gram(parts[0]))


def test_few_large_groups_show_in_whom_the_halves_are_like() -> None:
    own, groups = [], []
    for seed in range(10):
        gram = gram_of(*two_groups((10, 10), noise=2.5, seed=seed))
        own.append(half_vectors.p_value(gram, draws=499))
        groups.append(half_vectors.group_p_value(gram, draws=499))
    assert np.median(groups) <= np.median(own)
    assert np.median(groups) < 0.01


def test_one_client_and_clients_that_do_not_move_are_no_evidence() -> None:
    assert half_vectors.p_value(np.eye(2)) == 1.0
    assert half_vectors.p_value(np.zeros((12, 12))) == 1.0


def test_cross_products_by_hand() -> None:
    # Two clients with opposite updates and no noise: apart from their mean, 0, they are 1 and -1.
    a = np.array([[2.0, 0.0], [-2.0, 0.0]])
    assert np.allclose(half_vectors.cross_products(gram_of(a, a), np.ones(2)), [[1, -1], [-1, 1]])
    # Weights 3 : 1 put the mean at 1: the clients stand at 1 and -3 from it.
    products = half_vectors.cross_products(gram_of(a, a), np.array([3.0, 1.0]))
    assert np.allclose(products, [[1, -1], [-1, 1]])
    # Halves whose noise is opposite: the products see what is left, not the lengths.
    noisy = half_vectors.cross_products(gram_of(a + np.array([0, 2]), a - np.array([0, 2])), np.ones(2))
    assert np.allclose(noisy, [[1, -1], [-1, 1]])


def test_noise_by_hand() -> None:
    a, b = np.array([[3.0, 0.0], [3.0, 1.0]]), np.array([[1.0, 0.0], [3.0, -1.0]])
    # ‖a − b‖/‖a + b‖ is 2/4 and 2/6.
    assert half_vectors.noise_of(gram_of(a, b)) == pytest.approx((2 / 4 + 2 / 6) / 2)
    assert half_vectors.noise_of(np.zeros((6, 6))) == math.inf


def test_progress_by_hand_counts_the_clients_that_both_checks_saw() -> None:
    before = rule.Record(5, ("x", "y"), np.array([2.0, 1.0]), np.eye(4), math.nan, math.nan)
    now = rule.Probe(9, ("y", "z", "x"), np.array([1.0, 5.0, 3.0]), np.eye(6)[None], np.array([0.8, 9.0, 1.6]))
    assert rule.progress_since(before, now) == pytest.approx((1 * 0.2 + 3 * 0.4) / 4 / 4)
    assert math.isnan(rule.progress_since(before, now._replace(clients=("p", "q", "r"))))


EVIDENCE = rule.Evidence(
    age=20, loss=1.0, progress=0.01, fastest=0.1, p_value=0.0005, group_p_value=0.0005, gain=math.nan,
    conflict=math.nan, harm=math.nan, shared=math.nan, separation=0.8, noise=0.4,
)  # fmt: skip


def noise(units: int, samples: int = 4, labels: int = 2, seed: int = 0) -> np.ndarray:
    """Gains (units, labels, samples) by the other side's step, with mean zero."""
    return np.random.default_rng(seed).standard_normal((units, labels, samples))


HARMED = label_sums(2.0, (0.5 * noise(8) - 1).tolist())
HELPED = label_sums(2.0, (0.5 * noise(8) + 1).tolist())
LIKELY = label_sums(2.0, (noise(4) - 0.55).tolist())


def named(**sides: np.ndarray) -> dict[str, np.ndarray]:
    """Both sides of each fork, by its name, or "top": the same sums."""
    return {
        f"{name.removeprefix('top').removeprefix('below')}{digit}": sums
        for name, sums in sides.items()
        for digit in "01"
    }


def test_forks_are_made_from_the_top_down() -> None:
    top = rule.Fork("", (("a", "b"), ("c", "d")), EVIDENCE)
    below = rule.Fork("1", (("c",), ("d",)), EVIDENCE)

    def made(**sides: np.ndarray) -> list[str]:
        return [fork.name for fork in rule.accepted([top, below], named(**sides))]

    assert made(top=HARMED, below1=HARMED) == ["", "1"]
    assert made(top=HARMED, below1=HELPED) == [""]
    # Without the split above there is none below.
    assert made(top=HELPED, below1=HARMED) == []
    # Nobody answered the second question, or nobody of the sides of the lower fork.
    assert made() == []
    assert made(top=HARMED) == [""]


def test_the_gain_is_told_in_parts_of_the_fastest_progress_and_must_be_large_enough() -> None:
    fork = rule.Fork("", (("a", "b"), ("c", "d")), replace(EVIDENCE, fastest=10.0))
    (made,) = rule.accepted([fork], named(top=HARMED))
    assert made.evidence.gain == pytest.approx(2 / cfl_harm.PART / 10)
    assert made.evidence.conflict <= cfl_harm.CONFLICT
    slow = replace(fork, evidence=replace(EVIDENCE, fastest=1.01 * 2 / cfl_harm.PART / cfl_harm.SURE_GAIN))
    assert rule.accepted([slow], named(top=HARMED)) == []
    assert rule.accepted([slow], named(top=HARMED), squared=True) != []
    slower = replace(fork, evidence=replace(EVIDENCE, fastest=slow.evidence.fastest / rule.SQUARED))
    assert rule.accepted([slower], named(top=HARMED), squared=True) == []


@pytest.mark.parametrize("sizes", [(5, 5), (1, 1), (3, 1), (19, 1), (12, 5, 2, 1), (4, 4, 4, 4, 4, 4, 4), (30, 30)])
def test_no_group_is_torn(sizes: tuple[int, ...]) -> None:
    a, b = two_groups(sizes)
    _, forks = check(probe_of(a, b), probe_of(a, b, age=5))
    assert forks
    assert forks[0].name == ""
    groups = {f"c{i}": g for i, g in enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist())}
    for fork in forks:
        first, second = ({groups[c] for c in side} for side in fork.sides)
        # Inside of a group some fork may look worth judging; the losses refuse it.
        assert not first & second or len(first | second) == 1


def test_four_groups_are_found_at_one_check() -> None:
    a, b = two_groups((5, 5, 5, 5))
    _, forks = check(probe_of(a, b), probe_of(a, b, age=5))
    whole = {side for fork in forks for side in fork.sides if len(side) == 5}
    assert len(whole) == 4


def test_two_clients_can_be_separated() -> None:
    a, b = two_groups((1, 1))
    _, forks = check(probe_of(a, b), probe_of(a, b, age=5))
    assert [fork.sides for fork in forks] == [(("c0",), ("c1",))]
    assert len(rule.accepted(forks, named(top=HARMED))) == 1


def test_sides_that_hold_different_labels_are_never_made() -> None:
    fork = rule.Fork("", (("a", "b", "d"), ("c",)), EVIDENCE)
    assert rule.accepted([fork], named(top=HARMED))
    mine = label_sums(2.0, [[row[0].tolist(), []] for row in 0.5 * noise(8) - 1])
    assert not rule.accepted([fork], {"0": mine, "1": mine[:, [1, 0, 2]]})


def test_updates_that_are_zero_do_not_shatter_a_cluster() -> None:
    zero = np.zeros((5, 10))
    assert check(probe_of(zero, zero), probe_of(zero, zero, age=5))[1] == []


def test_pure_noise_is_seldom_worth_judging() -> None:
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(20):
        (a, b), (c, d) = generator.standard_normal((2, 2, 20, 100))
        found += bool(check(probe_of(a, b), probe_of(c, d, age=5))[1])
    assert found <= 4


def test_at_the_first_check_nobody_knows_what_progress_is_fast() -> None:
    a, b = two_groups((5, 5))
    evidence, forks = check(probe_of(a, b))
    assert math.isnan(evidence.progress)
    assert rule.accepted(forks[:1], named(top=LIKELY)) == []
    (made,) = rule.accepted(forks[:1], named(top=HARMED))
    assert math.isnan(made.evidence.gain)


def test_a_fork_whose_sides_both_hold_a_conflict_is_made_on_less_evidence() -> None:
    forks = [
        rule.Fork("", (("a", "b"), ("c", "d")), EVIDENCE),
        rule.Fork("0", (("a",), ("b",)), EVIDENCE),
        rule.Fork("1", (("c",), ("d",)), EVIDENCE),
    ]
    suggested = cfl_harm.conflict_p_value((cfl_harm.harm_of(LIKELY, LIKELY),) * 2)
    assert cfl_harm.CONFLICT < suggested < cfl_harm.SUGGESTED

    def made(top: np.ndarray, left: np.ndarray, right: np.ndarray) -> list[str]:
        return [fork.name for fork in rule.accepted(forks, named(top=top, below0=left, below1=right))]

    assert made(LIKELY, HARMED, HARMED) == ["", "0", "1"]
    assert made(LIKELY, HARMED, HELPED) == []
    assert made(HELPED, HARMED, HARMED) == []
    assert made(HARMED, HELPED, HARMED) == ["", "1"]


def test_only_a_promising_conflict_is_waited_for() -> None:
    fork = rule.Fork("", (("a", "b"), ("c", "d")), EVIDENCE)
    assert rule.is_promising([fork], named(top=LIKELY))
    assert not rule.is_promising([fork], named(top=HELPED))
    assert not rule.is_promising([fork], {})


def test_pooling_checks_finds_groups_that_one_check_does_not() -> None:
    first, last = 0, 0
    for seed in range(8):
        generator = np.random.default_rng(seed)
        mean = np.repeat(generator.standard_normal((2, 60)), 8, axis=0)
        records: list[rule.Record] = []
        for age in (5, 9, 13):
            a, b = (mean + 1.8 * generator.standard_normal(mean.shape) for _ in range(2))
            record, _, forks = rule.look(probe_of(a, b, age), records)
            records.append(record)
            first += bool(forks) and age == 9
            last += bool(forks) and age == 13
            for fork in forks:
                assert {int(c[1:]) // 8 for c in fork.sides[0]} in ({0}, {1})
    assert last >= first
    assert last >= 6


def test_pooled_cosines_are_means_over_the_checks_that_saw_a_pair() -> None:
    def record(clients: tuple[str, ...], cosines: np.ndarray) -> rule.Record:
        return rule.Record(5, clients, np.zeros(len(clients)), cosines[None], math.nan, math.nan)

    first, second = record(("x", "y"), np.arange(16.0).reshape(4, 4)), record(("y",), np.full((2, 2), 9.0))
    (table,) = rule.pooled([first, second], ("z", "y", "x"))
    # Rows and columns: z, y, x of the a-halves, then of the b-halves.
    assert np.allclose(table[0], 0)
    assert table[2, 5] == first.cosines[0, 0, 2]
    assert table[1, 4] == (first.cosines[0, 1, 3] + 9) / 2
    assert table[1, 2] == first.cosines[0, 1, 0]


def test_a_child_keeps_who_is_like_whom_and_no_losses() -> None:
    cosines = np.arange(36.0).reshape(1, 6, 6)
    parent = rule.Record(5, ("x", "y", "z"), np.ones(3), cosines, 0.1, 0.2)
    kept = rule.passed_on(parent, ("z", "new", "x"))
    assert kept.clients == ("z", "x")
    assert np.allclose(rule.pooled([kept], ("x", "z")), rule.pooled([parent], ("x", "z")))
    assert np.isnan([*kept.whole, kept.progress, kept.fastest]).all()
    # What a child gains by its parent's split is no progress of its own.
    a, b = two_groups((2, 2))
    own, _, _ = rule.look(
        probe_of(a, b), [rule.passed_on(rule.look(probe_of(a, b, 5), [])[0], ("c0", "c1", "c2", "c3"))]
    )
    assert math.isnan(own.fastest)
    later, _, _ = rule.look(probe_of(a, b, 14, loss=0.6), [own])
    assert later.fastest == pytest.approx(0.1)


def test_the_scale_of_an_offset_is_chosen_for_the_cluster_and_nan_rows_do_not_vote() -> None:
    table = [[1.0, 0.5], [1.0, 1.2], [math.nan, math.nan]]
    assert np.allclose(rule.best_scale(table, [1, 1, 9])[:2], [0.5, 1.2])
    assert np.allclose(rule.best_scale(table, [1, 9, 9])[:2], [1.0, 1.0])


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([(4, 4), (6, 2), (3, 3, 3), (9, 1)]),
    st.floats(1e-3, 1e3),
)
def test_the_scale_of_the_updates_and_the_order_of_the_clients_do_not_matter(
    seed: int, sizes: tuple[int, ...], scale: float
) -> None:
    a, b = two_groups(sizes, seed=seed)
    probe = probe_of(a, b)
    evidence, forks = check(probe, probe._replace(age=5))
    scaled = probe._replace(gram=scale**2 * probe.gram)
    same, again = check(scaled, scaled._replace(age=5))
    assert again == forks or [f.sides for f in again] == [f.sides for f in forks]
    assert same.p_value == evidence.p_value
    assert same.separation == pytest.approx(evidence.separation, nan_ok=True)
    order = np.random.default_rng(seed).permutation(len(a))
    turned = probe_of(a[order], b[order])._replace(clients=tuple(probe.clients[i] for i in order))
    _, shuffled = check(turned, turned._replace(age=5))
    assert {frozenset(map(frozenset, f.sides)) for f in shuffled} == {frozenset(map(frozenset, f.sides)) for f in forks}


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000))
def test_a_copy_of_a_client_goes_with_it(seed: int) -> None:
    a, b = two_groups((4, 3), seed=seed)
    a, b = np.concatenate([a, a[:1]]), np.concatenate([b, b[:1]])
    _, forks = check(probe_of(a, b), probe_of(a, b, age=5))
    for fork in forks:
        assert all(("c0" in side) == ("c7" in side) for side in fork.sides)


def test_copies_of_half_updates_are_left_out_of_a_check_but_one():
    rng = torch.Generator().manual_seed(1)
    updates = {name: torch.randn(2, 200, generator=rng) for name in "abcde"}
    updates["d"] = 0.5 * updates["b"]
    updates["e"] = -updates["b"]
    assert list(without_copies(updates)) == ["a", "b", "c", "e"]
    assert without_copies({}) == {}
