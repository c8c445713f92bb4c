"""Save and load nested states (dataclasses, lists, dicts, tensors, numbers, text) as one safetensors file, no pickle.

Only classes marked with `@saved` can come back from a file, so a file cannot make the program run anything. Every file
holds a checksum of its content: a single changed bit is found.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, dataclass_transform

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.errors import RunError

C = TypeVar("C", bound=type)
_CLASSES: dict[str, type] = {}
_FILE = "coterie"
_KEY = "state"
_CHECKSUM = "checksum"
_IDENTITY = "identity"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def saved(cls: C) -> C:
    """Class decorator: a frozen dataclass whose instances can be part of a snapshot.

    A class that is a dataclass already stays as it is.

    Example:
        >>> import torch
        >>> from coterie.snapshot import saved
        >>> @saved
        ... class State:
        ...     models: torch.Tensor
        ...     cluster_of: dict[str, int]
        >>> State(torch.zeros(2, 3), {"ann": 0, "bob": 1}).cluster_of["bob"]
        1
    """
    if "__dataclass_fields__" not in vars(cls):
        dataclasses.dataclass(frozen=True)(cls)  # changes the class in place
    _CLASSES[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], None], previous: Path | None = None) -> None:
    """Write a file so that a reader, even after a crash, sees either the old content or the new, never a part.

    The content is given, or a function that writes it. With `previous`, the old file is kept under that name; a crash
    in between leaves it there, and none at `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        if path.exists() and not path.is_file():
            raise RunError(f"{path}: not a regular file: choose another name")
        try:
            with open(temporary, "wb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system refuses (a full disk, a folder that is read-only or gone) into an error that names it."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise RunError(
            f"{path}: cannot be written ({reason}): make room or give the rights, then resume the run"
        ) from problem


def save_snapshot(state: Any, path: Path, identity: str = "", previous: Path | None = None) -> None:
    """Write a state to `path` atomically.

    `identity` says what it belongs to. With `previous`, the file that was at `path` is kept there.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, tensors), sort_keys=True)
    # The format allows no empty file; one constant tensor keeps states without tensors possible.
    tensors.setdefault("_", torch.zeros(1))
    save_tensors(tensors, path, {_KEY: tree, _IDENTITY: identity}, previous)


def load_snapshot(path: Path, identity: str = "") -> Any:
    """Read a state written by `save_snapshot`; a damaged or foreign file is a RunError that names it."""
    tensors, about = load_tensors(path)
    if about.get(_IDENTITY, "") != identity:
        raise RunError(f"{path}: belongs to another run: restore the run's own file, or begin again in another folder")
    try:
        # Copies stand where torch puts its own tensors; at other addresses a product may differ in its last bit.
        return _unpack(json.loads(about[_KEY]), {name: tensor.clone() for name, tensor in tensors.items()})
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as problem:
        raise RunError(f"{path}: not a snapshot of this program, or damaged ({problem})") from problem


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None, previous: Path | None = None
) -> None:
    """Write named tensors and text about them as one safetensors file with a checksum, atomically."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    text = dict(about or {})
    # One entry: the format writes several in any order, and equal states shall be equal files.
    stated = json.dumps(text | {_CHECKSUM: _checksum(whole, text)}, sort_keys=True)
    write_atomically(path, save(whole, metadata={_FILE: stated}), previous)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the text that `save_tensors` wrote; RunError for a file that is not whole."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path}: not a regular file: restore it from a copy")
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(json.loads((file.metadata() or {})[_FILE]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as problem:
        raise RunError(f"{path}: no such file") from problem
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, OSError) as problem:
        raise RunError(f"{path}: not a file of this program, or damaged ({problem})") from problem
    if about.pop(_CHECKSUM, None) != _checksum(tensors, about):
        raise RunError(f"{path}: damaged, its content does not fit its checksum: restore it from a copy")
    return tensors, about


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(dict(about), sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}/{tensor.dtype}/{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
    raise TypeError(f"a snapshot cannot hold {name}: mark the class with @saved")


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
