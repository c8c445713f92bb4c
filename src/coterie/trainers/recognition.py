"""Finds out by looking at a module whether it is a feed-forward network that the batched kernels can compute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import nn

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.trainers.kernels import Plan, Stage
from coterie.trainers.losses import Loss, absolute_loss, binary_loss, huber_loss, softmax_loss, squared_loss

LOSSES: dict[Loss, str] = {
    softmax_loss: "softmax",
    squared_loss: "squared",
    absolute_loss: "absolute",
    huber_loss: "huber",
    binary_loss: "binary",
}
LOSS_OF = {name: loss for loss, name in LOSSES.items()}
ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def recognise(module: nn.Module, loss: Loss) -> Plan | None:
    """The plan of a feed-forward module, or None where only autograd knows what it does."""
    parts = _parts(module)
    if parts is None or loss not in LOSSES:
        return None
    layout = Layout.of(module)
    places = {entry.name: slice(entry.start, entry.stop) for entry in layout.entries}
    if not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    stages: list[Stage] = []
    flattens = False
    for name, part in parts:
        if type(part) is nn.Linear:
            bias = places.get(f"{name}bias")
            if f"{name}weight" not in places or (part.bias is not None and bias is None):
                return None  # a tensor that an earlier layer holds too
            stages.append(Stage(part.in_features, part.out_features, places[f"{name}weight"], bias, ""))
        elif type(part) in ACTIVATIONS:
            if not stages or stages[-1].activation:
                return None
            stages[-1] = stages[-1]._replace(activation=ACTIVATIONS[type(part)])
        elif type(part) is nn.Flatten:
            if (part.start_dim, part.end_dim) != (1, -1):
                return None
            flattens = flattens or not stages
        elif type(part) is not nn.Identity and not (type(part) is nn.Dropout and part.p == 0):
            return None
    fits = all(a.outputs == b.inputs for a, b in pairwise(stages))
    covered = sum(s.weight.stop - s.weight.start + (s.bias.stop - s.bias.start if s.bias else 0) for s in stages)
    if not stages or not fits or covered != layout.size:
        return None
    return Plan(tuple(stages), LOSSES[loss], flattens, layout.size)


def _parts(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]] | None:
    """The modules of nested Sequentials in order, with the prefixes of their parameters; None if any has hooks."""
    if type(module) is not nn.Sequential:
        return None if prefix == "" or hooked(module) else [(prefix, module)]
    if hooked(module):
        return None
    found: list[tuple[str, nn.Module]] = []
    for name, child in module._modules.items():
        inner = _parts(child, f"{prefix}{name}.") if child is not None else None
        if inner is None:
            return None
        found += inner
    return found


def sequentials(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """The nested Sequentials of a module that is one: the prefix of their names, and their parts, to be replaced.

    Only there does nobody but torch's own code use the parts, each by calling it once for each place it stands in.
    """
    if type(module) is nn.Sequential and not hooked(module):
        yield prefix, module._modules
        for name, child in list(module._modules.items()):
            yield from sequentials(child, f"{prefix}{name}.")


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens to the module, so that it must be called and nothing else in its place."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def suits(plan: Plan, data: Split) -> bool:
    """Whether the plan can work on such data: real inputs of the right width and one target for each output."""
    inputs = data.x.shape[1:].numel() if plan.flattens and data.x.ndim > 1 else data.x.shape[-1]
    shaped = data.x.ndim == 2 or (plan.flattens and data.x.ndim > 2)
    outputs = plan.stages[-1].outputs
    if plan.loss == "softmax":
        matching = data.y.ndim == 1 and not data.y.is_floating_point()
    else:
        real = data.y.is_floating_point() or plan.loss == "binary"
        matching = real and data.y.shape[1:].numel() == outputs
    return data.x.is_floating_point() and shaped and inputs == plan.stages[0].inputs and matching
