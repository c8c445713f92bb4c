"""The split rule of CFL: numbers worked by hand, invariances, and what must never split or block a split."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

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


def probe_of(
    a: np.ndarray, b: np.ndarray, age: int = 10, loss: float = 1.0, alone: float = 0.8, names: str = "c"
) -> rule.Probe:
    clients = len(a)
    ids = tuple(f"{names}{i}" for i in range(clients))
    return rule.Probe(age, ids, np.ones(clients), gram_of(a, b)[None], np.full(clients, loss), np.full(clients, alone))


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
    assert rule.allowance(100, 0.3) / (100 * 0.3) == pytest.approx(0.25)
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
    now = rule.Probe(
        9, ("y", "z", "x"), np.array([1.0, 5.0, 3.0]), np.eye(6)[None], np.array([0.8, 9.0, 1.6]), np.zeros(3)
    )
    assert rule.progress_since(before, now) == pytest.approx((1 * 0.2 + 3 * 0.4) / 4 / 4)
    assert math.isnan(rule.progress_since(before, now._replace(clients=("p", "q", "r"))))


EVIDENCE = rule.Evidence(
    age=20, loss=1.0, progress=0.01, fastest=0.1, p_value=0.0005, group_p_value=0.0005, alone=0.1, apart=math.nan,
    ratio=math.nan, conflict=math.nan, harm=math.nan, shared=math.nan, separation=0.8, noise=0.4,
)  # fmt: skip


def test_decisions_by_hand() -> None:
    full, splits = rule.decide(EVIDENCE, 0.1, 0.01, rule.LEAST_RATIO)
    assert splits
    assert full.apart == pytest.approx(0.09)
    assert full.ratio == pytest.approx(10)
    # Going on together saves nearly as much.
    assert not rule.decide(EVIDENCE, 0.1, 0.06, rule.LEAST_RATIO)[1]
    # Hardly anything is saved.
    assert not rule.decide(replace(EVIDENCE, alone=0.0), 0.008, 0.001, rule.LEAST_RATIO)[1]
    assert not rule.decide(EVIDENCE, 0.0025, 0.001, rule.LEAST_RATIO)[1]
    # Clients alone do far worse than the joint model with an offset: label skew.
    assert not rule.decide(replace(EVIDENCE, alone=-0.3), 0.05, 0.01, rule.LEAST_RATIO)[1]
    # A loss that rises is no progress.
    assert rule.decide(EVIDENCE, 0.1, -1.0, rule.LEAST_RATIO)[1]


def test_forks_are_made_from_the_top_down() -> None:
    top = rule.Fork("", (("a", "b"), ("c", "d")), EVIDENCE)
    below = rule.Fork("1", (("c",), ("d",)), replace(EVIDENCE, progress=math.nan, alone=0.4))
    weights = dict.fromkeys("abcd", 1.0)
    # The sides save 0.2, and c and d on their own 0.5.
    losses = {"a": [1, 0.8], "b": [1, 0.8], "c": [1, 0.8, 0.5], "d": [1, 0.8, 0.5]}
    made = rule.accepted([top, below], losses, weights, SUGGESTIVE)
    assert [fork.name for fork in made] == ["", "1"]
    assert made[1].evidence.ratio == pytest.approx(0.5 / 0.2)
    # Apart they save no more than together: the side stays whole.
    assert [
        f.name
        for f in rule.accepted([top, below], losses | {"c": [1, 0.8, 0.8], "d": [1, 0.8, 0.8]}, weights, SUGGESTIVE)
    ] == [""]
    # Without the split above there is none below.
    worse = {client: [1] * len(row) for client, row in losses.items()}
    assert rule.accepted([top, below], worse, weights, SUGGESTIVE) == []
    # The sides save nothing, because each still holds groups, but their parts save much.
    mixed = {"a": [1, 1], "b": [1, 1], "c": [1, 1, 0.2], "d": [1, 1, 0.2]}
    assert [fork.name for fork in rule.accepted([top, below], mixed, weights, SUGGESTIVE)] == ["", "1"]
    # Nothing hints at a harm: a large saving alone does not decide.
    assert rule.accepted([top, below], losses, weights, NEUTRAL) == []
    # Nobody answered the second question.
    assert rule.accepted([top, below], {}, weights, SUGGESTIVE) == []


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
    assert len(rule.accepted(forks, {"c0": [1.0, 0.7], "c1": [1.0, 0.7]}, {"c0": 1.0, "c1": 1.0}, SUGGESTIVE)) == 1


def unit_sums(
    samples: list[list[float]], own: list[list[float]], other: list[list[float]], spread: float = 0.0
) -> np.ndarray:
    """LabelSums `(8, labels + 1)` of units (rows) by labels (columns); the samples of a unit differ by `spread`."""
    n, gain, harm = (np.array([[*row, sum(row)] for row in rows], dtype=float) for rows in (samples, own, other))
    by_sample = harm**2 / np.maximum(n, 1) + n * spread**2
    by_sample[:, -1] = by_sample[:, :-1].sum(1)
    return np.stack([x.sum(0) for x in (n > 0, n, gain, harm, harm**2, harm * n, n**2, by_sample)])


NAMES = [f"{name}{digit}" for name in ("", "0", "1") for digit in "01"]
NEUTRAL = {name: unit_sums([[8]] * 4, [[1]] * 4, [[1]] * 4) for name in NAMES}
SUGGESTIVE = {
    name: unit_sums([[4, 4]] * 4, [[4.5, 4.5]] * 4, [[-0.65, -0.65], [-1.35, -1.35]] * 2, 0.28) for name in NAMES
}


def test_harm_by_hand() -> None:
    # One label, two samples per unit, so that a t-test of the units' sums is one of their means.
    gains = [-1.0, -2.0, 1.0, -1.0, 0.5, -0.2, -0.4, 0.3]
    sums = unit_sums([[2]] * 8, [[3]] * 8, [[gain] for gain in gains])
    seen = cfl_harm.harm_of(sums, sums)
    assert seen.p_value == pytest.approx(2 * stats.ttest_1samp(gains, 0, alternative="less").pvalue)
    assert seen.shared == 1
    assert seen.harm == 0  # not sure enough to count
    assert seen.gain == 1.5
    assert cfl_harm.harm_of(*[unit_sums([[2]] * 9, [[3]] * 9, [[-1], [-2], [-3]] * 3)] * 2).harm == pytest.approx(
        18 / 27
    )


def test_the_harm_to_few_clients_is_judged_by_their_samples() -> None:
    # One client with two labels, six samples each, which gain alike; half of the level is for both labels together.
    gains = np.array([-1.0, -2.0, 0.5, -1.5, -0.4, -1.1])
    sums = unit_sums([[3, 3]] * 2, [[3, 3]] * 2, [[sum(part)] * 2 for part in (gains[:3], gains[3:])])
    sums[-1] = (gains**2).sum() * np.array([1, 1, 2])
    seen = cfl_harm.harm_of(sums, sums)
    assert seen.few
    assert seen.p_value == pytest.approx(2 * stats.ttest_1samp([*gains, *gains], 0, alternative="less").pvalue)
    # Without labels, as in a regression, halves are compared even so.
    assert not cfl_harm.harm_of(sums[:, 1:], sums[:, 1:]).few


def test_only_labels_that_both_sides_hold_count() -> None:
    mine = unit_sums([[9, 1]] * 6, [[3, 3]] * 6, [[-5 - i, 1] for i in (0, 1, 0, 1, 0, 1)])
    theirs = unit_sums([[1, 9]] * 6, [[3, 3]] * 6, [[1, 1]] * 6)
    seen = cfl_harm.harm_of(mine, theirs)
    assert seen.p_value > 0.5
    assert seen.shared == pytest.approx(0.1)
    assert cfl_harm.harm_of(mine, mine).p_value < 1e-4


def harm(p: float, by_samples: float = 1.0, gain: float = 0.1, samples: float = 50.0) -> cfl_harm.Harm:
    """A side that surely is harmed, by halves of its clients with this p-value."""
    return cfl_harm.Harm(p, p, by_samples, 0.5, gain, 1.0, samples, False)


@pytest.mark.parametrize(("p", "expected"), [((1e-4, 1e-4), True), ((1e-9, 0.2), False), ((0.04, 0.04), False)])
def test_a_conflict_harms_both_sides(p: tuple[float, float], expected: bool) -> None:
    sides = harm(p[0], samples=90.0), harm(p[1], samples=30.0)
    assert cfl_harm.is_conflict(sides) == expected
    assert not cfl_harm.is_conflict((sides[0], sides[1]._replace(gain=-0.01)))  # it helps not even itself
    assert not cfl_harm.is_conflict((sides[0]._replace(harm=0.01), sides[1]))


@pytest.mark.parametrize(
    ("p", "by_samples", "expected"),
    [((1e-9, 0.02), 1e-9, True), ((1e-9, 0.02), 1e-7, False), ((1e-9, 0.06), 1e-9, False), ((1e-3, 0.02), 1e-9, False)],
)
def test_samples_make_up_for_a_side_with_few_clients(p: tuple[float, float], by_samples: float, expected: bool) -> None:
    assert cfl_harm.is_conflict((harm(p[0], 0.0), harm(p[1], by_samples))) == expected
    assert not cfl_harm.is_conflict((harm(p[0], 0.0), harm(p[1], by_samples, gain=-0.01)))


def test_a_side_that_the_model_fits_already_needs_gain_nothing() -> None:
    fitted = harm(1e-5, gain=-0.01, samples=90.0)
    for other, expected in ((0.1, True), (0.02, False)):  # in all they gain −0.9 + 3, or −0.9 + 0.6
        assert cfl_harm.is_conflict((fitted, fitted._replace(gain=other, samples=30.0))) == expected


def test_without_harm_p_values_are_uniform_or_larger() -> None:
    generator = np.random.default_rng(5)
    found = []
    for _ in range(400):
        noise = generator.standard_normal((2, 12, 5)).tolist()
        sides = [unit_sums([[6] * 5] * 12, [[1] * 5] * 12, rows) for rows in noise]
        found.append(cfl_harm.conflict_p_value((cfl_harm.harm_of(*sides), cfl_harm.harm_of(*sides[::-1]))))
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level + 3 * np.sqrt(level / 400)


def test_sides_that_hold_different_labels_are_never_made() -> None:
    fork = rule.Fork("", (("a", "b", "d"), ("c",)), EVIDENCE)
    losses = {client: [1.0, 0.2] for client in "abcd"}
    weights = dict.fromkeys("abcd", 1.0)
    assert rule.accepted([fork], losses, weights, SUGGESTIVE)
    apart = {"0": unit_sums([[8, 0]] * 4, [[9, 0]] * 4, [[-1.3, 0], [-2.7, 0]] * 2, 0.28)}
    apart["1"] = apart["0"][:, [1, 0, 2]]
    assert not rule.accepted([fork], losses, weights, apart)


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


def test_at_the_first_check_only_harm_decides() -> None:
    a, b = two_groups((5, 5))
    evidence, forks = check(probe_of(a, b))
    assert math.isnan(evidence.progress)
    losses = {client: [1.0, 0.2, 0.2, 0.2] for client in probe_of(a, b).clients}
    weights = dict.fromkeys(losses, 1.0)
    likely = unit_sums([[8]] * 10, [[9]] * 10, [[-2], [0.1], [-1], [-1.5], [-0.5]] * 2)
    assert cfl_harm.CONFLICT < cfl_harm.conflict_p_value((cfl_harm.harm_of(likely, likely),) * 2) < cfl_harm.SUGGESTED
    assert rule.accepted(forks, losses, weights, dict.fromkeys(NAMES, likely)) == []
    sure = {name: unit_sums([[8]] * 10, [[9]] * 10, [[-1], [-1.5]] * 5) for name in NAMES}
    assert [fork.name for fork in rule.accepted(forks[:1], losses, weights, sure)] == [""]


def test_a_fork_whose_sides_both_hold_a_conflict_is_made_on_less_evidence() -> None:
    evidence = replace(EVIDENCE, progress=math.nan)
    forks = [
        rule.Fork("", (("a", "b"), ("c", "d")), evidence),
        rule.Fork("0", (("a",), ("b",)), evidence),
        rule.Fork("1", (("c",), ("d",)), evidence),
    ]
    likely = unit_sums([[8]] * 10, [[9]] * 10, [[-2], [0.1], [-1], [-1.5], [-0.5]] * 2)
    sure = unit_sums([[8]] * 10, [[9]] * 10, [[-1], [-1.5]] * 5)
    harmless = unit_sums([[8]] * 10, [[9]] * 10, [[1], [1.5]] * 5)
    losses, weights = {client: [1.0, 0.5, 0.2] for client in "abcd"}, dict.fromkeys("abcd", 1.0)

    def made(top: np.ndarray, left: np.ndarray, right: np.ndarray) -> list[str]:
        labels = {"0": top, "1": top, "00": left, "01": left, "10": right, "11": right}
        return [fork.name for fork in rule.accepted(forks, losses, weights, labels)]

    assert made(likely, sure, sure) == ["", "0", "1"]
    assert made(likely, sure, harmless) == []
    assert made(harmless, sure, sure) == []
    assert made(sure, harmless, sure) == ["", "1"]


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
