"""Masks are orthonormal, invertible, and hide which number belongs to which layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.clustering import cosine_matrix
from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.parameters import Layout
from coterie.privacy import Mask, MaskedTrainer
from coterie.trainers.base import Reduction, Training, TrainingJob
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss


@pytest.fixture
def trainer() -> LoopTrainer:
    torch.manual_seed(0)
    return LoopTrainer(
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), softmax_loss, torch.float64
    )


@pytest.mark.parametrize("signed", [False, True])
def test_norms_and_similarities_stay_and_reveal_undoes_hide(trainer: LoopTrainer, signed: bool) -> None:
    mask = Mask.from_secret(11, trainer.layout, signed=signed)
    plain = torch.randn(6, trainer.layout.size, dtype=torch.float64)
    hidden = mask.hide(plain)
    assert torch.equal(mask.reveal(hidden), plain)
    assert not torch.equal(hidden, plain)
    width = trainer.layout.trainable
    assert cosine_matrix(hidden[:, :width]) == pytest.approx(cosine_matrix(plain[:, :width]), abs=1e-12)
    assert torch.equal(hidden[:, width:].sort(1).values, plain[:, width:].sort(1).values)
    other = Mask.from_secret(12, trainer.layout, signed=signed)
    assert not torch.equal(other.hide(plain), hidden)


def test_a_masked_trainer_does_the_same_work_behind_the_mask(trainer: LoopTrainer) -> None:
    mask = Mask.from_secret(11, trainer.layout, signed=True)
    masked = MaskedTrainer(trainer, mask)
    data = Split(torch.randn(20, 5), torch.randint(3, (20,)))
    start = trainer.layout.read(trainer.module, torch.float64)
    how = Training(lr=0.1, epochs=2, batch_size=5)
    plain = trainer.train([TrainingJob(data, start, 3)], how)
    hidden = masked.train([TrainingJob(data, mask.hide(start), 3)], how)
    assert plain.vectors is not None
    assert hidden.vectors is not None
    assert torch.equal(mask.reveal(hidden.vectors), plain.vectors)
    assert torch.equal(hidden.losses, plain.losses)
    assert torch.allclose(hidden.norms, plain.norms, rtol=1e-12)
    assert torch.equal(masked.evaluate([data], mask.hide(start)[None])[0], trainer.evaluate([data], start[None])[0])
    assert torch.equal(mask.reveal(masked.gradient([data], mask.hide(start))[0]), trainer.gradient([data], start)[0])


def test_sums_behind_the_mask_are_the_masked_sums(trainer: LoopTrainer) -> None:
    mask = Mask.from_secret(11, trainer.layout, signed=True)
    generator = torch.Generator().manual_seed(1)
    starts = trainer.flat + torch.randn(2, trainer.layout.size, generator=generator, dtype=torch.float64).abs()
    hidden_starts = mask.hide(starts)
    data = [
        Split(torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(4)
    ]
    how, reduce = Training(lr=0.1, batch_size=4), Reduction([1.0, 2.0, 3.0, 4.0], [0, 2, 2, None])
    plain = trainer.train([TrainingJob(split, starts[i % 2], i) for i, split in enumerate(data)], how, reduce)
    hidden = MaskedTrainer(trainer, mask).train(
        [TrainingJob(split, hidden_starts[i % 2], i) for i, split in enumerate(data)], how, reduce
    )
    assert plain.vectors is None
    assert hidden.vectors is None
    assert plain.sums.keys() == hidden.sums.keys() == {0, 2}
    for group, total in plain.sums.items():
        assert torch.equal(mask.reveal(hidden.sums[group]), total)
        assert total.any()
    torch.testing.assert_close(hidden.norms, plain.norms, rtol=1e-14, atol=0)  # in another order of the numbers


def test_layers_cannot_be_named_behind_a_mask(trainer: LoopTrainer) -> None:
    masked = MaskedTrainer(trainer, Mask.from_secret(1, trainer.layout))
    assert masked.layout.size == trainer.layout.size
    assert masked.layout.trainable == trainer.layout.trainable
    with pytest.raises(ConfigError, match="no layer"):
        masked.layout.select("3")
    assert isinstance(masked.layout, Layout)
