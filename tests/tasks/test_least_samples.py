"""A centroid is never the code of a few samples: what a client of any size may send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.encoders import Encoder
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.parameters import Layout
from coterie.tasks import ClientContext, Embed
from coterie.tasks.embed import k_means


def codes_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=15, deadline=None)
@given(st.integers(5, 40), st.integers(0, 10**6))
def test_every_centroid_is_the_mean_of_at_least_five(n, seed):
    codes = codes_of(n, seed)
    codes[0] += 100  # an outlier that k-means by itself would leave alone
    found = k_means(codes, 5, seed, least=5)
    assert 1 <= len(found) <= min(5, n // 5)
    # Undo the means: with the outlier in it, a mean of m codes is at most about 100/m away from the others.
    assert float(np.abs(found).max()) < 100 / 5 + 6


def test_with_enough_samples_everywhere_the_centroids_are_those_of_plain_k_means():
    codes = torch.cat([codes_of(20, i) * 0.1 + 10 * i for i in range(4)])
    assert np.array_equal(k_means(codes, 4, 1, least=5), k_means(codes, 4, 1))


class Bare:
    masked = False
    layout = Layout(())


def client_of(n: int) -> Client:
    data = Split(codes_of(n, n), torch.zeros(n, dtype=torch.int64))
    return Client(f"c{n}", data, Split(data.x[:0], data.y[:0]), data)


@pytest.mark.parametrize(("n", "sent"), [(5, 1), (9, 1), (14, 2), (200, 5)])
def test_a_small_client_sends_fewer(n, sent):
    task = Embed.with_encoder(Encoder("own-pca", (), 2, torch.empty(0)), 5, 0, 1)
    reply = task.answer(ClientContext(client_of(n), {}), Bare())
    assert len(reply.values["centroids"]) <= sent


def test_a_client_with_too_few_samples_refuses():
    task = Embed.with_encoder(Encoder("own-pca", (), 2, torch.empty(0)), 5, 0, 1)
    with pytest.raises(ConfigError, match="4 samples are too few"):
        task.answer(ClientContext(client_of(4), {}), Bare())


def test_a_run_goes_on_without_the_centroids_of_a_client_that_is_too_small():
    clients = [client_of(n) for n in (4, 30, 31, 32)]
    result = coterie.run(
        "pca-kmeans-hc:components=2,gamma=1.0", Federation(clients), model="logistic", rounds=2, workers=1
    )
    assert sorted(client for cluster in result.clusters for client in cluster) == ["c30", "c31", "c32", "c4"]
    assert ["c4"] in [list(cluster) for cluster in result.clusters]
