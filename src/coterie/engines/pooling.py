"""ReLU after max-pooling instead of before it: the same numbers from a quarter of the work.

The largest of some numbers, cut off at zero, is the largest of the numbers cut off at zero. The gradient is the same
too, to the bit: it goes to the first largest number of a window if that is above zero, and nowhere otherwise.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from coterie.engines.recognition import hooked, sequentials


def pool_before_relu(module: nn.Module) -> None:
    """Exchange every ReLU with the MaxPool2d that follows it, in place, in nested Sequentials."""
    for _, parts in sequentials(module):
        for first, second in pairwise(list(parts)):
            relu, pool = parts[first], parts[second]
            if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not (hooked(relu) or hooked(pool)):
                parts[first], parts[second] = pool, relu
