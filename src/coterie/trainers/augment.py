"""Random changes to the images of a step: mirrored, moved, or what a function of the user's own does to them.

The draws come from a generator that is seeded by the client's batches, so that a run repeats on every engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.errors import ConfigError, did_you_mean, users_code
from coterie.models.custom import find_callable
from coterie.randomness import torch_generator
from coterie.trainers.base import Augment, Training

PADDING = 4
"""Pixels around an image that it is cropped from, where none are given."""


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image `(..., height, width)` mirrored left to right with probability one half."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device).view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)


def crop(images: Tensor, generator: torch.Generator, padding: int = PADDING) -> Tensor:
    """Each image moved by up to `padding` pixels both ways; what comes in from outside is zero."""
    n, (height, width) = len(images), images.shape[-2:]
    moves = torch.randint(2 * padding + 1, (2, n), generator=generator).to(images.device)
    wide = F.pad(images, (padding,) * 4).reshape(n, -1, height + 2 * padding, width + 2 * padding)
    rows = (moves[0, :, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (moves[1, :, None] + torch.arange(width, device=images.device))[:, None, None, :]
    which = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(wide.shape[1], device=images.device)[None, :, None, None]
    return wide[which, channels, rows, columns].view(images.shape)


AUGMENTS: dict[str, Callable[..., Tensor]] = {"flip": flip, "crop": crop}
EXPECTED = "flip, crop, crop:PIXELS, these joined by commas, or module:function"


def find_augment(spec: str) -> Augment:
    """The function that a text spells: "flip", "flip,crop:4", or "module:function" of the user's own."""
    # One of the user's own is looked up every time: a notebook may have redefined it.
    return find_callable(spec, "augment") if own_function(spec) else _built_in(spec)


@cache
def _built_in(spec: str) -> Augment:
    steps: list[Augment] = []
    for part in spec.split(","):
        name, colon, amount = part.strip().partition(":")
        if name not in AUGMENTS:
            raise ConfigError(f"augment={spec!r}: {did_you_mean(name, AUGMENTS)} (expected {EXPECTED})")
        if colon and (name != "crop" or not amount.isdecimal() or not int(amount)):
            raise ConfigError(f"augment={spec!r}: expected {EXPECTED}")
        steps.append(partial(crop, padding=int(amount)) if colon else AUGMENTS[name])

    def all_steps(images: Tensor, generator: torch.Generator) -> Tensor:
        for step in steps:
            images = step(images, generator)
        return images

    return all_steps


def spelt(augment: str | Augment | None) -> str | None:
    """An augmentation as text, so that it can be stored, and found again elsewhere."""
    if augment is None or isinstance(augment, str):
        return augment
    module, name = getattr(augment, "__module__", None), getattr(augment, "__qualname__", "")
    if module is None or getattr(sys.modules.get(module), name, None) is not augment:
        raise ConfigError(f"augment={augment!r} cannot be found by name: define the function at the top of a module")
    return f"{module}:{name}"


def own_function(spec: str) -> bool:
    """Whether a text names a function of the user's own."""
    return ":" in spec and spec.split(",")[0].partition(":")[0] not in AUGMENTS


def augmentation(training: Training, seed: int) -> Callable[[Tensor], Tensor] | None:
    """What changes the inputs of a client's every step, in turn, where its batches have this seed; None: nothing."""
    if training.augment is None:
        return None
    augment = find_augment(training.augment) if isinstance(training.augment, str) else training.augment
    generator = torch_generator(seed, "augment")

    def changed(inputs: Tensor) -> Tensor:
        with users_code("the augmentation"):
            found = augment(inputs, generator)
        if not isinstance(found, Tensor) or found.shape != inputs.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"the augmentation made {shape} of inputs {tuple(inputs.shape)}: keep their shape")
        return found

    return changed
