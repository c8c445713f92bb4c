"""The choice of a trainer: batched for feed-forward networks, the loop for all others."""

from __future__ import annotations

import torch
from torch import nn

from coterie.federation import Split
from coterie.trainers.base import Trainer
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.devices import CPU, require_bfloat16
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss
from coterie.trainers.pure_code import Unrecognised
from coterie.trainers.recognition import plan_of, suits

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


def make_trainer(
    module: nn.Module, loss: Loss, sample: Split, precision: str, gram_bytes: int, device: torch.device = CPU
) -> Trainer:
    """The fastest trainer for the module on data that looks like `sample`."""
    dtype = PRECISIONS[precision]
    try:
        plan = plan_of(module, loss)
        if not suits(plan, sample):
            raise Unrecognised("the data has another shape or type than its layers take")
    except Unrecognised as why:
        if precision == "bf16" and device == CPU:
            require_bfloat16()
        loop = LoopTrainer(module, loss, dtype, bf16=precision == "bf16", device=device, sample=sample)
        loop.description = f"one client after another, as the model is not a chain of Linear, ReLU and Tanh: {why}"
        return loop
    trainer = BatchedTrainer(module, plan, dtype, gram_bytes=gram_bytes, device=device)
    trainer.description = "many clients in one product"
    return trainer
