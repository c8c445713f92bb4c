"""Finds out whether a module computes a feed-forward network, which the batched kernels can do for many clients.

However the module is written, a trace of it (torch.fx) shows its operations. It is recognised if they are one chain of
linear layers and activations in training and in evaluation, and if its code is pure, so that every call is that chain.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.trainers.kernels import Plan, Stage
from coterie.trainers.losses import Loss, binary_loss, softmax_loss
from coterie.trainers.pure_code import Unrecognised, check_pure, hooked
from coterie.trainers.step_losses import ELEMENTWISE

FUNCTIONS: dict[Callable[..., Any], str] = {
    F.linear: "linear",
    F.relu: "relu",
    torch.relu: "relu",
    F.tanh: "tanh",
    torch.tanh: "tanh",
    torch.flatten: "flatten",
    torch.reshape: "reshape",
    torch.Tensor.view: "view",
    F.dropout: "dropout",
    F.log_softmax: "log_softmax",
    torch.log_softmax: "log_softmax",
}
"""Operations of torch that a plan can hold, by their names, which are also those of a tensor's methods."""
LAYERS: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.Linear: ("linear", ("weight", "bias")),
    nn.ReLU: ("relu", ()),
    nn.Tanh: ("tanh", ()),
    nn.Flatten: ("flatten", ("start_dim", "end_dim")),
    nn.Identity: ("identity", ()),
    nn.Dropout: ("dropout", ("p", "training")),
    nn.LogSoftmax: ("log_softmax", ("dim",)),
}
"""Layers of torch that are such an operation, and the attributes that are its arguments."""


def plan_of(module: nn.Module, loss: Loss) -> Plan:
    """The plan of a feed-forward module; raises `Unrecognised`, which says why there is none."""
    if loss is not softmax_loss and loss not in ELEMENTWISE:
        raise Unrecognised("the loss is your own")
    if not all(parameter.requires_grad for parameter in module.parameters()):
        raise Unrecognised("some of its parameters are frozen")
    check_pure(module, FUNCTIONS, set(LAYERS))
    training, evaluation = (_traced_plan(module, loss, mode) for mode in (True, False))
    if training != evaluation:
        raise Unrecognised("it computes something else in training than in evaluation")
    return training


def _traced_plan(module: nn.Module, loss: Loss, training: bool) -> Plan:
    """The plan of one mode, from a trace."""
    layout = Layout.of(module)
    with _in_mode(module, training):
        try:
            graph = _Tracer().trace(module)
        except Exception as problem:  # whatever the module's code raises when it is given no numbers
            raise Unrecognised(f"it cannot be traced: {str(problem).partition('.')[0]}") from problem
        chain = _Chain(module, layout)
        for node in graph.nodes:
            chain.add(node)
    if sorted(chain.used) != sorted(layout.names) or not chain.stages:
        raise Unrecognised("its layers are not used exactly once each")
    if chain.normalises and loss is not softmax_loss:
        raise Unrecognised("it ends in log_softmax, and the loss is not cross-entropy")
    return Plan(tuple(chain.stages), loss, chain.flattens, layout.size, chain.normalises)


@contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode of all parts inside, without calling the module's own `train`."""
    before = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in before:
            part.training = training
        yield
    finally:
        for part, mode in before:
            part.training = mode


class _Tracer(fx.Tracer):
    """Traces into everything but the layers that are known; `len` of a traced tensor is its number of rows."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace `root`; while it lasts, `len` in the modules that define its parts accepts a traced tensor."""
        spaces = {id(space): space for part in root.modules() if (space := type(part).forward.__globals__)}
        changed = [s for s in spaces.values() if "len" not in s and not s["__name__"].startswith("torch.")]
        try:
            for space in changed:
                space["len"] = _length
            return super().trace(root, concrete_args)
        finally:
            for space in changed:
                del space["len"]


def _length(value: Any) -> Any:
    if isinstance(value, fx.Proxy):
        return value.tracer.create_proxy("call_function", len, (value,), {})
    return builtins.len(value)


