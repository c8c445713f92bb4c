"""Losses and accuracy by hand."""

from __future__ import annotations

import math

import torch

from coterie.trainers.losses import correct, default_loss


def test_cross_entropy_by_hand_also_for_sequences():
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    expected = (-math.log(0.75) - math.log(0.5)) / 2
    loss = default_loss(regression=False)
    assert math.isclose(loss(logits, torch.tensor([1, 0])).item(), expected, rel_tol=1e-6)
    assert math.isclose(loss(logits[None], torch.tensor([[1, 0]])).item(), expected, rel_tol=1e-6)


def test_squared_error_ignores_a_trailing_dimension():
    assert default_loss(regression=True)(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])).item() == 2.5


def test_accuracy_by_hand():
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1, 1])
    assert correct(logits, labels).item() == 0.75
    assert correct(logits, labels[:, None]).item() == 0.75  # labels in a column are not compared all with all
    assert correct(logits[None], labels[None]).item() == 0.75
    assert math.isnan(correct(logits, labels.float()).item())
