"""Several models as one: the average of their predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Averages the predictions of several models.

    For a classification these are class probabilities; the result is a logarithm, so it can stand for logits, or a
    logit where the models have one. For a regression they are the outputs themselves.
    """

    def __init__(self, members: Sequence[nn.Module], *, regression: bool = False) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.regression = regression

    def forward(self, x: Tensor) -> Tensor:
        """The mean output `(n, outputs)`, or the log of the mean probability `(n, classes)`."""
        outputs = torch.stack([member(x) for member in self.members])
        if self.regression:
            return outputs.mean(0)
        if outputs.shape[-1] == 1:  # one logit for two classes
            return torch.logit(torch.sigmoid(outputs).mean(0))
        logs = torch.log_softmax(outputs, dim=-1)
        return torch.logsumexp(logs, dim=0) - torch.log(torch.tensor(float(len(self.members))))
