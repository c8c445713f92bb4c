"""Losses and accuracy by hand."""

from __future__ import annotations

import math

import torch

from coterie.trainers.losses import correct, default_loss, output_offset


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


def test_the_offset_of_a_model_that_knows_nothing_is_the_log_of_the_label_counts():
    labels = torch.tensor([0, 0, 0, 1])
    offset = output_offset(torch.zeros(1, 4, 3), labels)[0, 0]
    assert math.isclose(float(offset[0] - offset[1]), math.log(3), rel_tol=0.02)
    assert -6 < float(offset[2] - offset[1]) < -2  # a class that is not there is unlikely, not ruled out
    assert math.isclose(float(offset.sum()), 0, abs_tol=1e-5)


def test_the_offset_repairs_label_skew_and_leaves_a_right_model_alone():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    labels = torch.distributions.Categorical(logits=logits).sample()
    skewed = torch.distributions.Categorical(logits=logits + torch.tensor([1.0, 0.0, -1.0])).sample()
    assert output_offset(logits[None], labels)[0, 0].abs().max() < 0.2
    assert torch.allclose(output_offset(logits[None], skewed)[0, 0], torch.tensor([1.0, 0.0, -1.0]), atol=0.2)


def test_the_offset_of_a_regression_is_the_mean_residual_shrunk_by_one_sample():
    outputs, targets = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[3.0], [4.0], [5.0]])
    assert math.isclose(output_offset(outputs[None], targets).item(), 2 * 3 / 4)
    assert math.isclose(output_offset(outputs[None], targets[:, 0]).item(), 2 * 3 / 4)  # targets without a column