class _Chain:
    """The stages of a trace, taken node by node: each operation must work on the value of the one before."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module = module
        self.tensors = {entry.name: entry for entry in layout.entries}
        self.stages: list[Stage] = []
        self.used: list[str] = []
        self.flattens = self.normalises = False
        self.width: int | None = None
        """Numbers of each sample, where an operation has said it."""
        self.value: fx.Node | None = None
        self.values: set[fx.Node] = set()
        self.rows: set[fx.Node] = set()
        """Nodes that are the number of rows, which no operation changes."""
        self.shapes: set[fx.Node] = set()
        """Nodes that are the shape of a value."""

    def add(self, node: fx.Node) -> None:
        """Take the next node in."""
        if node.op == "placeholder":
            if self.value is not None or str(node.target).startswith("*"):
                raise Unrecognised("its forward takes more than one argument")
        elif node.op == "output":
            if node.args[0] is not self.value:
                raise Unrecognised("it returns something else than the result of its last operation")
            return
        elif node.op == "get_attr" or self._reads_shape(node):
            return
        else:
            self._add_operation(node)
        self.value = node
        self.values.add(node)

    def _reads_shape(self, node: fx.Node) -> bool:
        """Whether a node is a shape or the number of rows, and not a value."""
        if not node.args or not isinstance(node.args[0], fx.Node) or node.kwargs:
            return False
        source, call = node.args[0], (node.target, *node.args[1:])
        if source in self.values and call in ((getattr, "shape"), ("size",)):
            self.shapes.add(node)
        counted = source in self.values and call in ((len,), ("size", 0))
        if counted or (source in self.shapes and call == (operator.getitem, 0)):
            self.rows.add(node)
        return node in self.shapes or node in self.rows

    def _add_operation(self, node: fx.Node) -> None:
        name, args, kwargs = self._operation(node)
        given = args[0] if args else kwargs.pop("input", None)
        if given is not self.value or self.normalises:
            raise Unrecognised(f"its operations are not a chain: {name} takes something else than the value before it")
        try:
            getattr(self, f"_{name}")(*args[1:], **kwargs)
        except TypeError as problem:
            raise Unrecognised(f"it calls {name} with arguments that are not known") from problem

    def _operation(self, node: fx.Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The name of a node's operation, and its arguments; a parameter is given by its name."""
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            name, attributes = LAYERS[type(layer)]
            own = {attribute: getattr(layer, attribute) for attribute in attributes}
            if name == "linear":
                own = {key: None if tensor is None else f"{node.target}.{key}" for key, tensor in own.items()}
            return name, node.args, {**node.kwargs, **own}
        name = FUNCTIONS.get(node.target, "") if callable(node.target) else node.target
        if name not in FUNCTIONS.values():
            raise Unrecognised(f"it calls {getattr(node.target, '__name__', node.target)}")
        return name, tuple(map(_named, node.args)), {key: _named(value) for key, value in node.kwargs.items()}

    def _linear(self, weight: str, bias: str | None = None) -> None:
        names = [weight] if bias is None else [weight, bias]
        if not all(name in self.tensors for name in names) or len(self.tensors[weight].shape) != 2:
            raise Unrecognised("a linear layer shares its weights, or they are no parameters")
        outputs, inputs = self.tensors[weight].shape
        if self.width not in (None, inputs):
            raise Unrecognised("its layers do not fit each other")
        places = [slice(self.tensors[name].start, self.tensors[name].stop) for name in names]
        self.stages.append(Stage(inputs, outputs, places[0], places[1] if bias is not None else None, ""))
        self.used += names
        self.width = outputs

    def _activation(self, name: str) -> None:
        if not self.stages or self.stages[-1].activation:
            raise Unrecognised(f"its {name} does not follow a linear layer")
        self.stages[-1] = self.stages[-1]._replace(activation=name)

    def _relu(self, inplace: bool = False) -> None:
        self._activation("relu")

    def _tanh(self) -> None:
        self._activation("tanh")

    def _identity(self) -> None:
        pass

    def _dropout(self, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
        if p and training:
            raise Unrecognised("it has dropout")

    def _flatten(self, start_dim: int = 0, end_dim: int = -1) -> None:
        if (start_dim, end_dim) != (1, -1):
            raise Unrecognised(f"it flattens dimensions {start_dim} to {end_dim}, and not each sample")
        self.flattens = self.flattens or not self.stages

    def _reshape(self, *shape: Any) -> None:
        """To (samples, -1), (samples, numbers) or (-1, numbers)."""
        rows, *rest = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        width = rest[0] if len(rest) == 1 and isinstance(rest[0], int) else 0
        if not (rows in self.rows and width == -1):
            if width <= 0 or not (rows in self.rows or rows == -1) or self.width not in (None, width):
                raise Unrecognised("it reshapes its values to something else than (samples, numbers)")
            self.width = width
        self._flatten(1)

    _view = _reshape

    def _log_softmax(self, dim: int | None = None, **more: Any) -> None:
        if dim not in (1, -1) or more.get("dtype") is not None or not self.stages:
            raise Unrecognised("its log_softmax is not over the outputs")
        self.normalises = True


def _named(argument: Any) -> Any:
    return argument.target if isinstance(argument, fx.Node) and argument.op == "get_attr" else argument


def sequentials(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """The nested Sequentials of a module that is one: the prefix of their names, and their parts, to be replaced.

    Only there does nobody but torch's own code use the parts, each by calling it once for each place it stands in.
    """
    if type(module) is nn.Sequential and not hooked(module):
        yield prefix, module._modules
        for name, child in list(module._modules.items()):
            yield from sequentials(child, f"{prefix}{name}.")


def suits(plan: Plan, data: Split) -> bool:
    """Whether the plan can work on such data: real inputs of the right width and one target for each output."""
    inputs = data.x.shape[1:].numel() if plan.flattens and data.x.ndim > 1 else data.x.shape[-1]
    shaped = data.x.ndim == 2 or (plan.flattens and data.x.ndim > 2)
    return data.x.is_floating_point() and shaped and inputs == plan.stages[0].inputs and _targets_suit(plan, data.y)


def _targets_suit(plan: Plan, y: Tensor) -> bool:
    if plan.loss is softmax_loss:
        return y.ndim == 1 and not y.is_floating_point()
    real = y.is_floating_point() or plan.loss is binary_loss
    return real and y.shape[1:].numel() == plan.stages[-1].outputs
