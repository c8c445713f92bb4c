"""Every fast path against the plain one-client loop, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.federation import Split
from coterie.trainers import batched
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer, Way
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss, softmax_loss, squared_loss
from coterie.trainers.pure_code import Unrecognised
from coterie.trainers.recognition import plan_of, suits

INPUTS = 6


def network(hidden: list[int], outputs: int, bias: bool, activation: type[nn.Module], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Flatten()]
    width = INPUTS
    for size in hidden:
        parts += [nn.Linear(width, size, bias=bias), activation()]
        width = size
    return nn.Sequential(*parts, nn.Dropout(0.0), nn.Linear(width, outputs, bias=bias)).double()


def splits(sizes: list[int], outputs: int, loss: Loss, seed: int) -> list[Split]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for n in sizes:
        x = torch.randn(n, 2, INPUTS // 2, generator=generator, dtype=torch.float64)
        if loss is softmax_loss:
            y = torch.randint(outputs, (n,), generator=generator)
        else:
            y = torch.randn((n, outputs) if outputs > 1 else (n,), generator=generator, dtype=torch.float64)
        made.append(Split(x, y))
    return made


def train(trainer: Trainer, jobs: list[TrainingJob], training: Training) -> tuple[Tensor, Tensor, Tensor]:
    """The updates `(jobs, d)`, their norms and the losses `(jobs,)`."""
    trained = trainer.train(jobs, training)
    assert trained.vectors is not None
    return trained.vectors, trained.norms, trained.losses


def close(a: Tensor, b: Tensor) -> bool:
    assert a.shape == b.shape
    return bool(torch.allclose(a, b, rtol=1e-10, atol=1e-12, equal_nan=True))


shapes = st.fixed_dictionaries(
    {
        "hidden": st.lists(st.integers(1, 5), max_size=2),
        "outputs": st.integers(1, 4),
        "bias": st.booleans(),
        "activation": st.sampled_from([nn.ReLU, nn.Tanh, nn.Identity]),
        "seed": st.integers(0, 10**6),
    }
)
losses = st.sampled_from([softmax_loss, squared_loss])
ragged = st.lists(st.integers(1, 9), min_size=1, max_size=7)
layer_choice = st.sampled_from([(), ("last",), ("first",), ("first", "last"), ("first.weight",)])


def named(layers: tuple[str, ...], module: nn.Sequential) -> tuple[str, ...]:
    first = next(name for name, part in module.named_children() if isinstance(part, nn.Linear))
    return tuple(name.replace("first", first) for name in layers)


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    loss=losses,
    sizes=ragged,
    batch=st.sampled_from([None, 1, 2, 3, 5, 20]),
    steps=st.sampled_from([None, 0, 1, 4, 7]),
    epochs=st.integers(1, 3),
    extras=st.sampled_from([{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.3}, "all"]),
    layers=layer_choice,
    sample_space=st.booleans(),
    shared=st.booleans(),
)
def test_training_is_that_of_the_loop(
    shape, loss, sizes, batch, steps, epochs, extras, layers, sample_space, shared
) -> None:  # type: ignore[no-untyped-def]
    module = network(**shape)
    if extras == "all":
        extras = {"momentum": 0.5, "weight_decay": 0.05, "proximal": 0.2}
    training = Training(lr=0.1, batch_size=batch, steps=steps, epochs=epochs, layers=named(layers, module), **extras)
    plan = plan_of(module, loss)
    loop = LoopTrainer(module, loss, torch.float64)
    fast = BatchedTrainer(module, plan, torch.float64)
    data = splits(sizes, shape["outputs"], loss, shape["seed"])
    assert suits(plan, data[0])
    start = loop.flat.clone()
    jobs = [TrainingJob(split, start if shared else start + i / 50, 7 * i) for i, split in enumerate(data)]
    with pytest.MonkeyPatch.context() as patch:
        if not sample_space:
            patch.setattr(batched, "choose_way", lambda plan, s, whole: Way.STEPS)
        found = train(fast, jobs, training)
    for a, b in zip(found, train(loop, jobs, training), strict=True):
        assert close(a, b)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, loss=losses, sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7), k=st.integers(1, 3))
def test_evaluation_is_that_of_the_loop(shape, loss, sizes, k) -> None:  # type: ignore[no-untyped-def]
    module = network(**shape)
    plan = plan_of(module, loss)
    loop, fast = LoopTrainer(module, loss, torch.float64), BatchedTrainer(module, plan, torch.float64)
    data = splits(sizes, shape["outputs"], loss, shape["seed"])
    models = torch.stack([loop.flat + j / 10 for j in range(k)])
    for a, b in zip(fast.evaluate(data, models), loop.evaluate(data, models), strict=True):
        assert close(a, b)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, loss=losses, sizes=ragged)
def test_gradients_are_those_of_the_loop(shape, loss, sizes) -> None:  # type: ignore[no-untyped-def]
    module = network(**shape)
    plan = plan_of(module, loss)
    loop, fast = LoopTrainer(module, loss, torch.float64), BatchedTrainer(module, plan, torch.float64)
    data = splits(sizes, shape["outputs"], loss, shape["seed"])
    model = loop.flat.clone()
    for a, b in zip(fast.gradient(data, model), loop.gradient(data, model), strict=True):
        assert close(a, b)


@pytest.mark.parametrize("limit", ["GROUP_VALUES", "GROUP_WEIGHTS"])
def test_small_groups_and_windows_change_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import coterie.trainers.batched as batched
    import coterie.trainers.batching as batching

    module = network([5], 3, True, nn.ReLU, 1)
    plan = plan_of(module, softmax_loss)
    loop, fast = LoopTrainer(module, softmax_loss, torch.float64), BatchedTrainer(module, plan, torch.float64)
    data = splits([70, 3, 150, 9, 9], 3, softmax_loss, 2)
    jobs = [TrainingJob(split, loop.flat.clone(), i) for i, split in enumerate(data)]
    monkeypatch.setattr(batched, limit, 100)
    monkeypatch.setattr(batching, "WINDOW_NUMBERS", 100)
    for batch in (4, None):
        training = Training(batch_size=batch, epochs=2)
        for a, b in zip(train(fast, jobs, training), train(loop, jobs, training), strict=True):
            assert close(a, b)
    models = torch.stack([loop.flat, loop.flat * 2])
    for a, b in zip(fast.evaluate(data, models), loop.evaluate(data, models), strict=True):
        assert close(a, b)
    for a, b in zip(fast.gradient(data, models[0]), loop.gradient(data, models[0]), strict=True):
        assert close(a, b)


def test_a_diverging_client_spoils_no_other() -> None:
    module = network([5], 3, True, nn.ReLU, 1)
    plan = plan_of(module, softmax_loss)
    fast = BatchedTrainer(module, plan, torch.float64)
    data = splits([4, 4, 4], 3, softmax_loss, 2)
    start = fast.layout.read(module, torch.float64)
    poisoned = [
        TrainingJob(data[0], start, 0),
        TrainingJob(Split(data[1].x * 1e300, data[1].y), start, 0),
        TrainingJob(data[2], start, 0),
    ]
    for training in (Training(batch_size=2, epochs=5), Training(batch_size=None, steps=5)):
        updates, _, _ = train(fast, poisoned, training)
        alone, _, _ = train(fast, [poisoned[0], poisoned[2]], training)
        assert not torch.isfinite(updates[1]).all()
        assert close(updates[[0, 2]], alone)


def test_modules_that_only_autograd_knows_are_left_to_the_loop() -> None:
    linear = nn.Linear(4, 4)
    hooked = nn.Sequential(nn.Linear(4, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    fixed = nn.Sequential(nn.Linear(4, 2))
    fixed[0].weight.requires_grad_(False)

    others = [
        nn.Sequential(linear, nn.ReLU(), linear),
        hooked,
        tied,
        fixed,
        nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 2)),
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()),
    ]
    for module in others:
        with pytest.raises(Unrecognised):
            plan_of(module, softmax_loss)
    good = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Tanh(), nn.Identity(), nn.Linear(3, 2))
    plan_of(good, softmax_loss)
    with pytest.raises(Unrecognised, match="the loss is your own"):
        plan_of(good, lambda outputs, targets: outputs.sum())


def test_data_that_does_not_fit_is_left_to_the_loop() -> None:
    flat = plan_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), softmax_loss)
    bare = plan_of(nn.Sequential(nn.Linear(4, 2)), softmax_loss)
    squared = plan_of(nn.Sequential(nn.Linear(4, 1)), squared_loss)
    labels, images, rows = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2, 2), torch.zeros(3, 4)
    assert suits(flat, Split(images, labels))
    assert suits(flat, Split(rows, labels))
    assert suits(bare, Split(rows, labels))
    assert suits(squared, Split(rows, torch.zeros(3, 1)))
    assert suits(squared, Split(rows, torch.zeros(3)))
    assert not suits(bare, Split(torch.zeros(3, 2, 4), labels))
    assert not suits(flat, Split(rows.long(), labels))
    assert not suits(flat, Split(rows, torch.zeros(3, 1, dtype=torch.int64)))
    assert not suits(flat, Split(torch.zeros(3, 5), labels))
    assert not suits(squared, Split(rows, torch.zeros(3, 2)))


def test_the_gram_cache_keeps_its_budget_and_forgets_dead_data() -> None:
    module = network([5], 3, True, nn.ReLU, 1)
    plan = plan_of(module, softmax_loss)
    data = splits([4, 4, 4], 3, softmax_loss, 2)
    start = LoopTrainer(module, softmax_loss, torch.float64).flat
    jobs = [TrainingJob(split, start, 0) for split in data]
    training = Training(batch_size=None, steps=9)
    room_for_one = BatchedTrainer(module, plan, torch.float64, gram_bytes=4 * 4 * 8)
    room_for_all = BatchedTrainer(module, plan, torch.float64)
    small, large = train(room_for_one, jobs, training)[0], train(room_for_all, jobs, training)[0]
    assert room_for_one.grams.bytes == 128
    assert room_for_all.grams.bytes == 3 * 128
    assert torch.equal(small, large)
    assert torch.equal(train(room_for_all, jobs, training)[0], large)
    del jobs, data
    assert room_for_all.grams.bytes == 0
