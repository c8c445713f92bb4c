"""PACFL's one-shot task for a client: a few leading directions of its inputs, class by class or of all together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.tasks import Array, ClientContext, Reply, ReplySchema, Task
from coterie.trainers import Trainer


@dataclass(frozen=True)
class Subspaces(Task):
    """Send the `p` leading left singular vectors of the matrix whose columns are the training inputs.

    With `per_class` there is a basis for each class that the client holds, one below the other in `bases`, and `ranks`
    are their sizes; else there is one. A class with fewer than `p` samples has fewer vectors. It shows how many
    classes a client holds and, since a leading vector resembles its class's mean, which.
    """

    p: int
    per_class: bool = True

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(
            None, {"bases": Array((None, None), -1.01, 1.01), "ranks": Array((None,), minimum=1, maximum=self.p)}
        )

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        if trainer.masked:
            raise ConfigError("directions of this client's data would go out in clear: privacy does not cover them")
        x, y = context.client.train.x.flatten(1).double(), context.client.train.y
        labelled = self.per_class and not y.is_floating_point() and y.ndim == 1
        parts = [x[y == label] for label in torch.unique(y)] if labelled else [x]
        bases = [leading_directions(part, self.p) for part in parts]
        ranks = [float(len(basis)) for basis in bases]
        return Reply(context.client.id, len(x), values={"bases": torch.cat(bases).float(), "ranks": ranks})


def leading_directions(samples: Tensor, p: int) -> Tensor:
    """Orthonormal rows `(at most p, inputs)`: the right singular vectors of samples `(n, inputs)`, largest first.

    Directions without any variance about the origin are left out, but one always stays.
    """
    _, values, rows = torch.linalg.svd(samples, full_matrices=False)
    rank = int((values[:p] > 1e-6 * values[0]).sum()) if values[0] > 0 else 1
    found: Tensor = rows[: max(1, rank)]
    return found
