"""Tasks on two halves of a client's data, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from test_training import F64, context, data, network, replies_to, trainer_of
from torch import nn
from torch.nn import functional as F

from coterie.randomness import derive
from coterie.tasks import HalfLosses, HalfUpdates, Request
from coterie.tasks.halves import LABELS, LabelSums, halves_of
from coterie.tasks.wire import reply_bytes, task_bytes
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.losses import output_offset, softmax_loss
from coterie.trainers.recognition import recognise


def answer(task, split, trainer):
    (reply,) = replies_to([Request("c", task)], {"c": context("c", split)}, trainer)
    return reply


def test_half_updates_by_hand():
    split, training = data(n=11), Training(lr=0.1, epochs=2, batch_size=3)
    trainer, start = trainer_of(network(norm=False))
    task = HalfUpdates(start, training, seed=9, halves=5)
    reply = answer(task, split, trainer)
    first, second = halves_of(split, 5)
    assert sorted(torch.cat([first.x, second.x])[:, 0].tolist()) == sorted(split.x[:, 0].tolist())
    jobs = [TrainingJob(half, start, derive(9, "half", i)) for i, half in enumerate((first, second))]
    updates = trainer.train(jobs, training).vectors
    assert torch.equal(reply.vector, updates.reshape(-1))
    losses, _ = trainer.evaluate([second, first], torch.stack([start, start + updates[0], start + updates[1]]))
    # Judged on the other half, both ways averaged; without an offset `whole` is the plain loss.
    assert reply.values["whole"][0] == pytest.approx(losses[:, 0].mean().item())
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * (2 * len(start) + 3) + 8


def test_one_sample_has_no_halves_to_judge_on():
    trainer, start = trainer_of(network(norm=False))
    reply = answer(HalfUpdates(start, Training(), 9, 5), data(n=1), trainer)
    assert all(map(math.isnan, reply.values["whole"]))
    assert torch.isfinite(reply.vector).all()


def test_half_losses_are_billed_as_sent():
    trainer, start = trainer_of(network(norm=False))
    task = HalfLosses(start, torch.stack([start + step for step in (0.1, -0.2, 0.3, -0.4)]), 5)
    reply = answer(task, data(n=11), trainer)
    assert task_bytes(task, trainer.layout) >= 5 * 4 * len(start)
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * (8 * (LABELS + 1) + 2)


def test_label_sums_by_hand():
    trainer, start = trainer_of(network(norm=False))
    split = data(n=11)
    models = torch.stack([start + step for step in (0.1, -0.2, 0.3, -0.4)])
    reply = answer(HalfLosses(start, models, 5), split, trainer)
    sums = LabelSums(*reply.vector.reshape(8, LABELS + 1))
    first, second = halves_of(split, 5)
    for label in range(3):
        expected = torch.zeros(8, dtype=F64)
        for fit, judge, own, other in ((first, second, models[0], models[2]), (second, first, models[1], models[3])):
            rows = judge.y == label

            def losses(model, fit=fit, judge=judge):
                offset = output_offset(trainer.outputs(fit, model[None]), fit.y)
                return F.cross_entropy((trainer.outputs(judge, model[None]) + offset)[0], judge.y, reduction="none")

            if rows.any():
                gain, harm = ((losses(start) - losses(model))[rows] for model in (own, other))
                n, total = int(rows.sum()), float(harm.sum())
                numbers = [1, n, float(gain.sum()), total, total**2, total * n, n**2, float((harm**2).sum())]
                expected += torch.tensor(numbers, dtype=F64)
        assert torch.allclose(torch.stack([column[label] for column in sums]), expected)
    assert not torch.stack(sums)[:, 3:-1].any()
    assert sums.own[-1] == pytest.approx(float(sums.own[:-1].sum()))
    # What both ways prefer adds up to the difference of the gains of all labels.
    gains = sums.own[-1] - sums.other[-1]
    ways = reply.values["preference"][0] * len(second) + reply.values["preference"][1] * len(first)
    assert ways == pytest.approx(float(gains))


def test_outputs_are_the_same_on_every_trainer():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    loop, start = trainer_of(module)
    fast = BatchedTrainer(module, recognise(module, softmax_loss), F64)
    split = data()
    models = torch.stack([start, 2 * start])
    outputs = loop.outputs(split, models)
    assert torch.allclose(fast.outputs(split, models), outputs)
    losses, _ = loop.evaluate([split], models)
    assert torch.allclose(fast.losses_of(outputs, split.y).mean(1), losses[0])
    assert torch.allclose(loop.losses_of(outputs, split.y).mean(1), losses[0])
