"""ResNet-18 for 32x32 images, as FedCUAU trains on CIFAR-10: a 3x3 stem, no first pooling, BatchNorm."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from coterie.models.requirements import at_least_one, image_shape, outputs


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions added to their input; a 1x1 convolution carries the input where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                    norm=nn.BatchNorm2d(channels_out),
                )
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (n, channels_in, h, w) -> (n, channels_out, h / stride, w / stride)."""
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


def _block(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        ResidualUnit(channels_in, channels_out, stride),
        ResidualUnit(channels_out, channels_out, stride=1),
    )


def resnet18(input_shape: tuple[int, ...], classes: int, width: int = 64, stride: int = 1) -> nn.Sequential:
    """ResNet-18 for small images: (n, channels, height, width) -> logits (n, classes).

    The residual blocks are named block1 ... block4 (FedCUAU's RB1 ... RB4), the last layer head. `width` is the
    channels of the first block, doubled in each of the others; `stride` that of the stem: 2 halves the image at once,
    and a step takes a third of the time.
    """
    at_least_one("resnet18", width=width, stride=stride)
    # Below 16 pixels the last block sees a single one, and BatchNorm cannot train on a batch of one image.
    channels, _, _ = image_shape("resnet18", input_shape, smallest=16 * stride)
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            block1=_block(width, width, stride=1),
            block2=_block(width, 2 * width, stride=2),
            block3=_block(2 * width, 4 * width, stride=2),
            block4=_block(4 * width, 8 * width, stride=2),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(8 * width, outputs(classes)),
        )
    )
