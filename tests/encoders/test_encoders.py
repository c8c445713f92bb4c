"""Encoders: training lowers the error, files keep every number and no pickle, PCA agrees with scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.decomposition import PCA

from coterie.data.sources import load_source
from coterie.encoders import SHIPPED, Encoder, finetuned, load_encoder, pca_encoder, save_encoder, train_encoder
from coterie.encoders import files as encoder_files
from coterie.encoders.encoder import conv_network, fitted
from coterie.errors import ConfigError
from coterie.tasks import Embed


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return load_source("digits").images(slice(0, 300))


def error(encoder: Encoder, x: torch.Tensor) -> float:
    with torch.no_grad():
        return float(((conv_network(encoder)(fitted(x, encoder.shape)) - fitted(x, encoder.shape)) ** 2).mean())


@pytest.mark.long
def test_training_is_repeatable_lowers_the_error_and_reports_it(digits: torch.Tensor) -> None:
    heard: list[tuple[int, float]] = []
    first = train_encoder(digits, code=16, epochs=6, seed=3, say=lambda epoch, loss: heard.append((epoch, loss)))
    again = train_encoder(digits, code=16, epochs=6, seed=3)
    other = train_encoder(digits, code=16, epochs=6, seed=4)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.weights, other.weights)
    assert [epoch for epoch, _ in heard] == [1, 2, 3, 4, 5, 6]
    assert heard[-1][1] < 0.75 * heard[0][1]
    assert first.encode(digits).shape == (300, 16)


def test_training_leaves_the_global_generator_alone(digits: torch.Tensor) -> None:
    before = torch.get_rng_state()
    train_encoder(digits[:40], code=4, epochs=1).encode(digits[:5])
    assert torch.equal(before, torch.get_rng_state())


def test_finetuning_fits_the_clients_own_inputs_and_leaves_the_given_encoder(digits: torch.Tensor) -> None:
    shipped = load_encoder("default")
    given = shipped.weights.clone()
    own = 1 - digits[:60]  # unlike anything it has seen
    tuned = finetuned(shipped, own, 3, seed=0)
    assert error(tuned, own) < 0.9 * error(shipped, own)
    assert torch.equal(shipped.weights, given)
    assert finetuned(load_encoder("pca"), own, 3, seed=0).kind == "pca"


def test_pca_gives_the_coordinates_of_scikit_learn_up_to_sign(digits: torch.Tensor) -> None:
    ours = pca_encoder(digits, code=5).encode(digits).numpy()
    theirs = PCA(5, svd_solver="full").fit_transform(digits.flatten(1).numpy())
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=2e-4)


def test_own_pca_clamps_to_the_rank_of_few_samples(digits: torch.Tensor) -> None:
    codes = Encoder("own-pca", (), 8, torch.empty(0)).encode(digits[:3])
    assert codes.shape == (3, 8)
    assert (codes[:, 2:] == 0).all()  # three points span two directions
    assert (codes[:, :2].abs().sum(0) > 0).all()
    gaps = torch.cdist(digits[:3].flatten(1), digits[:3].flatten(1))
    assert torch.allclose(torch.cdist(codes, codes), gaps, atol=1e-4)
    assert (Encoder("own-pca", (), 8, torch.empty(0)).encode(digits[:1]) == 0).all()


@pytest.mark.parametrize("kind", ["conv", "pca"])
def test_a_file_gives_back_the_same_encoder(kind: str, digits: torch.Tensor, tmp_path: Path) -> None:
    made = pca_encoder(digits, code=7) if kind == "pca" else train_encoder(digits[:64], code=7, epochs=1)
    save_encoder(made, tmp_path / "enc.safetensors", "digits")
    back = load_encoder(tmp_path / "enc.safetensors")
    assert (back.kind, back.shape, back.code) == (made.kind, (1, 8, 8), 7)
    assert torch.equal(back.weights, made.weights)
    assert torch.equal(back.encode(digits[:9]), made.encode(digits[:9]))


def test_files_that_are_no_encoders_are_one_line_that_names_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.safetensors.*no such file.*coterie encoder train"):
        load_encoder(tmp_path / "nowhere.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor in sight")
    with pytest.raises(ConfigError, match="damaged"):
        load_encoder(tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(ConfigError, match="not an encoder"):
        load_encoder(tmp_path / "foreign.safetensors")
    with pytest.raises(ConfigError):
        load_encoder(tmp_path)


def test_a_file_whose_tensors_do_not_fit_its_options_is_refused(digits: torch.Tensor, tmp_path: Path) -> None:
    made = pca_encoder(digits, code=7)
    save_encoder(Encoder("pca", (1, 4, 4), 7, made.weights), tmp_path / "enc.safetensors")
    with pytest.raises(ConfigError, match="expected"):
        load_encoder(tmp_path / "enc.safetensors")


def test_shipped_encoders_are_small_and_take_images_of_any_size(digits: torch.Tensor) -> None:
    folder = Path(encoder_files.__file__).parent
    assert sum((folder / name).stat().st_size for name in SHIPPED.values()) < 300_000
    for name in SHIPPED:
        encoder = load_encoder(name)
        for shape in ((1, 8, 8), (1, 28, 28), (3, 32, 32)):
            assert encoder.encode(torch.rand(4, *shape)).shape == (4, encoder.code)


def test_the_shipped_autoencoder_has_learnt_digits(digits: torch.Tensor) -> None:
    held_out = load_source("digits").images(part="test")
    big = fitted(held_out, (1, 28, 28))
    assert error(load_encoder("default"), held_out) < 0.15 * float(((big - big.mean(0)) ** 2).mean())


def test_resizing_averages_when_it_shrinks_and_colours_become_grey() -> None:
    block = torch.zeros(1, 1, 8, 8)
    block[..., :4, :4] = 1
    assert abs(float(fitted(block, (1, 4, 4)).mean()) - 0.25) < 1e-6
    colours = torch.tensor([0.0, 0.3, 0.9]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    assert torch.allclose(fitted(colours, (1, 4, 4)), torch.full((1, 1, 4, 4), 0.4))


def test_inputs_that_no_encoder_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"takes inputs of shape \(1, 28, 28\), the data has \(5,\)"):
        load_encoder("default").encode(torch.zeros(3, 5))
    with pytest.raises(ConfigError, match="tokens"):
        load_encoder("pca").encode(torch.zeros(3, 5, dtype=torch.int64))


def test_the_decoder_is_sent_only_to_be_finetuned() -> None:
    encoder = load_encoder("default")
    network = conv_network(encoder)
    weights = encoder.encoding_weights()
    assert len(weights) == sum(p.numel() for p in network.encoder.parameters())
    assert len(Embed.with_encoder(encoder, 5, 1, 0).weights) == sum(p.numel() for p in network.parameters())
    assert torch.equal(Embed.with_encoder(encoder, 5, 0, 0).weights, weights)
    received = Encoder.with_weights(encoder.kind, encoder.shape, encoder.code, weights)
    images = load_source("digits").images(slice(0, 20))
    assert torch.equal(received.encode(images), encoder.encode(images))  # the decoder is missed by nobody
