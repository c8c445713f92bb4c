"""What a client does, worked by hand or against torch's own optimiser and autograd, in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.randomness import derive, torch_generator
from coterie.tasks import Choose, Evaluate, Gradient, Noise, Train, perform
from coterie.tasks.base import ClientContext, Request
from coterie.tasks.wire import reply_bytes, task_bytes
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.batching import batches
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss, squared_loss

F64 = torch.float64


def network(dropout=0.0, norm=True):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(4, 5),
            nn.BatchNorm1d(5) if norm else nn.Identity(),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(5, 3),
        )


def data(n=23, seed=0, inputs=4, classes=3):
    generator = torch_generator(seed, "data")
    return Split(torch.randn(n, inputs, generator=generator), torch.randint(classes, (n,), generator=generator))


def context(name, split, state=None):
    empty = Split(split.x[:0], split.y[:0])
    return ClientContext(Client(name, split, empty, split), {} if state is None else state)


def trainer_of(module, loss=softmax_loss):
    trainer = LoopTrainer(module, loss, F64)
    return trainer, trainer.layout.read(module, F64)


def train(trainer, jobs, training):
    """The updates `(jobs, d)` and the losses `(jobs,)`."""
    trained = trainer.train(jobs, training)
    return trained.vectors, trained.losses


def replies_to(requests, contexts, trainer):
    return perform(requests, contexts, trainer).replies


def test_one_step_of_linear_regression_is_the_closed_form():
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])
    y = torch.tensor([[1.0], [2.0], [-1.0]])
    trainer, _ = trainer_of(nn.Linear(2, 1), squared_loss)
    start = torch.tensor([0.3, -0.2, 0.1], dtype=F64)
    design = torch.cat([x, torch.ones(3, 1)], 1).double()
    residual = design @ start[:, None] - y
    expected = -0.1 * (2 / 3) * (design.T @ residual).flatten()
    updates, losses = train(trainer, [TrainingJob(Split(x, y), start, 0)], Training(lr=0.1, batch_size=None))
    torch.testing.assert_close(updates[0], expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(losses[0], (residual**2).mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "training",
    [
        Training(lr=0.05, epochs=3, batch_size=5),
        Training(lr=0.05, steps=7, batch_size=5, momentum=0.9),
        Training(lr=0.05, epochs=2, batch_size=6, momentum=0.9, weight_decay=0.1),
        Training(lr=0.05, epochs=2, batch_size=6, proximal=0.7),
        Training(lr=0.05, epochs=2, batch_size=6, momentum=0.5, weight_decay=0.01, proximal=0.3, layers=("4", "1")),
        Training(lr=0.05, epochs=4, batch_size=None, momentum=0.5),
        Training(lr=0.05, epochs=2, batch_size=100),
    ],
)
def test_training_equals_torch_sgd_on_a_fresh_module(training):
    split, seed = data(), 11
    trainer, start = trainer_of(network())
    reference = network().double()
    origin = [p.detach().clone() for p in reference.parameters()]
    if training.layers:
        for name, parameter in reference.named_parameters():
            parameter.requires_grad_(name.split(".")[0] in training.layers)
    live = [p for p in reference.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(live, training.lr, training.momentum, weight_decay=training.weight_decay)
    seen = []
    for index in batches(len(split), training, seed):
        optimiser.zero_grad()
        loss = softmax_loss(reference(split.x.double()[index]), split.y[index])
        seen.append(loss.item())
        distance = sum(((p - o) ** 2).sum() for p, o in zip(reference.parameters(), origin, strict=True))
        (loss + training.proximal / 2 * distance).backward()
        optimiser.step()
    updates, losses = train(trainer, [TrainingJob(split, start, seed)], training)
    torch.testing.assert_close(start + updates[0], Layout.of(reference).read(reference, F64), rtol=1e-10, atol=1e-12)
    assert losses[0].item() == pytest.approx(sum(seen) / len(seen), rel=1e-10)
    assert len(seen) == training.batches(len(split))


def test_batches_are_shuffled_passes_over_all_the_samples():
    training = Training(epochs=2, batch_size=5)
    steps = [index.tolist() for index in batches(12, training, seed=4)]
    assert [len(step) for step in steps] == [5, 5, 2, 5, 5, 2]
    first, second = [*itertools.chain(*steps[:3])], [*itertools.chain(*steps[3:])]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert steps == [index.tolist() for index in batches(12, training, seed=4)]
    assert steps != [index.tolist() for index in batches(12, training, seed=5)]
    assert len(list(batches(12, Training(steps=4, batch_size=5), 0))) == 4
    assert list(batches(3, Training(epochs=2, batch_size=None), 0)) == [slice(None)] * 2


def test_batchnorm_statistics_move_and_batches_are_counted():
    trainer, start = trainer_of(network())
    updates, _ = train(trainer, [TrainingJob(data(), start, 0)], Training(lr=0.1, epochs=2, batch_size=6))
    moved = trainer.layout.unflatten(updates[0])
    assert moved["1.running_mean"].abs().min() > 0
    assert moved["1.running_var"].abs().min() > 0
    assert moved["1.num_batches_tracked"].item() == 2 * 4
    again, _ = train(trainer, [TrainingJob(data(), start + updates[0], 0)], Training(lr=0.1, epochs=1, batch_size=6))
    assert trainer.layout.unflatten(again[0])["1.num_batches_tracked"].item() == 4


def test_dropout_is_seeded_by_the_job_alone_and_the_global_generator_is_left_alone():
    trainer, start = trainer_of(network(dropout=0.5))
    training = Training(lr=0.1, epochs=2, batch_size=None)
    before = torch.get_rng_state()
    both, _ = train(trainer, [TrainingJob(data(), start, 1), TrainingJob(data(), start, 2)], training)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    alone, _ = train(trainer, [TrainingJob(data(), start, 2)], training)
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])


def test_no_client_sees_another_and_no_start_is_written_to():
    trainer, start = trainer_of(network())
    kept = start.clone()
    jobs = [TrainingJob(data(seed=s), start, s) for s in range(3)]
    together, _ = train(trainer, jobs, Training(momentum=0.9, batch_size=4))
    snapshot = together.clone()
    for i in (2, 0, 1):
        alone, _ = train(trainer, [jobs[i]], Training(momentum=0.9, batch_size=4))
        assert torch.equal(alone[0], together[i])
    assert torch.equal(start, kept)
    assert torch.equal(together, snapshot)  # later training does not reach into earlier replies


def test_the_trainer_leaves_the_given_module_alone():
    module = network()
    before = Layout.of(module).read(module)
    trainer, start = trainer_of(module)
    train(trainer, [TrainingJob(data(), start, 0)], Training())
    assert torch.equal(before, Layout.of(module).read(module))


def test_gradient_is_autograd_in_evaluation_mode_also_over_several_passes():
    split = data(n=1100)
    trainer, start = trainer_of(network(dropout=0.5))
    reference = network(dropout=0.5).double().eval()
    loss = softmax_loss(reference(split.x.double()), split.y)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in reference.parameters()])
    gradients, losses = trainer.gradient([split], start)
    torch.testing.assert_close(gradients[0, : trainer.layout.trainable], expected, rtol=1e-9, atol=1e-13)
    assert gradients[0, trainer.layout.trainable :].abs().sum() == 0
    assert losses[0].item() == pytest.approx(loss.item(), rel=1e-10)
    (reply,) = replies_to([Request("c", Gradient(start))], {"c": context("c", split)}, trainer)
    assert torch.equal(reply.vector, gradients[0])
    assert reply.norm == pytest.approx(expected.norm().item())


def test_evaluation_equals_direct_computation():
    splits = [data(n=700, seed=1), data(n=3, seed=2), data(n=0)]
    trainer, start = trainer_of(network(dropout=0.5))
    models = torch.stack([start, start * 0.5])
    losses, accuracies = trainer.evaluate(splits, models)
    for j, model in enumerate(models):
        reference = network(dropout=0.5).double()
        trainer.layout.write(model, reference)
        reference.eval()
        for i, split in enumerate(splits[:2]):
            outputs = reference(split.x.double())
            assert losses[i, j].item() == pytest.approx(softmax_loss(outputs, split.y).item(), rel=1e-9)
            assert accuracies[i, j].item() == pytest.approx((outputs.argmax(1) == split.y).double().mean().item())
    assert losses[2].isnan().all()
    assert accuracies[2].isnan().all()
    (reply,) = replies_to([Request("c", Evaluate(models, "train"))], {"c": context("c", splits[0])}, trainer)
    assert reply.values["loss"] == losses[0].tolist()
    task = Evaluate(models, "train")
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * 2 * 2
    assert task_bytes(task, trainer.layout) == 4 * 2 * trainer.layout.size


def test_noise_by_hand():
    split, training = data(n=11), Training(lr=0.1, epochs=2, batch_size=3)
    trainer, start = trainer_of(network(norm=False))
    order = torch.randperm(11, generator=torch_generator(9, "halves"))
    halves = [
        TrainingJob(Split(split.x[part], split.y[part]), start, derive(9, "half", i))
        for i, part in enumerate((order[:6], order[6:]))
    ]
    (a, b), _ = train(trainer, halves, training)
    (reply,) = replies_to([Request("c", Noise(start, training, 9))], {"c": context("c", split)}, trainer)
    assert reply.values["noise"] == pytest.approx(((a - b).norm() / (a + b).norm()).item(), rel=1e-12)
    assert reply.vector is None


def test_noise_of_one_sample_and_of_a_client_that_does_not_move():
    trainer, start = trainer_of(network(norm=False))
    (reply,) = replies_to([Request("c", Noise(start, Training(), 9))], {"c": context("c", data(n=1))}, trainer)
    assert reply.values["noise"] == float("inf")
    still = LoopTrainer(nn.Linear(1, 1), squared_loss, F64)
    zero = Split(torch.zeros(4, 1), torch.zeros(4, 1))
    (reply,) = replies_to(
        [Request("c", Noise(torch.zeros(2, dtype=F64), Training(), 0))], {"c": context("c", zero)}, still
    )
    assert reply.values["noise"] == float("inf")


def choose(models, split, trainer, training=None):
    task = Choose(models, training, seed=4)
    return replies_to([Request("c", task)], {"c": context("c", split)}, trainer)[0]


def test_choice_is_the_lowest_training_loss_and_ties_go_to_the_lowest_index():
    trainer, start = trainer_of(network())
    worse = start * 3
    split = data()
    losses, _ = trainer.evaluate([split], torch.stack([worse, start]))
    best = int(losses[0].argmin())
    reply = choose(torch.stack([worse, start]), split, trainer)
    assert reply.group == best
    better = start if best else worse
    assert choose(torch.stack([better, better, better]), split, trainer).group == 0
    assert choose(torch.stack([worse if best else start, better, better]), split, trainer).group == 1


def test_a_model_that_became_nan_is_not_chosen():
    trainer, start = trainer_of(network())
    assert choose(torch.stack([torch.full_like(start, torch.nan), start]), data(), trainer).group == 1


def test_chosen_work_is_the_update_or_gradient_at_the_chosen_model():
    trainer, start = trainer_of(network())
    models = torch.stack([start * 3, start])
    split = data()
    reply = choose(models, split, trainer, Training(batch_size=5))
    expected, _ = train(trainer, [TrainingJob(split, models[reply.group], 4)], Training(batch_size=5))
    assert torch.equal(reply.vector, expected[0])
    reply = choose(models, split, trainer)
    expected, _ = trainer.gradient([split], models[reply.group])
    assert torch.equal(reply.vector, expected[0])


def test_private_layers_stay_with_the_client_and_are_zero_in_the_update():
    trainer, start = trainer_of(network())
    head = trainer.layout.select("4")
    split, training = data(), Training(lr=0.1, batch_size=5)
    contexts = {"c": context("c", split)}
    task = Train(start, training, 1, ("4",))
    (reply,) = replies_to([Request("c", task)], contexts, trainer)
    plain, _ = train(trainer, [TrainingJob(split, start, 1)], training)
    (span,) = head
    assert reply.vector[span].abs().sum() == 0
    rest = trainer.layout.complement(head)
    for part in rest:
        assert torch.equal(reply.vector[part], plain[0][part])
    torch.testing.assert_close(contexts["c"].state["private"], (start + plain[0])[span])
    assert reply.norm == pytest.approx(reply.vector[: trainer.layout.trainable].norm().item())
    private = span.stop - span.start
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * (trainer.layout.size - private) + 8
    # The client can draw its private layers only from the seed of the initial model; without one they are sent too.
    assert task_bytes(replace(task, init=5), trainer.layout) == 4 * (trainer.layout.size - private) + 8
    assert task_bytes(task, trainer.layout) == 4 * trainer.layout.size

    kept = contexts["c"].state["private"].clone()
    garbage = start.clone()
    garbage[span] = 1e6  # what the server holds in a private place is not looked at any more
    (second,) = replies_to([Request("c", Train(garbage, training, 2, ("4",)))], contexts, trainer)
    mine = start.clone()
    mine[span] = kept
    expected, _ = train(trainer, [TrainingJob(split, mine, 2)], training)
    torch.testing.assert_close(second.vector[rest[0]], expected[0][rest[0]])
    (score,) = replies_to([Request("c", Evaluate(garbage[None], "train", ("4",)))], contexts, trainer)
    own = garbage.clone()
    own[span] = contexts["c"].state["private"]
    assert score.values["loss"][0] == trainer.evaluate([split], own[None])[0].item()


def test_private_layers_that_diverge_are_seen_and_not_kept():
    trainer, start = trainer_of(nn.Linear(2, 1), squared_loss)
    split = Split(torch.full((3, 2), 1e4), torch.ones(3, 1))
    contexts = {"c": context("c", split)}
    huge = Training(lr=1e38, steps=10, batch_size=None)
    (reply,) = replies_to([Request("c", Train(start, huge, 0, ("weight", "bias")))], contexts, trainer)
    assert "private" not in contexts["c"].state
    assert not torch.isfinite(torch.tensor(reply.norm))


def test_replies_come_in_the_order_of_the_requests_whatever_their_kinds():
    trainer, start = trainer_of(network())
    contexts = {name: context(name, data(seed=i)) for i, name in enumerate("abc")}
    requests = [
        Request("c", Evaluate(start[None], "train")),
        Request("a", Train(start, Training(), 1)),
        Request("b", Evaluate(start[None], "train")),
        Request("c", Train(start, Training(lr=0.2), 1)),
        Request("b", Train(start, Training(), 1)),
    ]
    replies = replies_to(requests, contexts, trainer)
    assert [r.client for r in replies] == ["c", "a", "b", "c", "b"]
    for request, reply in zip(requests, replies, strict=True):
        (alone,) = replies_to([request], contexts, trainer)
        assert alone.values == reply.values
        if reply.vector is not None:
            assert torch.equal(alone.vector, reply.vector)
