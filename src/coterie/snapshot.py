"""Save and load nested states (dataclasses, lists, dicts, tensors, numbers, text) as one safetensors file, no pickle.

Only classes marked with `@saved` can come back from a file, so a file cannot make the program run anything.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.errors import RunError

C = TypeVar("C", bound=type)
_CLASSES: dict[str, type] = {}
_KEY = "coterie"


def saved(cls: C) -> C:
    """Class decorator: instances of this dataclass can be part of a snapshot."""
    _CLASSES[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, even after a crash, sees either the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_snapshot(state: Any, path: Path) -> None:
    """Write a state to `path` atomically."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, tensors), sort_keys=True)
    # The format allows no empty file; one constant tensor keeps states without tensors possible.
    tensors.setdefault("_", torch.zeros(1))
    write_atomically(path, save(tensors, metadata={_KEY: tree}))


def load_snapshot(path: Path) -> Any:
    """Read a state written by `save_snapshot`; a damaged or foreign file is a RunError that names it."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies stand where torch puts its own tensors; at other addresses a product may differ in its last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        return _unpack(json.loads(metadata[_KEY]), tensors)
    except FileNotFoundError as problem:
        raise RunError(f"{path}: no such file") from problem
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as problem:
        raise RunError(f"{path}: not a snapshot of this program, or damaged ({problem})") from problem


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        name = f"t{len(tensors)}"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(value.copy(order="C"))
        # Safetensors refuses views of one storage; a snapshot owns its numbers.
        tensors[name] = tensor.detach().clone().contiguous()
        return {"tensor": name, "numpy": isinstance(value, np.ndarray)}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(item, tensors) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name in _CLASSES and dataclasses.is_dataclass(value):
        fields = {f.name: _pack(getattr(value, f.name), tensors) for f in dataclasses.fields(value)}
        return {"class": name, "fields": fields}
    raise TypeError(f"a snapshot cannot hold {name}: mark the dataclass with @saved")


def _unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]]
        return tensor.numpy() if tree["numpy"] else tensor
    if "list" in tree:
        return [_unpack(item, tensors) for item in tree["list"]]
    if "tuple" in tree:
        return tuple(_unpack(item, tensors) for item in tree["tuple"])
    if "dict" in tree:
        return {_unpack(k, tensors): _unpack(v, tensors) for k, v in tree["dict"]}
    cls = _CLASSES.get(tree["class"])
    if cls is None:
        raise ValueError(f"unknown class {tree['class']}")
    return cls(**{name: _unpack(value, tensors) for name, value in tree["fields"].items()})
