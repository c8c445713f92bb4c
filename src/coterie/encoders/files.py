"""Encoders on disk: a safetensors file with named tensors and the options of the architecture, no pickle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.encoders.encoder import Encoder, conv_layout
from coterie.errors import ConfigError
from coterie.snapshot import write_atomically

_KEY = "coterie-encoder"
SHIPPED = {"default": "digits-conv.safetensors", "pca": "digits-pca.safetensors"}
"""Encoders that come with the package, both made of scikit-learn's 8×8 digits."""


def save_encoder(encoder: Encoder, path: Path, source: str = "") -> None:
    """Write the encoder to `path` atomically; `source` says what it was trained on."""
    about = {"kind": encoder.kind, "shape": list(encoder.shape), "code": encoder.code, "source": source}
    write_atomically(path, save(_named(encoder, encoder.weights), metadata={_KEY: json.dumps(about)}))


def load_encoder(name: str | Path) -> Encoder:
    """The encoder in a file, or one of those that come with the package: `default`, `pca`."""
    path = Path(__file__).with_name(SHIPPED[name]) if isinstance(name, str) and name in SHIPPED else Path(name)
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        kind, shape, code = about["kind"], tuple(about["shape"]), int(about["code"])
        if kind not in ("conv", "pca"):
            raise ValueError(f"unknown kind {kind!r}")
        empty = Encoder(kind, shape, code, torch.empty(0))
        return replace(empty, weights=_joined(empty, tensors))
    except FileNotFoundError as problem:
        raise ConfigError(
            f"encoder {str(name)!r}: no such file: give {', '.join(map(repr, SHIPPED))}, or make one with "
            "'coterie encoder train'"
        ) from problem
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OSError) as problem:
        raise ConfigError(
            f"encoder {str(name)!r}: not an encoder's file, or damaged ({problem}): make one with "
            "'coterie encoder train'"
        ) from problem


def _named(encoder: Encoder, weights: Tensor) -> dict[str, Tensor]:
    if encoder.kind == "conv":
        return {k: v.contiguous() for k, v in conv_layout(encoder.shape, encoder.code).unflatten(weights).items()}
    size = weights.numel() // (encoder.code + 1)
    return {"mean": weights[:size].clone(), "axes": weights[size:].view(encoder.code, size).clone()}


def _joined(encoder: Encoder, tensors: dict[str, Tensor]) -> Tensor:
    """The flat vector of named tensors; a missing one is a KeyError, one of another shape a ValueError."""
    if encoder.kind == "pca":
        size = torch.Size(encoder.shape).numel()
        expected = {"mean": (size,), "axes": (encoder.code, size)}
    else:
        expected = {e.name: e.shape for e in conv_layout(encoder.shape, encoder.code).entries}
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    return torch.cat([tensors[name].flatten() for name in expected])
