"""Several models as one: the weighted mean of their predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid


class Ensemble(nn.Module):
    """Averages the predictions of several models, each with its weight; by default all weigh the same.

    For a classification these are class probabilities; the result is a logarithm, so it can stand for logits, or a
    logit where the models have one. For a regression they are the outputs themselves.
    """

    weights: Tensor

    def __init__(
        self, members: Sequence[nn.Module], weights: Sequence[float] | None = None, *, regression: bool = False
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        shares = [1 / len(members)] * len(members) if weights is None else list(weights)
        self.register_buffer("weights", torch.tensor(shares, dtype=torch.float64))
        self.regression = regression

    def forward(self, x: Tensor) -> Tensor:
        """The mean output `(n, outputs)`, or the log of the mean probability `(n, classes)`."""
        return mix_outputs(torch.stack([member(x) for member in self.members]), self.weights, self.regression)


def mix_outputs(outputs: Tensor, weights: Tensor, regression: bool) -> Tensor:
    """What a mixture says, from what its models say: outputs `(k, n[, ..., outputs])`, weights `(k,)` that sum to 1.

    Outputs themselves are averaged in a regression; otherwise they are logits, the probabilities are averaged, and the
    result is again logits `(n, ..., outputs)`: of one output the logit, of several the logarithms of the mean.
    """
    if outputs.ndim == 2:  # one number per sample, (k, n)
        return mix_outputs(outputs[..., None], weights, regression)[..., 0]
    shares = weights.to(outputs).view(-1, *[1] * (outputs.ndim - 1))
    if regression:
        return (outputs * shares).sum(0)
    if outputs.shape[-1] == 1:  # one logit for two classes
        yes, no = (torch.logsumexp(logsigmoid(sign * outputs) + shares.log(), dim=0) for sign in (1, -1))
        return yes - no
    return torch.logsumexp(torch.log_softmax(outputs, dim=-1) + shares.log(), dim=0)
