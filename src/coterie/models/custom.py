"""A user's own network or function, found by `package.module:callable` or `path/to/file.py:callable`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from coterie.errors import ConfigError, did_you_mean, users_code

FILE_MODULE = "coterie_model_"
"""How the names of modules begin that were made from a user's file."""


def find_callable(spec: str, kind: str = "model") -> Callable[..., Any]:
    """The callable that `spec` names; its module is imported (the working folder is searched last).

    `kind` is what errors call it.
    """
    what = f"{kind} {spec!r}"
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not place or not name or (place.startswith(".") and not is_file):
        raise ConfigError(f"{what}: write package.module:callable or path/to/file.py:callable")
    module = _from_file(what, Path(place).expanduser()) if is_file else _from_name(what, place)
    found: Callable[..., Any] | None = getattr(module, name, None)
    if callable(found):
        return found
    wrong = "is not callable" if hasattr(module, name) else "is not there"
    public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise ConfigError(f"{what}: {name!r} in {place} {wrong}; {did_you_mean(name, public)}")


def call(maker: Callable[..., Any], label: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The module that `maker` returns, called with those of input_shape and classes that its signature takes."""
    offered: dict[str, Any] = {"input_shape": input_shape, "classes": classes}
    try:
        parameters = inspect.signature(maker).parameters.values()
    except ValueError as error:
        raise ConfigError(f"model {label!r}: its signature cannot be read; wrap it in a Python function") from error
    taken = [key for key in offered if _takes(parameters, key)]
    for parameter in parameters:
        if _required(parameter) and parameter.name not in taken:
            raise ConfigError(
                f"model {label!r} asks for {parameter.name!r}, but only input_shape and classes are given "
                f"(by keyword); give {parameter.name!r} a default"
            )
    with users_code(f"model {label!r}", ConfigError):
        module = maker(**{key: offered[key] for key in taken})
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {label!r} returned a {type(module).__name__}; return a torch.nn.Module")
    return module


def _takes(parameters: Iterable[inspect.Parameter], key: str) -> bool:
    """Whether a signature takes an argument of that name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name == key and p.kind in by_name) for p in parameters)


def _required(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in variadic


def _from_name(what: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what}: module {name!r} cannot be imported ({_one_line(error)}); check its name, or give a file "
            f"as path/to/file.py:callable"
        ) from error
    finally:
        sys.path.remove(here)


def loaded_files() -> list[str]:
    """The users' files that were loaded in this process."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(FILE_MODULE)]


def load_files(files: Sequence[str]) -> None:
    """Load users' files again, in another process, so that what they define can be found by name."""
    for file in files:
        _from_file(f"model {file!r}", Path(file))


def _from_file(what: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {path}; check the path")
    # Loaded once as long as it does not change: pickle takes a class only if it is the one its module holds.
    digest = hashlib.blake2b(str(path.resolve()).encode() + b"\0" + path.read_bytes(), digest_size=6).hexdigest()
    name = f"{FILE_MODULE}{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ConfigError(f"{what}: {path} cannot be read as a Python file; check the path")
    module = importlib.util.module_from_spec(found)
    # Registered, as dataclasses and pickle in the user's file look their module up by name.
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{what}: {path} cannot be imported ({_one_line(error)}); correct the file") from error
    return module


def _one_line(error: BaseException) -> str:
    kind = "" if isinstance(error, ImportError | SyntaxError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())
