"""The embedding task: labels never matter, k is clamped, bytes are counted, and the seed decides alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data.sources import load_source
from coterie.encoders import Encoder, load_encoder
from coterie.encoders.encoder import conv_network
from coterie.federation import Client, Federation, Split
from coterie.parameters import Layout
from coterie.tasks.base import ClientContext, Reply
from coterie.tasks.embed import Embed, centroid_table, k_means
from coterie.tasks.wire import reply_bytes, task_bytes
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss
from coterie.trainers.threads import one_thread


def client(name: str, rows: slice, labels: torch.Tensor | None = None) -> Client:
    pool = load_source("digits")
    split = Split(pool.images(rows), pool.labels(rows) if labels is None else labels)
    return Client(name, split, Split(split.x[:0], split.y[:0]), Split(split.x[:0], split.y[:0]))


def ask(task: Embed, *clients: Client) -> list[Reply]:
    # A trainer without layers: the task trains no model of the federation.
    trainer = LoopTrainer(torch.nn.Identity(), softmax_loss)
    return task.perform([task] * len(clients), [ClientContext(c, {}) for c in clients], trainer).replies


def centroids(replies: list[Reply]) -> list[list[list[float]]]:
    return [reply.values["centroids"].tolist() for reply in replies]


@pytest.mark.parametrize("epochs", [0, 1])
def test_permuted_labels_change_nothing(epochs: int) -> None:
    one = client("a", slice(0, 40))
    shuffled = client("a", slice(0, 40), torch.flip(one.train.y, [0]) * 0 + 7)
    task = Embed.with_encoder(load_encoder("default"), 5, epochs, seed=1)
    assert centroids(ask(task, one)) == centroids(ask(task, shuffled))


def test_centroids_are_near_the_codes_they_stand_for() -> None:
    encoder = load_encoder("pca")
    reply = ask(Embed.with_encoder(encoder, 3, 0, seed=0), client("a", slice(0, 50)))[0]
    table = centroid_table([reply], 3, encoder.code)
    codes = encoder.encode(load_source("digits").images(slice(0, 50))).numpy()
    nearest = np.linalg.norm(codes[:, None] - table[0][None], axis=2)
    within = (nearest.min(axis=1) ** 2).sum()
    assert within < ((codes - codes.mean(0)) ** 2).sum()
    # Each centroid is the mean of the codes nearest to it: what k-means converges to.
    for j in range(3):
        np.testing.assert_allclose(table[0, j], codes[nearest.argmin(axis=1) == j].mean(0), atol=1e-3)


def test_few_samples_clamp_k_and_send_fewer_centroids() -> None:
    encoder = load_encoder("pca")
    task = Embed.with_encoder(encoder, 5, 0, seed=0, least=1)
    full, few = ask(task, client("many", slice(0, 30)), client("few", slice(0, 2)))
    assert full.values["centroids"].shape == (5, encoder.code)
    assert few.values["centroids"].shape == (2, encoder.code)
    schema = task.schema(Layout(()))
    assert reply_bytes(full, schema) == 4 * 5 * encoder.code
    assert reply_bytes(few, schema) == 4 * 2 * encoder.code
    table = centroid_table([full, few], 5, encoder.code)
    assert np.isnan(table[1, 2:]).all()
    assert not np.isnan(table[1, :2]).any()
    assert not np.isnan(table[0]).any()


def test_identical_samples_give_identical_centroids_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    found = k_means(torch.ones(6, 3), 4, seed=0)
    assert (found == 1).all()
    assert not recwarn


def test_bytes_down_are_the_encoder_and_with_finetuning_the_decoder() -> None:
    encoder = load_encoder("default")
    layout = Layout(())
    plain, tuned = (task_bytes(Embed.with_encoder(encoder, 5, epochs, 0), layout) for epochs in (0, 2))
    assert plain == 4 * sum(p.numel() for p in conv_network(encoder).encoder.parameters())
    assert tuned == 4 * encoder.weights.numel() > plain
    assert task_bytes(Embed.with_encoder(Encoder("own-pca", (), 4, torch.empty(0)), 5, 0, 0), layout) == 0


def test_clients_answers_do_not_depend_on_company_or_threads() -> None:
    task = Embed.with_encoder(load_encoder("default"), 4, 1, seed=5)
    a, b = client("a", slice(0, 30)), client("b", slice(30, 70))
    together = ask(task, a, b)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        alone = ask(task, b)
    finally:
        torch.set_num_threads(before)
    assert centroids(together)[1] == centroids(alone)[0]


def test_one_thread_restores_what_it_found() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_federation_of_tokens_is_refused_in_words() -> None:
    from coterie.errors import ConfigError

    x = torch.zeros(6, 3, dtype=torch.int64)
    text = Federation([Client("a", Split(x, x), Split(x[:0], x[:0]), Split(x[:0], x[:0]))])
    with pytest.raises(ConfigError, match="tokens"):
        ask(Embed.with_encoder(load_encoder("pca"), 2, 0, 0), text["a"])


def test_noise_is_measured_in_the_spread_of_the_codes_around_their_centroids() -> None:
    encoder, own = load_encoder("pca"), client("a", slice(0, 400))
    codes = encoder.encode(own.train.x).numpy()
    clear = ask(Embed.with_encoder(encoder, 5, 0, seed=3), own)[0].values["centroids"].numpy()
    apart = np.linalg.norm(codes[:, None] - clear[None], axis=2)
    spread = np.sqrt((apart.min(axis=1) ** 2).mean() / encoder.code)
    noisy = [ask(Embed.with_encoder(encoder, 5, 0, seed, noise=0.01), own)[0].values["centroids"] for seed in (3, 3)]
    assert torch.equal(*noisy)
    # 0.01 is too little to change the order, so the difference is the noise.
    assert float(np.std(noisy[0].numpy() - clear)) == pytest.approx(0.01 * spread, rel=0.2)
