"""The table of named networks, and the one function that builds a network, named or the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from coterie.errors import ConfigError, did_you_mean, users_code
from coterie.models import autoencoder, convolutional, custom, feedforward, recurrent, residual
from coterie.models.options import parse_model_options
from coterie.randomness import derive


@dataclass(frozen=True)
class ModelSpec:
    """A named network: `build(input_shape, classes, **options)` makes it; `takes` says what it can read."""

    name: str
    summary: str
    build: Callable[..., nn.Module]
    takes: Literal["numbers", "tokens"] = "numbers"


_MODELS = {
    model.name: model
    for model in (
        ModelSpec("linear", "linear regression without intercept, one output", feedforward.linear),
        ModelSpec("logistic", "multinomial logistic (softmax) regression", feedforward.logistic),
        ModelSpec("mlp", "one hidden ReLU layer (hidden=200): IFCA and FLT on MNIST", feedforward.mlp),
        ModelSpec("cnn-small", "two convolutions, three layers: the CFL notebook's size", convolutional.cnn_small),
        ModelSpec("cnn-cifar", "five-layer CNN (width=32,hidden=128): CFL on CIFAR", convolutional.cnn_cifar),
        ModelSpec("cnn-leaf", "LEAF's CNN (hidden=2048): FEMNIST in FLT, IFCA, FedCUAU", convolutional.cnn_leaf),
        ModelSpec("cnn-flt", "FLT's CNN, 3,459,582 parameters on FEMNIST", convolutional.cnn_flt),
        ModelSpec("cnn-1d", "two convolutions over time (width=16,kernel=7), for signals", convolutional.cnn_1d),
        ModelSpec("autoencoder", "FLT's convolutional autoencoder (code=128,output=linear)", autoencoder.autoencoder),
        ModelSpec("resnet18", "ResNet-18 for 32x32 images (width=64,stride=1): FedCUAU", residual.resnet18),
        ModelSpec("lstm", "two-layer LSTM language model (embedding=128,hidden=256): CFL", recurrent.lstm, "tokens"),
    )
}


def list_models() -> tuple[ModelSpec, ...]:
    """Every named network, from the simplest on."""
    return tuple(_MODELS.values())


def build(
    spec: str | Callable[..., Any],
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """The network that `spec` describes, with initial parameters that are a function of `seed` alone.

    `spec` is a name ("mlp"), a name with options ("mlp:hidden=64"), a user's "package.module:callable" or
    "path/to/file.py:callable", or the callable itself. `input_shape` is the shape of one input without the batch;
    `classes` the number of classes, of tokens for a language model, and 0 or 1 for regression. `dtype`, if given, is
    that of the inputs, and a named network that cannot read it is refused.

    Another seed gives an independent initialisation: k models are k calls with k seeds. torch's global generator
    is left as it was. A user's callable must draw from torch's CPU generator for its draws to be repeated.
    """
    _check_sizes(input_shape, classes)
    if not isinstance(spec, str):
        if isinstance(spec, nn.Module):
            raise ConfigError(
                "a model to build must be a callable that returns one; for a ready module use reinitialise"
            )
        label = getattr(spec, "__qualname__", type(spec).__name__)
        with _seeded(seed):
            return custom.call(spec, label, input_shape, classes)
    name, colon, rest = spec.partition(":")
    if name in _MODELS:
        model = _MODELS[name]
        _check_dtype(model, dtype)
        options = parse_model_options(name, rest, model.build) if colon else {}
        with _seeded(seed), users_code(f"model {spec!r}", ConfigError):
            return model.build(input_shape, classes, **options)
    # "cnn-smal:width=3" is a misspelt name, not a module.
    if not colon or "=" in rest:
        raise ConfigError(f"there is no model {name!r}; {did_you_mean(name, _MODELS)}")
    with _seeded(seed):
        return custom.call(custom.find_callable(spec), spec, input_shape, classes)


def reinitialise(module: nn.Module, seed: int) -> nn.Module:
    """A copy of a ready `module` with every parameter drawn again by its layer's own `reset_parameters`.

    This is for a module that came as an object; where there is a callable, `build` with another seed also keeps an
    initialisation of the user's own making.
    """
    fresh = copy.deepcopy(module)
    with _seeded(seed):
        for name, layer in fresh.named_modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
            elif next(layer.parameters(recurse=False), None) is not None:
                where = f"layer {name!r}" if name else "the module itself"
                raise ConfigError(
                    f"{where} ({type(layer).__name__}) cannot be initialised again; give it a reset_parameters method, "
                    f"or pass a callable that builds the model"
                )
    return fresh


def initialiser(
    model: str | Callable[..., Any] | nn.Module, input_shape: tuple[int, ...], classes: int, dtype: torch.dtype
) -> Callable[[int], nn.Module]:
    """A function from a seed to a freshly initialised module: `reinitialise` of a ready one, `build` of others."""
    if isinstance(model, nn.Module):
        return partial(reinitialise, model)
    return lambda seed: build(model, input_shape, classes, seed, dtype)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw initial parameters from `seed` inside, and leave torch's global CPU generator as it was outside."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed every GPU, and those are not forked here.
        torch.default_generator.manual_seed(derive(seed, "model"))
        yield


def _check_sizes(input_shape: tuple[int, ...], classes: int) -> None:
    if not input_shape or min(input_shape) < 1:
        raise ConfigError(
            f"one input has shape {tuple(input_shape)}; it needs at least one dimension, all of them 1 or more"
        )
    if classes < 0:
        raise ConfigError(f"the number of classes is {classes}; it must be 0 or more (0 or 1 for regression)")


def _check_dtype(model: ModelSpec, dtype: torch.dtype | None) -> None:
    if dtype is None:
        return
    if model.takes == "tokens" and dtype != torch.int64:
        raise ConfigError(f"model {model.name!r} takes tokens (int64), but the inputs are {dtype}; use 'mlp' or a CNN")
    if model.takes == "numbers" and not dtype.is_floating_point:
        raise ConfigError(
            f"model {model.name!r} takes floating-point inputs, but they are {dtype}; use 'lstm' for text, or convert "
            f"the inputs to float32"
        )
