"""The networks' shapes, sizes worked by hand, and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.errors import ConfigError
from coterie.models import ConvAutoencoder, build

DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "input_shape"),
    [
        ("logistic", (5,)),
        ("logistic", MNIST),
        ("mlp", (5,)),
        ("mlp", DIGITS),
        ("cnn-small", DIGITS),
        ("cnn-small", MNIST),
        ("cnn-small", CIFAR),
        ("cnn-small", (1, 12, 30)),
        ("cnn-cifar", DIGITS),
        ("cnn-cifar", CIFAR),
        ("cnn-leaf", DIGITS),
        ("cnn-leaf", MNIST),
        ("cnn-leaf", CIFAR),
        ("cnn-flt", MNIST),
        ("cnn-flt", CIFAR),
        ("cnn-1d", (6, 150)),
        ("cnn-1d", (1, 8)),
        ("resnet18", (1, 28, 28)),
        ("resnet18", CIFAR),
    ],
)
def test_a_classifier_gives_one_logit_a_class(name: str, input_shape: tuple[int, ...]) -> None:
    model = build(name, input_shape, 7, seed=0)
    assert model(torch.zeros(3, *input_shape)).shape == (3, 7)


@pytest.mark.parametrize("name", ["cnn-small", "cnn-leaf"])
@settings(max_examples=25, deadline=None)
@given(height=st.integers(4, 40), width=st.integers(4, 40), channels=st.integers(1, 3))
def test_every_image_size_a_cnn_accepts_it_can_read(name: str, height: int, width: int, channels: int) -> None:
    with torch.device("meta"):
        model = build(name, (channels, height, width), 5, seed=0)
        assert model(torch.zeros(2, channels, height, width)).shape == (2, 5)


def test_linear_regression_is_an_inner_product_against_a_column() -> None:
    model = build("linear", (4,), 1, seed=3)
    theta = next(model.parameters()).detach()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert size(model) == 4
    assert model(x).shape == (6, 1)
    torch.testing.assert_close(model(x), (x @ theta.T))


@pytest.mark.parametrize("input_shape", [DIGITS, MNIST, (1, 32, 32), CIFAR, (3, 12, 20)])
@pytest.mark.parametrize("spec", ["autoencoder", "autoencoder:code=9,output=sigmoid"])
def test_the_autoencoder_codes_and_gives_the_image_shape_back(spec: str, input_shape: tuple[int, ...]) -> None:
    model = build(spec, input_shape, 10, seed=0)
    assert isinstance(model, ConvAutoencoder)
    x = torch.rand(3, *input_shape, generator=torch.Generator().manual_seed(0)) * 9 - 4
    assert model.encode(x).shape == (3, 9 if "code=" in spec else 128)
    assert model(x).shape == x.shape
    torch.testing.assert_close(model(x), model.decoder(model.encode(x)))
    if "sigmoid" in spec:
        assert model(x).min() > 0
        assert model(x).max() < 1


def test_the_language_model_predicts_every_position_from_the_past_only() -> None:
    model = build("lstm:embedding=6,hidden=5", (4,), 11, seed=0)
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9]])
    logits = model(tokens)
    assert logits.shape == (2, 4, 11)
    torch.testing.assert_close(logits[0, :2], logits[1, :2])
    assert not torch.allclose(logits[0, 2], logits[1, 2])


@pytest.mark.parametrize(
    ("spec", "input_shape", "classes", "expected"),
    [
        ("mlp", MNIST, 10, (784 * 200 + 200) + (200 * 10 + 10)),
        ("mlp", MNIST, 62, 169_462),  # as FLT C.3 prints
        ("mlp:hidden=64", DIGITS, 10, (64 * 64 + 64) + (64 * 10 + 10)),
        ("logistic", DIGITS, 10, 650),
        # 28 -5x5-> 24 -pool-> 12 -5x5-> 8 -pool-> 4
        ("cnn-small", MNIST, 10, (25 * 6 + 6) + (150 * 16 + 16) + (256 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)),
        ("cnn-leaf", MNIST, 62, (25 * 32 + 32) + (800 * 64 + 64) + (3136 * 2048 + 2048) + (2048 * 62 + 62)),
        ("cnn-leaf", MNIST, 62, 6_603_710),
        ("cnn-flt", MNIST, 62, 3_459_582),  # FLT, appendix C.3
        ("cnn-cifar", CIFAR, 10, (27 * 32 + 32) + (288 * 64 + 64) + (576 * 64 + 64) + (1024 * 128 + 128) + 1290),
        ("cnn-1d", (6, 150), 7, (6 * 7 * 16 + 16) + (16 * 7 * 32 + 32) + (32 * 4 * 7 + 7)),
        ("cnn-1d:width=4,kernel=3", (2, 8), 3, (2 * 3 * 4 + 4) + (4 * 3 * 8 + 8) + (8 * 4 * 3 + 3)),
        ("autoencoder", MNIST, 10, 51_577),  # as FLT C.3 prints
        ("resnet18", CIFAR, 10, 11_173_962),
        # stem; blocks of 3x3 kernels (4, 14, 56, 224 times 9w²) and 1x1 shortcuts; norms of 2 numbers a channel; head
        (
            "resnet18:width=8,stride=2",
            CIFAR,
            10,
            27 * 8 + (4 + 14 + 56 + 224) * 9 * 64 + (2 + 8 + 32) * 64 + 2 * (1 + 4 + 10 + 20 + 40) * 8 + 64 * 10 + 10,
        ),
        # two layers of four gates, each with two biases
        ("lstm:embedding=6,hidden=5", (4,), 11, 66 + 4 * (30 + 25 + 10) + 4 * (25 + 25 + 10) + (5 * 11 + 11)),
    ],
)
def test_parameter_counts_worked_by_hand(spec: str, input_shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert size(build(spec, input_shape, classes, seed=0)) == expected


def test_feed_forward_networks_can_be_recognised_by_their_named_layers() -> None:
    model = build("mlp", MNIST, 10, seed=0)
    assert type(model) is nn.Sequential
    assert [(name, type(layer)) for name, layer in model.named_children()] == [
        ("flatten", nn.Flatten),
        ("hidden", nn.Linear),
        ("relu", nn.ReLU),
        ("head", nn.Linear),
    ]


def test_resnet_names_its_blocks_and_keeps_batch_statistics_as_buffers() -> None:
    model = build("resnet18", CIFAR, 10, seed=0)
    layers = [name for name, _ in model.named_children()]
    assert [name for name in layers if name.startswith("block")] == ["block1", "block2", "block3", "block4"]
    assert layers[-1] == "head"
    assert model.get_submodule("block4")(torch.zeros(1, 256, 8, 8)).shape == (1, 512, 4, 4)
    assert sum("running_mean" in name for name, _ in model.named_buffers()) == 20


@pytest.mark.parametrize(
    ("spec", "input_shape", "classes"),
    [
        ("linear", (5,), 0),
        ("logistic", DIGITS, 4),
        ("mlp", DIGITS, 4),
        ("cnn-small", DIGITS, 4),
        ("cnn-small", MNIST, 4),
        ("cnn-cifar", CIFAR, 4),
        ("cnn-leaf:hidden=64", DIGITS, 4),
        ("autoencoder", DIGITS, 4),
        ("resnet18", (3, 16, 16), 4),
        ("lstm:hidden=8", (6,), 13),
        ("cnn-1d", (6, 150), 4),
    ],
)
def test_every_parameter_gets_a_gradient(spec: str, input_shape: tuple[int, ...], classes: int) -> None:
    model = build(spec, input_shape, classes, seed=0)
    generator = torch.Generator().manual_seed(0)
    tokens = spec.startswith("lstm")
    x = torch.randint(13, (8, 6), generator=generator) if tokens else torch.randn(8, *input_shape, generator=generator)
    model(x).square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("spec", "input_shape", "classes", "message"),
    [
        ("cnn-small", (1, 3, 8), 10, r"at least 4x4, but they are 3x8"),
        ("cnn-cifar", (3, 4, 32), 10, r"at least 8x8, but they are 4x32"),
        ("cnn-leaf", (1, 2, 2), 10, r"at least 4x4"),
        ("cnn-1d", MNIST, 10, r"signals of shape \(channels, length\)"),
        ("cnn-1d", (6, 7), 10, r"at least 8 samples, but they have 7"),
        ("cnn-1d:kernel=4", (6, 150), 10, r"kernel=4 must be odd"),
        ("resnet18", DIGITS, 10, r"at least 16x16, but they are 8x8"),
        ("resnet18:stride=2", MNIST, 10, r"at least 32x32, but they are 28x28"),
        ("resnet18:width=0", CIFAR, 10, r"width=0 must be 1 or more"),
        ("autoencoder", (1, 30, 28), 10, r"30x28 does not divide by 4"),
        ("autoencoder:output=tanh", MNIST, 10, r"output='tanh' must be 'linear' or 'sigmoid'"),
        ("cnn-small", (30,), 10, r"'cnn-small' takes images .* has shape \(30,\)"),
        ("resnet18", (30,), 10, r"takes images"),
        ("autoencoder", (28, 28), 10, r"takes images"),
        ("lstm", MNIST, 100, r"takes sequences .* \(1, 28, 28\)"),
        ("lstm", (30,), 1, r"vocabulary of at least 2"),
        ("linear", (30,), 10, r"has 10 classes; use 'logistic'"),
        ("mlp:hidden=0", (30,), 10, r"hidden=0 must be 1 or more"),
        ("mlp", (), 10, r"at least one dimension"),
        ("mlp", (3, 0), 10, r"\(3, 0\)"),
        ("mlp", (3,), -1, r"classes is -1"),
    ],
)
def test_a_network_that_cannot_read_the_data_is_refused(
    spec: str, input_shape: tuple[int, ...], classes: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(spec, input_shape, classes, seed=0)
    assert "\n" not in str(caught.value)
