"""Convolutional classifiers: the CFL notebook's, one for CIFAR, LEAF's for FEMNIST, FLT's, and one for signals.

Each takes images (n, channels, height, width), or signals (n, channels, length), and gives logits (n, classes).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from coterie.errors import ConfigError
from coterie.models.requirements import at_least_one, image_shape, outputs, signal_shape

# Two unpadded 5x5 convolutions, each followed by a halving, leave at least one pixel from this side on: 16-12-6-2-1.
_UNPADDED_SIDE = 16
_STRETCHES = 4
"""Parts of a signal that cnn-1d averages apart, so that their order counts."""


def halving(*convolutions: nn.Conv2d) -> dict[str, nn.Module]:
    """Convolutions, each with a ReLU and a pooling that halves the image behind it, and what flattens the last."""
    layers: dict[str, nn.Module] = {}
    for number, convolution in enumerate(convolutions, start=1):
        layers |= {f"conv{number}": convolution, f"relu{number}": nn.ReLU(), f"pool{number}": nn.MaxPool2d(2)}
    return {**layers, "flatten": nn.Flatten()}


def cnn_small(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The CFL notebook's network: two 5x5 convolutions (6 and 16 channels) and layers of 120, 84 and `classes`.

    Images with a side below 16 (scikit-learn's 8x8 digits) get padded convolutions: unpadded ones would leave nothing.
    """
    channels, height, width = image_shape("cnn-small", input_shape, smallest=4)
    padding = 0 if min(height, width) >= _UNPADDED_SIDE else 2

    def side_after(side: int) -> int:
        for _ in range(2):
            side = (side + 2 * padding - 4) // 2
        return side

    return nn.Sequential(
        OrderedDict(
            **halving(
                nn.Conv2d(channels, 6, 5, padding=padding),
                nn.Conv2d(6, 16, 5, padding=padding),
            ),
            fc1=nn.Linear(16 * side_after(height) * side_after(width), 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            head=nn.Linear(84, outputs(classes)),
        )
    )


def cnn_cifar(input_shape: tuple[int, ...], classes: int, width: int = 32, hidden: int = 128) -> nn.Sequential:
    """Five layers for CIFAR: three 3x3 convolutions (width, 2 width, 2 width channels) and two fully connected layers.

    The CFL paper says "five-layer convolutional neural network" and no more; the widths are ours.
    """
    at_least_one("cnn-cifar", width=width, hidden=hidden)
    channels, rows, columns = image_shape("cnn-cifar", input_shape, smallest=8)
    return nn.Sequential(
        OrderedDict(
            **halving(
                nn.Conv2d(channels, width, 3, padding=1),
                nn.Conv2d(width, 2 * width, 3, padding=1),
                nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            ),
            hidden=nn.Linear(2 * width * (rows // 8) * (columns // 8), hidden),
            relu4=nn.ReLU(),
            head=nn.Linear(hidden, outputs(classes)),
        )
    )


def cnn_leaf(input_shape: tuple[int, ...], classes: int, hidden: int = 2048) -> nn.Sequential:
    """LEAF's FEMNIST network: 5x5 convolutions of 32 and 64 channels, each halved by pooling, `hidden` and the head.

    FLT's CNN differs in its padding and channels: see `cnn_flt`.
    IFCA's networks for CIFAR and FEMNIST have this shape too: two convolutions, two fully connected layers.
    """
    at_least_one("cnn-leaf", hidden=hidden)
    channels, height, width = image_shape("cnn-leaf", input_shape, smallest=4)
    return nn.Sequential(
        OrderedDict(
            **halving(
                nn.Conv2d(channels, 32, 5, padding=2),
                nn.Conv2d(32, 64, 5, padding=2),
            ),
            hidden=nn.Linear(64 * (height // 4) * (width // 4), hidden),
            relu3=nn.ReLU(),
            head=nn.Linear(hidden, outputs(classes)),
        )
    )


class ThreeChannels(nn.Module):
    """Repeats a grey image as red, green and blue; colours pass as they are."""

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1 or 3, height, width) as (n, 3, height, width)."""
        return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


def cnn_flt(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """FLT's CNN of appendix C.3 by its number of parameters: 3,459,582 for 28x28 images of 62 classes.

    That number needs what the table does not print: three input channels, 64 channels in the second convolution, which
    is not padded, and a pooling after it too. Grey images are repeated.
    """
    channels, height, width = image_shape("cnn-flt", input_shape, smallest=12)
    if channels not in (1, 3):
        raise ConfigError(f"model 'cnn-flt' takes grey or coloured images, but these have {channels} channels")
    return nn.Sequential(
        OrderedDict(
            colours=ThreeChannels(),
            **halving(
                nn.Conv2d(3, 32, 5, padding=2),
                nn.Conv2d(32, 64, 5),
            ),
            hidden=nn.Linear(64 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2), 2048),
            relu3=nn.ReLU(),
            head=nn.Linear(2048, outputs(classes)),
        )
    )


def cnn_1d(input_shape: tuple[int, ...], classes: int, width: int = 16, kernel: int = 7) -> nn.Sequential:
    """A small network for signals: two strided convolutions (width, 2 width channels), the mean over four stretches.

    Strides of 2 with a pooling between them shorten a signal to an eighth; what is left is averaged in four parts.
    """
    at_least_one("cnn-1d", width=width, kernel=kernel)
    channels, _ = signal_shape("cnn-1d", input_shape, smallest=8)
    if kernel % 2 == 0:
        raise ConfigError(f"model 'cnn-1d': option kernel={kernel} must be odd")
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv1d(channels, width, kernel, stride=2, padding=kernel // 2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool1d(2),
            conv2=nn.Conv1d(width, 2 * width, kernel, stride=2, padding=kernel // 2),
            relu2=nn.ReLU(),
            stretches=nn.AdaptiveAvgPool1d(_STRETCHES),
            flatten=nn.Flatten(),
            head=nn.Linear(2 * width * _STRETCHES, outputs(classes)),
        )
    )
