"""Tasks on two halves of a client's data, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_training import F64, context, data, network, replies_to, trainer_of
from torch import nn
from torch.nn import functional as F

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.randomness import derive
from coterie.tasks import HalfUpdates, HeldOut, Request
from coterie.tasks.base import Reply, with_norm
from coterie.tasks.halves import OFFSET_SCALES, halves_of, offset_models
from coterie.tasks.wire import reply_bytes, task_bytes
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.losses import output_offset, softmax_loss
from coterie.trainers.recognition import plan_of


def answer(task, split, trainer):
    (reply,) = replies_to([Request("c", task)], {"c": context("c", split)}, trainer)
    return reply


def shifted(model, half, trainer):
    """The model with the best offset for a half in its last bias, by hand."""
    offset = output_offset(trainer.outputs(half, model[None]), half.y)[0, 0]
    return torch.cat([model[: -len(offset)], model[-len(offset) :] + offset])


def test_half_updates_by_hand():
    split, training = data(n=11), Training(lr=0.1, epochs=2, batch_size=3)
    trainer, start = trainer_of(network(norm=False))
    task = HalfUpdates(start, training, seed=9, halves=5)
    reply = answer(task, split, trainer)
    first, second = halves_of(split, 5)
    assert sorted(torch.cat([first.x, second.x])[:, 0].tolist()) == sorted(split.x[:, 0].tolist())
    jobs = [
        TrainingJob(half, shifted(start, half, trainer), derive(9, "half", i)) for i, half in enumerate((first, second))
    ]
    updates = trainer.train(jobs, training).vectors
    assert torch.equal(reply.vector, updates.reshape(-1))
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * 2 * len(start) + 8


def test_one_sample_has_no_halves_to_judge_on():
    trainer, start = trainer_of(network(norm=False))
    reply = answer(HalfUpdates(start, Training(), 9, 5), data(n=1), trainer)
    assert torch.isfinite(reply.vector).all()
    judged = answer(HeldOut(torch.stack([start, 2 * start]).repeat(2, 1, 1), 5), data(n=1), trainer)
    assert all(map(math.isnan, judged.values["loss"]))


def losses_by_hand(trainer, model, fit, judge, scale):
    """Losses of single samples, with so much of the output offset that was fitted on the other half."""
    offset = output_offset(trainer.outputs(fit, model[None]), fit.y)
    outputs = trainer.outputs(judge, model[None]) + scale * offset
    return F.cross_entropy(outputs[0], judge.y, reduction="none")


def test_held_out_losses_by_hand():
    trainer, start = trainer_of(network(norm=False))
    split = data(n=11)
    models = torch.stack([start + step for step in (0.1, -0.2, 0.3, -0.4, 0.2, 0.1)]).reshape(2, 3, -1)
    task = HeldOut(models, 5)
    reply = answer(task, split, trainer)
    first, second = halves_of(split, 5)
    found = torch.tensor(reply.values["loss"], dtype=F64).reshape(len(OFFSET_SCALES), 3)
    for row, scale in enumerate(OFFSET_SCALES):
        for m in range(3):
            on_second = losses_by_hand(trainer, models[0, m], first, second, scale).mean()
            on_first = losses_by_hand(trainer, models[1, m], second, first, scale).mean()
            assert found[row, m] == pytest.approx(float(on_second + on_first) / 2)
    for m in (1, 2):
        errors = []
        for made_of, fit, judge in ((0, first, second), (1, second, first)):
            joint, own = (losses_by_hand(trainer, models[made_of, i], fit, judge, 0.0) for i in (0, m))
            errors.append(float((joint - own).var(unbiased=True)) / len(judge))
        assert reply.values["within"][m - 1] == pytest.approx(sum(errors) / 4)
    assert task_bytes(task, trainer.layout) >= 6 * 4 * len(start)


def test_validation_data_is_judged_with_an_offset_from_the_training_data():
    trainer, start = trainer_of(network(norm=False))
    there = context("c", data(n=11))
    held = data(n=7, seed=8)
    client = replace(there.client, validation=held)
    models = torch.stack([start, start + 0.2])[None]
    (reply,) = replies_to([Request("c", HeldOut(models, None))], {"c": there._replace(client=client)}, trainer)
    for m in range(2):
        by_hand = losses_by_hand(trainer, models[0, m], client.train, held, 1.0).mean()
        assert reply.values["loss"][4 + m] == pytest.approx(float(by_hand))
    (nothing,) = replies_to([Request("c", HeldOut(models, None))], {"c": there}, trainer)
    assert len(there.client.validation) or math.isnan(nothing.values["loss"][0])


def test_outputs_are_the_same_on_every_trainer():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    loop, start = trainer_of(module)
    fast = BatchedTrainer(module, plan_of(module, softmax_loss), F64)
    split = data()
    models = torch.stack([start, 2 * start])
    outputs = loop.outputs(split, models)
    assert torch.allclose(fast.outputs(split, models), outputs)
    losses, _ = loop.evaluate([split], models)
    assert torch.allclose(fast.losses_of(outputs, split.y).mean(1), losses[0])
    assert torch.allclose(loop.losses_of(outputs, split.y).mean(1), losses[0])


def test_label_proportions_are_no_part_of_a_half_update():
    """Two clients whose labels are drawn by one rule in other proportions pull alike once each has its own offset."""
    rule = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], dtype=F64)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6000, 2, generator=generator, dtype=F64)
    y = torch.distributions.Categorical(logits=x @ rule.T).sample()
    keep = torch.rand(6000, generator=generator, dtype=F64) < torch.tensor([1.0, 0.3, 0.1], dtype=F64)[y]
    split = Split(x[keep], y[keep])
    trainer, start = trainer_of(nn.Linear(2, 3))
    start = torch.cat([rule.reshape(-1), start[-3:] * 0])
    training = Training(lr=1.0, steps=1, batch_size=None)
    with_offset = answer(HalfUpdates(start, training, seed=9, halves=5), split, trainer).vector[:9]
    jobs = [TrainingJob(halves_of(split, 5)[0], start, derive(9, "half", 0))]
    without = trainer.train(jobs, training).vectors[0]
    assert with_offset.norm() < 0.1 * without.norm()


def test_only_a_bias_of_the_outputs_takes_the_offset():
    split = data(n=11, inputs=3)
    trainer, start = trainer_of(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3, bias=False)))
    [pair] = offset_models([start], [5], [context("c", split)], trainer)
    assert torch.equal(pair, start.expand(2, -1))
    trainer, start = trainer_of(network())
    offsets = torch.tensor([[1.0, -2.0, 3.0]], dtype=F64)
    [moved] = trainer.with_offsets(start, offsets, data())
    before, after = trainer.outputs(data(), torch.stack([start, moved]))
    assert torch.allclose(after, before + offsets)


def test_the_norm_of_a_vector_of_several_models_is_over_the_trainable_numbers_of_all() -> None:
    layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1, affine=False)))
    assert (layout.size, layout.trainable) == (5, 2)
    two = torch.tensor([3.0, 0, 9, 9, 9, 4, 0, 9, 9, 9])
    assert with_norm(Reply("a", 1, two), layout).norm == 5
    assert with_norm(Reply("a", 1, two[:5]), layout).norm == 3
    assert with_norm(Reply("a", 1, two[:3]), layout).norm == 3  # of some layers only


def test_blocks_stay_in_one_half() -> None:
    block = torch.arange(6).repeat_interleave(4)
    data = Split(block.float()[:, None], torch.zeros(24, dtype=torch.long), block)
    first, second = halves_of(data, 3)
    assert not set(first.x[:, 0].tolist()) & set(second.x[:, 0].tolist())
    assert len(first) == len(second) == 12
