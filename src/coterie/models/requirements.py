"""What a network asks of the shape of one input and of its sizes, checked before any training."""

from __future__ import annotations

from coterie.errors import ConfigError


def image_shape(model: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The (channels, height, width) of one image whose sides are at least `smallest`; anything else is an error."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model {model!r} takes images of shape (channels, height, width), but one input here has shape "
            f"{input_shape}; use 'mlp' for vectors, 'lstm' for text, or data with images"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"model {model!r} needs images of at least {smallest}x{smallest}, but they are {height}x{width} here; "
            f"use 'cnn-small', 'mlp' or larger images"
        )
    return channels, height, width


def signal_shape(model: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int]:
    """The (channels, length) of one signal of at least `smallest` samples; anything else is an error."""
    if len(input_shape) != 2:
        raise ConfigError(
            f"model {model!r} takes signals of shape (channels, length), but one input here has shape {input_shape}; "
            f"use 'mlp' for vectors, 'cnn-small' for images, or data with signals"
        )
    channels, length = input_shape
    if length < smallest:
        raise ConfigError(f"model {model!r} needs signals of at least {smallest} samples, but they have {length} here")
    return channels, length


def at_least_one(model: str, **sizes: int) -> None:
    """Refuse a size below one, naming the option."""
    for option, size in sizes.items():
        if size < 1:
            raise ConfigError(f"model {model!r}: option {option}={size} must be 1 or more")


def outputs(classes: int) -> int:
    """The width of the last layer: one output a class, a single one for regression (0 or 1 classes)."""
    return max(classes, 1)
