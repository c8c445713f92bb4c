"""Linear regression, softmax regression and the one-hidden-layer perceptron of IFCA and FLT.

All are plain `nn.Sequential`s of Flatten, Linear and ReLU, so that an engine can recognise one by looking at it.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from coterie.errors import ConfigError
from coterie.models.requirements import at_least_one, outputs


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Linear regression without intercept, y = <x, theta>: (n, *input_shape) -> (n, 1)."""
    if classes > 1:
        raise ConfigError(f"model 'linear' is a regression, but the data has {classes} classes; use 'logistic'")
    head = nn.Linear(math.prod(input_shape), 1, bias=False)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Multinomial logistic regression: (n, *input_shape) -> logits (n, classes)."""
    head = nn.Linear(math.prod(input_shape), outputs(classes))
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 200) -> nn.Sequential:
    """One hidden ReLU layer (IFCA section 6; FLT C.3 without its dropout): (n, *input_shape) -> logits (n, classes)."""
    at_least_one("mlp", hidden=hidden)
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(input_shape), hidden),
            relu=nn.ReLU(),
            head=nn.Linear(hidden, outputs(classes)),
        )
    )
