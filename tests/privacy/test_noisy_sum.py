"""Noise inside secure sums: its distribution, its size in a sum and in a run, and what the server still receives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import coterie
from coterie.errors import ConfigError
from coterie.privacy import keys, noisy_sum
from coterie.privacy.accounting import epsilon
from coterie.privacy.noisy_sum import NoisyQuantiser, discrete_gaussian
from coterie.privacy.secure_tasks import Masked
from coterie.tasks import CountChoice
from coterie.trainers.base import SumNoise

OPTIONS = {"scenario": "digits-permuted", "clients": 9, "groups": 2, "rounds": 2, "seed": 3, "workers": 1,
           "model": "mlp:hidden=8", "secure_sums": True, "progress": False}  # fmt: skip
PLAIN = "fedavg:weighting=uniform"
NOISE = {"dp_noise": 0.5, "dp_clip": 0.2}
HIDDEN = "ifca:k=2,init=random,hide_choice=true"


@pytest.fixture
def known_keys(monkeypatch):
    """Keys that the system would draw, the same in every run of the tests."""
    numbers = itertools.count()
    monkeypatch.setattr(keys, "new_key", lambda: next(numbers).to_bytes(keys.KEY_BYTES))


@pytest.mark.usefixtures("known_keys")
@pytest.mark.parametrize("scale", [0.7, 1.0, 2.5])
def test_the_noise_has_the_probabilities_of_the_discrete_gaussian(scale):
    drawn = discrete_gaussian(scale, 100_000)
    far = math.ceil(3 * scale)
    values = np.arange(-40, 41)
    weights = np.exp(-(values**2) / (2 * scale**2))
    inside = np.abs(values) <= far
    expected = np.append(weights[inside], weights[~inside].sum()) / weights.sum()
    seen = [*(np.sum(drawn == value) for value in values[inside]), np.sum(np.abs(drawn) > far)]
    assert stats.chisquare(seen, expected * len(drawn)).pvalue > 1e-3


@pytest.mark.usefixtures("known_keys")
def test_wide_noise_is_a_gaussian():
    drawn = discrete_gaussian(1e6, 20_000)
    assert stats.kstest(drawn / 1e6, "norm").pvalue > 1e-4


def test_noise_is_never_the_same_twice():
    assert not np.array_equal(discrete_gaussian(1e6, 20), discrete_gaussian(1e6, 20))


def test_noise_in_whole_numbers_has_the_epsilon_of_the_account():
    # Theorem 7 of Canonne, Kamath, Steinke 2020, with sensitivity and scale in whole numbers.
    multiplier, sensitivity = 1.5, 100_000
    scale, found = multiplier * sensitivity, epsilon(multiplier, 1.0, 1, 1e-5)
    values = np.arange(-12 * int(scale), 12 * int(scale) + 1, dtype=np.float64)
    weights = np.exp(-(values**2) / (2 * scale**2))
    middle = found * scale**2 / sensitivity
    above, below = (weights[values > middle + side * sensitivity / 2].sum() for side in (-1, 1))
    assert (above - math.exp(found) * below) / weights.sum() == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("silent", [(), (0, 4)])
def test_a_sum_has_the_whole_noise_even_if_only_those_who_are_needed_came_through(silent):
    clients, needed, noise = 7, 5, SumNoise(2.0, 0.5)
    vectors = np.random.default_rng(0).normal(size=(clients, 4000))
    vectors *= 0.4 / np.linalg.norm(vectors, axis=1, keepdims=True)
    quantiser = NoisyQuantiser.for_sums(noise, clients, needed)
    through = [i for i in range(clients) if i not in silent]
    words = np.sum([quantiser.encode(vectors[i]) for i in through], axis=0, dtype=np.uint32)
    left = quantiser.decode(words) - vectors[through].sum(0)
    assert float(left.std()) == pytest.approx(2.0 * 0.5 * math.sqrt(len(through) / needed), rel=0.06)
    assert abs(float(left.mean())) < 0.1


def test_no_vector_is_longer_than_the_length_after_rounding_either(monkeypatch):
    monkeypatch.setattr(noisy_sum, "discrete_gaussian", lambda scale, size: np.zeros(size, dtype=np.int64))
    quantiser = NoisyQuantiser(length=1.0, step=0.003, scale=10.0)  # coarse, so that rounding could lengthen a vector
    rng = np.random.default_rng(0)
    for vector in (*rng.normal(size=(20, 900)), np.full(900, 0.0349), np.full(900, 0.0333)):
        rounded = quantiser.encode(vector).astype(np.int32).astype(float)
        assert np.linalg.norm(rounded) <= 1.0 / 0.003
    short = rng.normal(size=900) / 100
    np.testing.assert_allclose(quantiser.decode(quantiser.encode(short)), short, atol=0.0016)


def test_a_sum_of_all_at_full_length_with_its_noise_does_not_wrap_around():
    noise, clients = SumNoise(0.5, 1.0), 30
    quantiser = NoisyQuantiser.for_sums(noise, clients, 20)
    total = sum((quantiser.encode(np.array([1.0])).astype(np.uint32) for _ in range(clients)), np.zeros(1, np.uint32))
    assert quantiser.decode(total)[0] == pytest.approx(30.0, abs=6 * 0.5 * math.sqrt(1.5))


def test_too_little_noise_for_whole_numbers_and_too_short_a_length_are_refused():
    with pytest.raises(ConfigError, match="too little"):
        NoisyQuantiser.for_sums(SumNoise(1e-9, 1.0), 10, 7)
    with pytest.raises(ConfigError, match="too short"):
        NoisyQuantiser(length=0.01, step=0.01, scale=10.0).encode(np.zeros(900))


@pytest.mark.parametrize("method", [PLAIN, HIDDEN])
def test_a_run_without_steps_shows_the_noise_that_the_account_assumes(method):
    still = OPTIONS | {"lr": 1e-30, "rounds": 1}
    whole = 0.5 * 0.2 * math.sqrt(9 / 7)  # the sum's noise: more than two thirds of nine make up all of it
    if method == PLAIN:
        before, after = (coterie.run(method, **still, **noise).models[0] for noise in ({}, NOISE))
        assert float((after - before).std()) == pytest.approx(
            whole / 9, rel=0.15
        )  # of 610 numbers: five standard errors
        return
    before, after = (coterie.run(method, **still, **noise).state.models for noise in ({}, NOISE))
    for spread in (after - before).std(1).tolist():
        assert whole / 14 < spread < 1.1 * whole  # over a noisy number of clients, from one to about nine


def test_epsilon_is_that_of_a_trusted_servers_noise():
    one = coterie.run(PLAIN, dp_noise=1.0, **OPTIONS)
    assert one.summary.epsilon == pytest.approx(epsilon(1.0, 1.0, 2, 1e-5), abs=1e-5)
    several = coterie.run(HIDDEN, dp_noise=1.0, **OPTIONS)
    assert several.summary.epsilon == pytest.approx(epsilon(1.0 / 2**0.5, 1.0, 2, 1e-5), abs=1e-5)


def test_where_clients_add_noise_that_few_take_part_does_not_lower_epsilon():
    """The size of the noise, and so the models, tell how many take part."""
    some = coterie.run(PLAIN, dp_noise=1.0, participation=0.8, **OPTIONS)
    assert some.summary.epsilon == pytest.approx(epsilon(1.0, 1.0, 2, 1e-5), abs=1e-5)


def test_with_little_noise_the_run_is_that_of_a_trusted_server_with_little_noise():
    quiet = {"dp_noise": 1e-4, "dp_clip": 0.3}
    plain = coterie.run(PLAIN, **OPTIONS | {"secure_sums": False}, **quiet)
    secure = coterie.run(PLAIN, **OPTIONS, **quiet)
    torch.testing.assert_close(secure.models[0], plain.models[0], rtol=0, atol=2e-4)
    assert secure.history[0].clusters[0].max_norm is None
    assert plain.history[0].clusters[0].max_norm == pytest.approx(0.3)
    hidden = coterie.run(HIDDEN, **OPTIONS, **quiet)
    seen = coterie.run("ifca:k=2,init=random", **OPTIONS | {"secure_sums": False}, **quiet)
    assert hidden.summary.sizes == [len(own) for own in seen.clusters]
    for ours, theirs in zip(hidden.models, seen.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


def test_under_noise_a_count_of_choices_tells_no_loss():
    models = torch.zeros(3, 10)
    assert CountChoice(models, "x").schema(None).vector == 4
    assert CountChoice(models, "x", loss=False).schema(None).vector == 3
    assert not CountChoice(models, "x", loss=False).schema(None).wide


def test_under_noise_no_norm_is_told(tmp_path):
    task = CountChoice(torch.zeros(3, 10), "x", loss=False)
    masked = Masked(task, (), torch.zeros(0, 32), SumNoise(1.0, 1.0))
    assert set(masked.schema(None).values) == {"masked"}


@pytest.mark.parametrize(
    ("method", "extra", "words"),
    [
        ("ifca:k=2,init=random", {}, "hide_choice"),
        ("fedper:weighting=uniform", {}, "a model of their own"),
        ("fedbabu:weighting=uniform", {"secure_sums": False}, "fedbabu: noise is added to every layer"),
        (PLAIN, {"patience": 2, "validation": 0.2}, "exact metrics"),
        ("cfl:compare=projection(64)", {"privacy": "projection"}, "single clients"),
    ],
)
def test_what_would_make_epsilon_untrue_is_refused(method, extra, words):
    with pytest.raises(ConfigError, match=words):
        coterie.run(method, dp_noise=1.0, **OPTIONS | extra)
