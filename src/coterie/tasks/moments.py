"""What ridge regression needs of a client: moments of features of its inputs and of its targets, part by part.

From these every way of sharing models can be solved, and judged on the parts that were not used, without asking again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.randomness import torch_generator
from coterie.tasks.base import Array, ClientContext, Number, Reply, ReplySchema, Task
from coterie.trainers.base import Trainer


@dataclass(frozen=True)
class InputMoments(Task):
    """The mean and the mean square of every input over the training samples, and how many classes there are.

    `classes` is the largest label and one, and 0 for real targets. The numbers are NaN where inputs are no vectors or
    images, or where there is more than one target per sample.
    """

    def schema(self, layout: Layout) -> ReplySchema:
        number = Array((None,), finite=False)
        return ReplySchema(None, {"mean": number, "square": number, "classes": Number(minimum=0)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        x, y = context.client.train.x, context.client.train.y
        if not x.is_floating_point() or y.numel() != len(y) or not len(y):
            unknown = [math.nan]
            return Reply(context.client.id, len(y), values={"mean": unknown, "square": unknown, "classes": 0})
        rows = x.flatten(1).double()
        classes = 0 if y.is_floating_point() else int(y.max()) + 1
        values = {"mean": rows.mean(0).tolist(), "square": rows.square().mean(0).tolist(), "classes": classes}
        return Reply(context.client.id, len(y), values=values)


@dataclass(frozen=True)
class FeatureMoments(Task):
    """Sums of products of random features and targets over the training samples, in `parts` parts, `(parts · w,)`.

    Inputs are shifted by `mean` and divided by `scale`, both `(width,)`, and projected to `features` numbers, with a
    rectifier unless `linear`; linear features of fewer inputs are the inputs. Last comes a constant one: z, of p
    numbers. Targets y are c indicators of classes less their mean, or one real number. Of each part the reply's vector
    holds the upper triangle of Σzzᵀ, Σzyᵀ, Σ‖y‖² and the number of samples. Blocks of samples stay in one part.
    """

    mean: Tensor
    scale: Tensor
    features: int
    linear: bool
    classes: int
    parts: int
    seed: int
    """Of the features, the same for all clients."""
    own_seed: int
    """Of the parts."""

    @property
    def width(self) -> int:
        """How many numbers z has."""
        return 1 + (len(self.mean) if self.linear and len(self.mean) <= self.features else self.features)

    def schema(self, layout: Layout) -> ReplySchema:
        p = self.width
        return ReplySchema(self.parts * (p * (p + 1) // 2 + p * max(1, self.classes) + 2), {"norm": Number()})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        data = context.client.train
        z, y = self._features(data.x), self._targets(data.y)
        of = part_of_samples(data, self.parts, self.own_seed)
        upper = torch.triu_indices(self.width, self.width)
        found = []
        for part in range(self.parts):
            own, wanted = z[of == part], y[of == part]
            gram = (own.T @ own)[upper[0], upper[1]]
            counts = torch.tensor([float(wanted.square().sum()), float(len(own))], dtype=z.dtype)
            found += [gram, (own.T @ wanted).flatten(), counts]
        return Reply(context.client.id, len(data), torch.cat(found).float(), {"norm": 0.0})

    def _features(self, x: Tensor) -> Tensor:
        rows = ((x.flatten(1).double() - self.mean) / self.scale).float()
        generator = torch_generator(self.seed, "features")
        if self.width - 1 != rows.shape[1] or not self.linear:
            rows = rows @ torch.randn(rows.shape[1], self.features, generator=generator)
        if not self.linear:
            rows = torch.relu(rows + torch.randn(self.features, generator=generator) / 2)
        return torch.cat([rows, torch.ones(len(rows), 1)], 1).double()

    def _targets(self, y: Tensor) -> Tensor:
        if not self.classes:
            return y.reshape(-1, 1).double()
        return torch.nn.functional.one_hot(y.reshape(-1).long(), self.classes).double() - 1 / self.classes


def part_of_samples(data: Split, parts: int, seed: int) -> Tensor:
    """The part `(n,)` of every sample: equal parts drawn by the seed, with all samples of a block in one of them."""
    generator = torch_generator(seed, "parts")
    if data.block is None:
        return torch.randperm(len(data), generator=generator) % parts
    names, block = torch.unique(data.block, return_inverse=True)
    return (torch.randperm(len(names), generator=generator) % parts)[block]
