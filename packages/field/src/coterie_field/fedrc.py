"""FedRC (Guo, Tang, Lin 2024): FedEM that parts clients by concept and not by how often they hold a label.

A sample's likelihood under model m is exp(−loss) / C(y, m), where C(y, m) is the share of its label y among all
samples that model m has so far. Clients that hold other labels in other proportions then share a model, because a
label that is frequent there is no argument for the model; clients that give the same input another label do not.

Every client reports how many of its samples of each label each model has: M × classes numbers, which sum to its label
counts. The shares of a round are those reported so far; before the first they are equal. As in the authors' code, a
count below 10⁻⁸ is taken for 10⁻⁸, and predictions are by the mixture π_i without C.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from coterie.methods import method
from coterie.methods.published import Paper
from coterie_field.fedem import FedEM, State
from coterie_field.mixture_tasks import SMALLEST
from coterie_field.papers import PAPERS


@method("fedrc")
class FedRC(FedEM):
    """FedEM with likelihoods divided by the labels' frequencies: clusters by concept, robust to label skew."""

    paper: ClassVar[Paper] = PAPERS["fedrc"]

    def labels(self, state: State) -> Tensor:
        """The share of each label among the samples of each model so far `(M, classes)`."""
        if not state.counts:
            return torch.ones(self.components, 1)
        classes = max(counts.shape[1] for counts in state.counts.values())
        total = torch.zeros(self.components, classes, dtype=torch.float64)
        for counts in state.counts.values():
            total[:, : counts.shape[1]] += counts
        total.clamp_min_(SMALLEST)
        return (total / total.sum(1, keepdim=True)).float()
