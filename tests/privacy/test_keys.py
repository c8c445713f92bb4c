"""Keys of 256 bits, and what is drawn from them: uniform, repeatable, and out of reach of a search over small seeds."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.privacy import Mask
from coterie.privacy.keys import make_key, new_key, numbers, permutation, signs, stream, uniforms
from coterie.privacy.masks import redrawn
from coterie.randomness import torch_generator

KEY = bytes(range(32))


def test_a_key_has_all_the_bits_of_its_secret():
    low = 2**31 - 1
    assert len({make_key(n) for n in (low, low + 2**32, low + 2**64, low + 2**128)}) == 4
    assert len(new_key()) == 32
    assert new_key() != new_key()
    with pytest.raises(ValueError, match="31 bytes"):
        make_key(bytes(31))
    with pytest.raises(ValueError, match="16 bytes"):
        stream(bytes(16), "x", 1)


def test_a_short_text_is_taken_with_a_warning():
    with pytest.warns(UserWarning, match="may be guessed"):
        short = make_key("pomegranate")
    assert short != make_key("0" * 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_key("0123456789abcdef0123456789abcdef")  # 128 bits
    with pytest.warns(UserWarning, match="has 31 characters"):
        make_key("0123456789abcdef0123456789abcde")


def test_clients_of_every_version_stretch_a_text_to_the_same_key():
    by_scrypt = "a54db133d2be8044da903e403262e561c273d3bdce5447af8aa1c1ab52403a82"  # n = 2^14, r = 8, p = 1
    assert make_key("correct horse battery staple, sixty-four").hex() == by_scrypt


def test_permutations_are_uniform_over_keys():
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for i in range(4800):
        counts[tuple(permutation(make_key(i), "order", 4).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_streams_of_other_names_or_keys_share_nothing():
    drawn = [numbers(KEY, "a", 1000), numbers(KEY, "b", 1000), numbers(make_key(1), "a", 1000)]
    assert all(not np.intersect1d(x, y).size for x, y in itertools.combinations(drawn, 2))
    np.testing.assert_array_equal(numbers(KEY, "a", 10), drawn[0][:10])


def test_signs_and_numbers_are_even():
    assert abs(int(signs(KEY, "s", 10_001).sum())) < 500
    assert set(np.unique(signs(KEY, "s", 100))) == {-1, 1}
    assert stats.kstest(uniforms(KEY, "u", 10_000), "uniform").pvalue > 1e-4


def layout_of() -> Layout:
    return Layout.of(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))


def test_no_generator_that_a_small_seed_starts_gives_the_mask():
    layout = layout_of()
    mask = Mask.from_secret(make_key(7), layout)
    for seed in range(2000):
        order = torch.randperm(layout.trainable, generator=torch.Generator().manual_seed(seed))
        assert not torch.equal(order, mask.order[: layout.trainable])
    # The former mask: torch keeps 32 bits of a seed, so these two secrets had the same one.
    former = torch_generator(7, "mask").initial_seed()
    same = [torch.randperm(50, generator=torch.Generator().manual_seed(seed)) for seed in (former, former & 0xFFFFFFFF)]
    assert torch.equal(*same)
    wide = [Mask.from_secret(seed, layout).order for seed in (former, former & 0xFFFFFFFF)]
    assert not torch.equal(*wide)


def test_an_initial_model_is_drawn_from_the_key_and_keeps_its_tensors_distribution():
    layout = Layout.of(nn.Linear(100, 100))
    plain = torch.randn(layout.size, generator=torch.Generator().manual_seed(3)) * 2 + 1
    one, two = redrawn(plain, layout, make_key(1), 5), redrawn(plain, layout, make_key(2), 5)
    assert torch.equal(one, redrawn(plain, layout, make_key(1), 5))
    assert not torch.equal(one, redrawn(plain, layout, make_key(1), 6))
    weights = slice(layout.entries[0].start, layout.entries[0].stop)
    assert stats.ks_2samp(one[weights].numpy(), plain[weights].numpy()).pvalue > 1e-4
    # What a server would look for, the numbers themselves in any order, is not there.
    assert np.isin(one[weights].numpy(), plain[weights].numpy()).mean() < 0.01
    assert np.isin(one[weights].numpy(), two[weights].numpy()).mean() < 0.01


def test_buffers_stay_as_they_are():
    layout = layout_of()
    plain = torch.randn(layout.size, generator=torch.Generator().manual_seed(3))
    after = redrawn(plain, layout, KEY, 0)
    assert torch.equal(after[layout.trainable :], plain[layout.trainable :])


@pytest.mark.parametrize("method", ["flt:encoder=pca", "pca-kmeans-hc", "pacfl"])
def test_methods_that_send_centroids_are_refused_under_privacy(method):
    import coterie

    with pytest.raises(ConfigError, match="in clear"):
        coterie.run(method, scenario="digits-permuted", clients=4, rounds=1, privacy="permutation", workers=1)
