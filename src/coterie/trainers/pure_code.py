"""Whether the Python code of a module depends on its input, its parameters and constants alone.

A trace sees the operations of one call. It is what every call computes only if the code around them has no state, no
randomness and no branches on what a trace cannot show. So the code is read before it is traced: names that are not
known to be harmless, assignments to anything but local variables, `with` and `try` make the module one for the loop.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_state

from coterie.errors import CoterieError

MODULES = ("torch", "torch.nn", "torch.nn.functional")
BUILTINS = {"len", "range", "enumerate", "zip", "reversed", "super", "list", "tuple"}
READERS = {"nn", "functional", "Tensor", "size", "shape", "children", "values", "items", "forward", "training"}
"""Attributes that read shapes, submodules and the mode."""
EFFECTS = {
    *("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "IMPORT_NAME"),
    *("DELETE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_SUBSCR", "DELETE_DEREF"),
    *("BEFORE_WITH", "SETUP_WITH", "LOAD_SPECIAL", "PUSH_EXC_INFO", "SETUP_FINALLY", "YIELD_VALUE", "RETURN_GENERATOR"),
}
"""Bytecode that changes state, enters a context, or catches an error."""
CONSTANTS = (bool, int, float, str, type(None))


class Unrecognised(CoterieError):
    """Why a module is left to the loop."""


def hooked(module: nn.Module) -> bool:
    """Whether the module has hooks, so that it must be called and nothing else in its place."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def check_pure(module: nn.Module, functions: dict[Callable[..., Any], str], layers: set[type[nn.Module]]) -> None:
    """Raise `Unrecognised` unless the code of the module and its parts is pure.

    `functions` are torch's operations that the code may name, by their names; `layers` are torch's layers that are
    known, so that their code needs no reading.
    """
    if module_state._has_any_global_hook():
        raise Unrecognised("torch has hooks on all modules")
    parts = [part for part in module.modules() if type(part) not in (nn.ModuleList, nn.ModuleDict)]
    for part in parts:
        kind = type(part)
        if hooked(part) or "forward" in vars(part):
            raise Unrecognised(f"its {kind.__name__} has hooks or a forward of its own")
        if _of_torch(kind) and kind not in layers and kind is not nn.Sequential:
            raise Unrecognised(f"it has a {kind.__name__}")
    _Reader(list(module.modules()), functions).read([part for part in parts if type(part) not in layers])


def _of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.modules.")


class _Reader:
    """Reads the code of a module's parts; attributes are judged by their name, whichever part has them."""

    def __init__(self, parts: list[nn.Module], functions: dict[Callable[..., Any], str]) -> None:
        self.functions = functions
        self.seen: set[CodeType] = set()
        self.methods: dict[str, list[FunctionType]] = {}
        self.known = {*READERS, *functions.values()}
        self.doubtful: set[str] = set()
        for part in parts:
            self._note({**vars(part), **part._parameters, **part._modules})
            for kind in type(part).__mro__:
                if not _of_torch(kind) and kind.__module__ not in ("builtins", "typing", "abc"):
                    self._note_class(kind)

    def _note(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            (self.known if self._harmless(value) else self.doubtful).add(name)

    def _note_class(self, kind: type) -> None:
        for name, value in vars(kind).items():
            dunder = name.startswith("__") and name.endswith("__")
            if not isinstance(value, FunctionType):
                if not dunder:
                    self._note({name: value})
            elif name == "forward" or not (dunder or hasattr(nn.Module, name)):
                self.methods.setdefault(name, []).append(value)
            elif name not in ("__init__", "__repr__", "extra_repr"):
                raise Unrecognised(f"{kind.__name__} defines {name}")

    def _harmless(self, value: object) -> bool:
        if isinstance(value, tuple):
            return all(isinstance(item, CONSTANTS) for item in value)
        if isinstance(value, ModuleType):
            return value.__name__ in MODULES
        known = isinstance(value, (*CONSTANTS, nn.Module)) or type(value) is nn.Parameter or value is torch.Tensor
        return known or any(value is function for function in self.functions)

    def read(self, parts: list[nn.Module]) -> None:
        """Read the forward of every part, and what it calls."""
        for part in parts:
            forward: object = type(part).forward
            if not isinstance(forward, FunctionType):
                raise Unrecognised(f"the forward of {type(part).__name__} is not written in Python")
            self._read_function(forward)

    def _read_function(self, function: FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        local = {name: cell.cell_contents for name, cell in cells if name != "__class__"}
        for code in _codes(function.__code__):
            if code not in self.seen:
                self.seen.add(code)
                for instruction in dis.get_instructions(code):
                    self._read_instruction(instruction, function, local)

    def _read_instruction(self, instruction: dis.Instruction, function: FunctionType, local: dict[str, Any]) -> None:
        operation, name = instruction.opname, instruction.argval
        in_place = operation == "BINARY_OP" and instruction.argrepr.endswith("=")
        if operation in EFFECTS or in_place:
            raise Unrecognised(f"{function.__qualname__} has side effects, a context or a handler ({operation})")
        if operation == "LOAD_GLOBAL":
            self._read_value(name, function.__globals__.get(name, getattr(builtins, name, None)), function)
        elif operation in ("LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF") and name in local:
            self._read_value(name, local[name], function)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            self._read_attribute(name, function)

    def _read_value(self, name: str, value: object, function: FunctionType) -> None:
        if isinstance(value, FunctionType) and value not in self.functions:
            self._read_function(value)
        elif not self._harmless(value) and not (name in BUILTINS and value is getattr(builtins, name)):
            raise Unrecognised(f"{function.__qualname__} uses {name}")

    def _read_attribute(self, name: str, function: FunctionType) -> None:
        if name in self.doubtful or not (name in self.known or name in self.methods):
            raise Unrecognised(f"{function.__qualname__} uses .{name}")
        for method in self.methods.get(name, []):
            self._read_function(method)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the comprehensions and lambdas in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
