"""FLT's codebook: sums by hand, words where the codes gather, and a signature that is the same for like clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.encoders import Encoder
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import flt
from coterie.methods.codebook import LEAST_SPLIT, WORDS, form_codebook
from coterie.randomness import derive
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie.tasks import Embed, WordSums, perform
from coterie.tasks.base import ClientContext, Request

IDENTITY = Encoder("pca", (2,), 2, torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0]))
"""Codes are the inputs themselves."""
CORNERS = np.array([[5.0, 5.0], [5.0, -5.0], [-5.0, 5.0], [-5.0, -5.0]])


def corners(clients: int = 6, samples: int = 100) -> Federation:
    """Clients whose inputs lie around four corners, in equal numbers."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(clients):
        x = CORNERS[np.arange(samples) % 4] + 0.3 * generator.standard_normal((samples, 2))
        split = Split(torch.tensor(x, dtype=torch.float32), torch.arange(samples) % 2)
        found.append(Client(f"c{number}", split, split, split))
    return Federation(found, 2)


def server_of(federation: Federation, **options):
    config = make_config({"rounds": 1, "model": "logistic", "workers": 1, "method": "fedavg"} | options)
    return assemble(config, federation=federation)[0].server


def test_the_sums_of_a_client_by_hand():
    own = Split(torch.tensor([[1.0, 2.0], [3.0, 0.0], [-4.0, 1.0]]), torch.tensor([0, 1, 0]))
    server = server_of(Federation([Client("a", own, own, own)], 2))
    words = torch.tensor([[2.0, 1.0], [-5.0, 0.0], [50.0, 50.0]])
    task = WordSums("pca", (2,), 2, IDENTITY.weights, words)
    total = (
        server.exchange([Request("a", task)], weighting="uniform", size=task.schema(server.layout).vector).sums[0].total
    )
    assert total.reshape(3, 5).tolist() == [[4, 2, 10, 4, 2], [-4, 1, 16, 1, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("secure", [False, True])
def test_words_come_to_lie_where_the_codes_gather(secure):
    found = form_codebook(server_of(corners(), secure_sums=secure), corners().ids, IDENTITY, 4)
    order = np.lexsort(np.sign(found).T)
    np.testing.assert_allclose(found[order], CORNERS[np.lexsort(CORNERS.T)], atol=0.1)


def test_a_word_of_few_samples_is_not_split():
    few = corners(clients=1, samples=LEAST_SPLIT - 1)
    assert form_codebook(server_of(few), few.ids, IDENTITY).shape == (1, 2)


def test_a_centroid_is_sent_as_the_nearest_word():
    client = corners(clients=1)["c0"]
    words = torch.tensor([[4.0, 4.0], [-6.0, -6.0], [9.0, -9.0], [0.0, 0.0]])
    task = Embed("pca", (2,), 2, IDENTITY.weights, 4, 0, 1, 5, words)
    [reply], _ = perform([Request("c0", task)], {"c0": ClientContext(client, {})}, server_of(corners()).engine.trainer)
    assert reply.values["centroids"].tolist() == words.tolist()


OPTIONS = {"scenario": "flt-s1-digits", "clients": 6, "groups": 2, "rounds": 2, "workers": 1, "seed": 1}


@pytest.fixture(scope="module")
def plain():
    return coterie.run("flt:encoder=pca,signature=words,clusters=2", **OPTIONS)


def test_flt_runs_on_secure_sums_with_words_and_not_with_centroids(plain, monkeypatch):
    secure = coterie.run("flt:encoder=pca,signature=words,clusters=2", secure_sums=True, secure_limit=4.0, **OPTIONS)
    assert secure.clusters == plain.clusters
    assert not [fault for record in secure.history for fault in record.faults]
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    by_default = coterie.run("flt:encoder=pca,clusters=2", secure_sums=True, secure_limit=4.0, **OPTIONS)
    for ours, theirs in zip(by_default.models, secure.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="signature=words"):
        coterie.run("flt:signature=centroids", secure_sums=True, **OPTIONS)
    monkeypatch.setattr(flt, "import_umap", lambda: None)
    with pytest.raises(ConfigError, match="case=2"):
        coterie.run("flt:case=1,signature=words", secure_sums=True, **OPTIONS)


def test_words_and_fine_tuning_do_not_go_together():
    with pytest.raises(ConfigError, match="finetune=0"):
        coterie.run("flt:signature=words,finetune=1", **OPTIONS)


def test_newcomers_are_placed_by_the_words_that_are_in_use(plain):
    words = {tuple(row) for own in plain.state.relatives.centroids for row in own if not np.isnan(row).any()}
    assert 2 <= len(words) <= WORDS
    known = find_scenario("flt-s1-digits").build(clients=6, groups=2, seed=derive(1, "scenario"))
    homes = plain.assign(Federation([replace(known[c], id=f"new-{c}") for c in known.ids], known.classes))
    agreed = [c in plain.clusters[homes[f"new-{c}"]] for c in known.ids]
    assert np.mean(agreed) >= 0.75


def test_words_find_the_groups_and_secure_sums_decide_as_clear_updates_do():
    """Candidates come from words and the judge from sums of half-updates: no single update is seen."""
    options = OPTIONS | {"rounds": 5}
    clear = coterie.run("flt:encoder=pca,signature=words", **options)
    secure = coterie.run("flt:encoder=pca", secure_sums=True, secure_limit=4.0, **options)
    assert (clear.summary.ari, secure.summary.ari) == (1.0, 1.0)
    assert clear.clusters == secure.clusters
