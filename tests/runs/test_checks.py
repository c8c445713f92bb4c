"""Whatever shape a model's output has, the run reports what `predict` gives, or refuses it in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie
from coterie.errors import ConfigError, ModelError
from coterie.models.ensemble import mix_outputs
from coterie.trainers.losses import output_offset


class Shaped(nn.Module):
    """A linear layer whose output is brought into a shape."""

    def __init__(self, outputs: int, shape: Any) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(3, outputs), shape

    def forward(self, x: Tensor) -> Tensor:
        shaped: Tensor = self.shape(self.layer(x))
        return shaped


def federation(classes: int) -> coterie.Federation:
    generator = torch.Generator().manual_seed(3)
    clients = {}
    for name in "abcd":
        x = torch.randn(60, 3, generator=generator)
        y = (
            x[:, 0] + 2 * x[:, 1]
            if classes == 0
            else torch.bucketize(x[:, 0].contiguous(), torch.linspace(-0.5, 0.5, classes - 1))
        )
        clients[name] = (x, y)
    return coterie.Federation.from_tensors(clients)


def own_binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(-1), targets.double().to(outputs.dtype))


def as_it_is(outputs: Tensor) -> Tensor:
    return outputs


def flat(outputs: Tensor) -> Tensor:
    return outputs.squeeze(-1)


ACCEPTED = [
    (2, 1, flat, "bce"), (2, 1, as_it_is, "bce"), (2, 1, flat, own_binary), (2, 1, as_it_is, own_binary),
    (2, 2, as_it_is, None), (2, 5, as_it_is, None), (3, 3, as_it_is, F.cross_entropy),
]  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "cfl", "fedsoft:clusters=2"])
@pytest.mark.parametrize(("classes", "outputs", "shape", "loss"), ACCEPTED)
def test_the_reported_accuracy_is_that_of_predict(
    classes: int, outputs: int, shape: Any, loss: Any, method: str
) -> None:
    data = federation(classes)
    found = coterie.run(method, data, model=Shaped(outputs, shape), loss=loss, rounds=4, lr=1.0, workers=1)
    for row in found.clients:
        test = data[row.client].test
        right = (torch.as_tensor(found.predict(test.x, client=row.client)) == test.y).double().mean()
        assert row.accuracy == pytest.approx(float(right))
        assert row.accuracy > 0.5
        again = found.evaluate((test.x, test.y), client=row.client)
        assert again["accuracy"] == pytest.approx(row.accuracy)
        assert again["loss"] == pytest.approx(row.loss, rel=1e-5)


@pytest.mark.parametrize("shape", [flat, as_it_is])
def test_regression_takes_a_column_or_none(shape: Any) -> None:
    data = federation(0)
    found = coterie.run("fedavg", data, model=Shaped(1, shape), rounds=20, lr=0.1, metrics="mae", workers=1)
    for row in found.clients:
        test = data[row.client].test
        error = (torch.as_tensor(found.predict(test.x, client=row.client)) - test.y).abs().mean()
        assert row.metrics["mae"] == pytest.approx(float(error), rel=1e-4)


REFUSED = [
    (2, 2, flat, "bce", "the model has 2 outputs and the data 2 classes"),
    (2, 1, flat, None, "give the model one output a class"),
    (3, 1, flat, None, "the model has 1 outputs, the data has 3 classes"),
    (3, 4, lambda outputs: outputs.mean(0), None, "the model has 1 outputs"),
    (3, 3, lambda outputs: outputs[:, None], None, r"has shape \(2, 1, 3\): expected \(2, 3\)"),
    (2, 2, lambda outputs: outputs.T, None, r"has shape \(2, 3\): expected \(3, 2\)"),
    (0, 2, as_it_is, None, "one output per target"),
    (0, 1, lambda outputs: outputs.mean(0), None, "one output per target"),
]


@pytest.mark.parametrize(("classes", "outputs", "shape", "loss", "words"), REFUSED)
def test_what_predict_could_not_read_is_refused(classes: int, outputs: int, shape: Any, loss: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        coterie.run("fedavg", federation(classes), model=Shaped(outputs, shape), loss=loss, rounds=1)
    assert "\n" not in str(raised.value)


def each(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def a_number(outputs: Tensor, targets: Tensor) -> Any:
    return float(F.cross_entropy(outputs, targets))


def wrong_shape(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize(
    ("classes", "loss", "words"),
    [
        (3, each, r"the loss returned a tensor of shape \(2,\): expected one number"),
        (3, a_number, "the loss returned float: expected one number"),
        (3, wrong_shape, "the loss raised RuntimeError: .*: correct it"),
        (0, F.mse_loss, "the loss raised UserWarning: Using a target size"),
    ],
)
def test_a_loss_of_ones_own_is_tried_before_training(classes: int, loss: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        coterie.run("fedavg", federation(classes), model=nn.Linear(3, classes or 1), loss=loss, rounds=1)


def test_one_number_per_sample_is_mixed_and_offset_like_a_column() -> None:
    outputs, labels = torch.randn(3, 7, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 1, 1, 0, 1, 1])
    weights = torch.tensor([0.2, 0.3, 0.5])
    for real in (False, True):
        column = mix_outputs(outputs[..., None], weights, real)
        assert torch.equal(mix_outputs(outputs, weights, real), column[..., 0])
        targets = labels.double().to(outputs.dtype) if real else labels
        assert torch.equal(output_offset(outputs, targets), output_offset(outputs[..., None], targets)[..., 0])
