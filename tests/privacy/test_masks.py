"""Masks are orthonormal, invertible, and hide which number belongs to which layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.clustering import cosine_matrix
from coterie.engines import LoopBench
from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.losses import softmax_loss
from coterie.parameters import Layout
from coterie.privacy import Mask, MaskedBench
from coterie.workbench import Job, Training


@pytest.fixture
def bench() -> LoopBench:
    torch.manual_seed(0)
    return LoopBench(
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), softmax_loss, torch.float64
    )


@pytest.mark.parametrize("signed", [False, True])
def test_norms_and_similarities_stay_and_reveal_undoes_hide(bench: LoopBench, signed: bool) -> None:
    mask = Mask.from_secret(11, bench.layout, signed=signed)
    plain = torch.randn(6, bench.layout.size, dtype=torch.float64)
    hidden = mask.hide(plain)
    assert torch.equal(mask.reveal(hidden), plain)
    assert not torch.equal(hidden, plain)
    width = bench.layout.trainable
    assert cosine_matrix(hidden[:, :width]) == pytest.approx(cosine_matrix(plain[:, :width]), abs=1e-12)
    assert torch.equal(hidden[:, width:].sort(1).values, plain[:, width:].sort(1).values)
    other = Mask.from_secret(12, bench.layout, signed=signed)
    assert not torch.equal(other.hide(plain), hidden)


def test_a_masked_bench_does_the_same_work_behind_the_mask(bench: LoopBench) -> None:
    mask = Mask.from_secret(11, bench.layout, signed=True)
    masked = MaskedBench(bench, mask)
    data = Split(torch.randn(20, 5), torch.randint(3, (20,)))
    start = bench.layout.read(bench.module, torch.float64)
    how = Training(lr=0.1, epochs=2, batch_size=5)
    plain, losses = bench.train([Job(data, start, 3)], how)
    hidden, same = masked.train([Job(data, mask.hide(start), 3)], how)
    assert torch.equal(mask.reveal(hidden), plain)
    assert torch.equal(losses, same)
    assert torch.equal(masked.evaluate([data], mask.hide(start)[None])[0], bench.evaluate([data], start[None])[0])
    assert torch.equal(mask.reveal(masked.gradient([data], mask.hide(start))[0]), bench.gradient([data], start)[0])


def test_layers_cannot_be_named_behind_a_mask(bench: LoopBench) -> None:
    masked = MaskedBench(bench, Mask.from_secret(1, bench.layout))
    assert masked.layout.size == bench.layout.size
    assert masked.layout.trainable == bench.layout.trainable
    with pytest.raises(ConfigError, match="no layer"):
        masked.layout.select("3")
    assert isinstance(masked.layout, Layout)
