"""The choice of a trainer: batched for feed-forward networks, the loop for all others."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from coterie.federation import Split
from coterie.trainers.base import Trainer
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.devices import CPU, require_bfloat16
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss
from coterie.trainers.recognition import recognise, suits

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
Precision = Literal["float32", "float64", "bf16"]


def make_trainer(
    module: nn.Module, loss: Loss, sample: Split, precision: str, gram_bytes: int, device: torch.device = CPU
) -> Trainer:
    """The fastest trainer for the module on data that looks like `sample`."""
    dtype = PRECISIONS[precision]
    plan = recognise(module, loss)
    if plan is not None and suits(plan, sample):
        return BatchedTrainer(module, plan, dtype, gram_bytes=gram_bytes, device=device)
    if precision == "bf16" and device == CPU:
        require_bfloat16()
    return LoopTrainer(module, loss, dtype, bf16=precision == "bf16", device=device)
