"""What ridge regression needs of a client: moments of features of its inputs and of its targets, part by part.

From these every way of sharing models can be solved, and judged on the parts that were not used, without asking again.
Moments are sent as their triangular factor, which has no more rows than there are samples, and says as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    """Sums of products of random features and targets over the training samples, in `parts` parts.

    Inputs are shifted by `mean` and divided by `scale`, both `(width,)`, and projected to `features` numbers, with a
    rectifier unless `linear`; linear features of fewer inputs are the inputs. Last comes a constant one: z, of p
    numbers. Targets y are c indicators of classes less their mean, or one real number. Of each part the reply holds the
    triangular R and B = Qᵀy of Z = QR in `factors`, which give Σzzᵀ = RᵀR and Σzyᵀ = RᵀB, and Σ‖y‖² and the number of
    samples in `sums`. Blocks of samples stay in one part.
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
        return ReplySchema(None, {"factors": Array((self.parts, None)), "sums": Array((self.parts, 2), minimum=0)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        data = context.client.train
        z, y = self._features(data.x), self._targets(data.y)
        of = part_of_samples(data, self.parts, self.own_seed)
        parts = [(z[of == part], y[of == part]) for part in range(self.parts)]
        factors = torch.nn.utils.rnn.pad_sequence([_factor(*part) for part in parts], batch_first=True)
        sums = torch.tensor([[float(own.square().sum()), float(len(own))] for _, own in parts])
        return Reply(context.client.id, len(data), None, {"factors": factors.float(), "sums": sums})

    def _features(self, x: Tensor) -> Tensor:
        rows = (x.flatten(1).float() - self.mean) / self.scale
        if self.width - 1 != rows.shape[1] or not self.linear:
            matrix, shift = _projection(rows.shape[1], self.features, self.seed)
            rows = rows @ matrix
            if not self.linear:
                rows = torch.relu(rows + shift)
        return torch.cat([rows, torch.ones(len(rows), 1)], 1).double()

    def _targets(self, y: Tensor) -> Tensor:
        if not self.classes:
            return y.reshape(-1, 1).double()
        return torch.nn.functional.one_hot(y.reshape(-1).long(), self.classes).double() - 1 / self.classes


@lru_cache(maxsize=1)
def _projection(inputs: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """What makes features of inputs, `(inputs, features)` and `(features,)`: the same for all clients of a run."""
    generator = torch_generator(seed, "features")
    return torch.randn(inputs, features, generator=generator), torch.randn(features, generator=generator) / 2


def _factor(z: Tensor, y: Tensor) -> Tensor:
    """R and Qᵀy of z = QR in one row, without the zeros of R."""
    q, r = torch.linalg.qr(z)
    return torch.cat([r.flatten()[_upper(*r.shape)], (q.T @ y).flatten()])


@lru_cache(maxsize=64)
def _upper(rows: int, p: int) -> Tensor:
    """Where the numbers of a flattened triangular factor are that are not zero."""
    upper = torch.triu_indices(rows, p)
    return upper[0] * p + upper[1]


def numbers_in(samples: int, p: int, c: int) -> int:
    """How many numbers R and B of a part with so many samples are."""
    rows = min(samples, p)
    return rows * p - rows * (rows - 1) // 2 + rows * c


def factors_of(factors: Tensor, counts: Sequence[int], p: int, c: int) -> tuple[Tensor, Tensor]:
    """R `(parts, rows, p)` and B `(parts, rows, c)` of a reply's factors, with rows of zeros in parts that have fewer.

    Args:
        factors: what FeatureMoments sent.
        counts: the samples of each part.
        p: the features.
        c: the targets.
    """
    rows = [min(count, p) for count in counts]
    r, b = factors.new_zeros(len(rows), max(rows), p), factors.new_zeros(len(rows), max(rows), c)
    for part, (sent, own) in enumerate(zip(factors, rows, strict=True)):
        upper = _upper(own, p)
        used = len(upper)
        r[part, :own].view(-1)[upper] = sent[:used]
        b[part, :own] = sent[used : used + own * c].view(own, c)
    return r, b


def part_of_samples(data: Split, parts: int, seed: int) -> Tensor:
    """The part `(n,)` of every sample: equal parts drawn by the seed, with all samples of a block in one of them."""
    generator = torch_generator(seed, "parts")
    if data.block is None:
        return torch.randperm(len(data), generator=generator) % parts
    names, block = torch.unique(data.block, return_inverse=True)
    return (torch.randperm(len(names), generator=generator) % parts)[block]
