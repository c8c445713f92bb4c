"""The clients' optimisers, clipping, class weights, losses and augmentation against torch's own, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.models.ensemble import Ensemble
from coterie.parameters import Layout
from coterie.randomness import torch_generator
from coterie.trainers import batched
from coterie.trainers.augment import crop, find_augment, flip
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer, Way
from coterie.trainers.batching import batches
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import (
    Loss,
    absolute_loss,
    binary_loss,
    class_weights_of,
    correct,
    find_loss,
    huber_loss,
    output_offset,
    softmax_loss,
    squared_loss,
)
from coterie.trainers.low_rank import FactoredLinear, worth_keeping_apart
from coterie.trainers.recognition import plan_of

F64 = torch.float64
ADAM = Training(lr=0.02, epochs=3, batch_size=4, optimizer="adam")
HOW = {
    "momentum": Training(lr=0.05, epochs=3, batch_size=4, momentum=0.9),
    "adam": ADAM,
    "adam with decay": replace(ADAM, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-5),
    "adamw": replace(ADAM, optimizer="adamw", weight_decay=0.1),
    "adam, full batch": replace(ADAM, batch_size=None, steps=6),
    "clipped": replace(ADAM, optimizer="sgd", clip_gradient=0.3),
    "clipped adamw": replace(ADAM, optimizer="adamw", clip_gradient=0.3, weight_decay=0.1),
    "adam, some layers": replace(ADAM, layers=("3",)),
}


def network(outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def clients(real: bool = False, labels: int = 3) -> list[Split]:
    """Three clients of different sizes with images of one channel, 3 by 4."""
    generator = torch_generator(0, "data")
    made = []
    for n in (11, 4, 7):
        x = torch.randn(n, 1, 3, 4, generator=generator, dtype=F64)
        y = torch.randn(n, generator=generator, dtype=F64) if real else torch.randint(labels, (n,), generator=generator)
        made.append(Split(x, y))
    return made


def trainers(module: nn.Sequential, loss: Loss) -> list[Trainer]:
    plan = plan_of(module, loss)
    return [LoopTrainer(module, loss, F64), BatchedTrainer(module, plan, F64)]


def of_torch(module: nn.Module, how: Training) -> torch.optim.Optimizer:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not how.layers or name.split(".")[0] in how.layers)
    live = [p for p in module.parameters() if p.requires_grad]
    if how.optimizer == "sgd":
        return torch.optim.SGD(live, how.lr, how.momentum, weight_decay=how.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[how.optimizer]
    return kind(live, how.lr, how.betas, how.eps, how.weight_decay)


def trained_by_torch(
    module: nn.Module,
    split: Split,
    how: Training,
    seed: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
) -> Tensor:
    """The module's vector after training with torch's own optimiser, step by step."""
    optimizer = optimizer or of_torch(module, how)
    for index in batches(len(split), how, seed):
        optimizer.zero_grad()
        loss(module(split.x[index]), split.y[index]).backward()
        if how.clip_gradient is not None:
            nn.utils.clip_grad_norm_([p for p in module.parameters() if p.requires_grad], how.clip_gradient)
        optimizer.step()
    return Layout.of(module).read(module, F64)


def updates(trainer: Trainer, jobs: list[TrainingJob], how: Training) -> Tensor:
    found = trainer.train(jobs, how).vectors
    assert found is not None
    return found


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_both_trainers_give_what_torch_gives(how: Training) -> None:
    start = Layout.of(network()).read(network(), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(clients())]
    expected = torch.stack([trained_by_torch(network(), job.data, how, job.seed, softmax_loss) for job in jobs])
    for trainer in trainers(network(), softmax_loss):
        torch.testing.assert_close(start + updates(trainer, jobs, how), expected, rtol=1e-10, atol=1e-10)


def test_sums_are_those_of_the_updates() -> None:
    from coterie.trainers.base import Reduction

    start = Layout.of(network()).read(network(), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(clients())]
    for trainer in trainers(network(), softmax_loss):
        total = trainer.train(jobs, ADAM, Reduction([1.0, 2.0, 3.0], [0, 0, 0])).sums[0]
        expected = torch.tensor([1.0, 2.0, 3.0], dtype=F64) @ updates(trainer, jobs, ADAM)
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_a_state_that_is_kept_goes_on_as_torchs_optimiser_does(name: str) -> None:
    """Two rounds with other numbers of steps per client, the second from the state and the model of the first."""
    how = replace(HOW[name], keep_optimizer=True)
    start = Layout.of(network()).read(network(), F64)
    modules = [network() for _ in clients()]
    optimizers = [of_torch(module, how) for module in modules]
    for trainer in trainers(network(), softmax_loss):
        memories = [torch.zeros(1 + how.moments * len(start), dtype=F64) for _ in clients()]
        models = [start] * 3
        for t in range(2):
            jobs = [
                TrainingJob(split, model, 10 * t + i, memory)
                for i, (split, model, memory) in enumerate(zip(clients(), models, memories, strict=True))
            ]
            moved = updates(trainer, jobs, how)
            models = [model + row for model, row in zip(models, moved, strict=True)]
        if isinstance(trainer, LoopTrainer):
            expected = [
                trained_by_torch(modules[i], split, how, 10 * t + i, softmax_loss, optimizers[i])
                for t in range(2)
                for i, split in enumerate(clients())
            ][-3:]
        torch.testing.assert_close(torch.stack(models), torch.stack(expected), rtol=1e-10, atol=1e-10)
        assert [int(memory[0]) for memory in memories] == [2 * how.batches(len(split)) for split in clients()]


def test_paths_for_plain_sgd_are_not_taken_by_other_optimisers() -> None:
    module = nn.Sequential(nn.Linear(2000, 40), nn.ReLU(), nn.Linear(40, 3))
    plan = plan_of(module, softmax_loss)
    trainer = BatchedTrainer(module, plan)
    split = Split(torch.zeros(6, 2000), torch.zeros(6, dtype=torch.long))
    plain = Training(steps=20, batch_size=None)
    layer = FactoredLinear(nn.Linear(2000, 500))
    for how, fast in [
        (plain, True),
        (replace(plain, optimizer="adam"), False),
        (replace(plain, optimizer="adamw"), False),
        (replace(plain, momentum=0.5), False),
        (replace(plain, clip_gradient=1.0), False),
    ]:
        [group] = trainer._divided([TrainingJob(split, torch.zeros(plan.size), 0)], how)
        assert group.in_sample_space is fast
        assert worth_keeping_apart(layer, how, 6) is fast
    [group] = trainer._divided([TrainingJob(split, torch.zeros(plan.size), 0)], replace(plain, augment="flip"))
    assert not group.in_sample_space


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimizer='adan': did you mean 'adam"):
        Training(optimizer="adan")


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("sample_space", [True, False])
def test_weighted_cross_entropy_is_torchs(
    batch: int | None, sample_space: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sample_space:
        monkeypatch.setattr(batched, "choose_way", lambda plan, s, whole: Way.STEPS)
    how = Training(lr=0.1, steps=5, batch_size=batch, class_weights=(0.5, 2.0, 4.0))
    start = Layout.of(network()).read(network(), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(clients())]
    weights = torch.tensor([0.5, 2.0, 4.0], dtype=F64)
    expected = [
        trained_by_torch(network(), job.data, how, job.seed, lambda o, y: F.cross_entropy(o, y, weight=weights))
        for job in jobs
    ]
    for trainer in trainers(network(), softmax_loss):
        found = start + updates(trainer, jobs, how)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)


def test_balanced_weights_by_hand() -> None:
    """scikit-learn's rule: samples over the number of classes that are there times those of the class."""
    found = class_weights_of("balanced", torch.tensor([0, 0, 0, 3, 3, 1]))
    assert found.tolist() == pytest.approx([6 / (3 * 3), 6 / (3 * 1), 0, 6 / (3 * 2)])


def test_balanced_training_of_one_logit_is_that_of_two_outputs_of_which_one_is_zero() -> None:
    how = Training(lr=0.1, steps=5, batch_size=3, class_weights="balanced")
    start = Layout.of(network(1)).read(network(1), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(clients(labels=2))]

    def as_two(split: Split) -> Loss:
        weights = class_weights_of("balanced", split.y)
        return lambda o, y: F.cross_entropy(torch.cat([torch.zeros_like(o), o], 1), y, weight=weights)

    expected = [trained_by_torch(network(1), job.data, how, job.seed, as_two(job.data)) for job in jobs]
    for trainer in trainers(network(1), binary_loss):
        found = start + updates(trainer, jobs, how)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "own", "reference"),
    [
        ("mse", squared_loss, F.mse_loss),
        ("mae", absolute_loss, F.l1_loss),
        ("l1", absolute_loss, F.l1_loss),
        ("huber", huber_loss, F.huber_loss),
        ("bce", binary_loss, F.binary_cross_entropy_with_logits),
    ],
)
def test_losses_by_name_are_torchs_in_training_evaluation_and_gradients(name: str, own: Loss, reference: Loss) -> None:
    assert find_loss(name) is own
    how = Training(lr=0.3, steps=5, batch_size=3)
    data = clients(real=True) if name != "bce" else [replace(s, y=s.y.double()) for s in clients(labels=2)]
    start = Layout.of(network(1)).read(network(1), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(data)]
    expected = [
        trained_by_torch(network(1), job.data, how, job.seed, lambda o, y: reference(o[:, 0], y)) for job in jobs
    ]
    loop, fast = trainers(network(1), own)
    for trainer in (loop, fast):
        found = start + updates(trainer, jobs, how)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)
        losses, accuracies = trainer.evaluate(data, start[None])
        outputs = network(1)(data[0].x).detach()
        assert losses[0, 0].item() == pytest.approx(reference(outputs[:, 0], data[0].y).item(), rel=1e-12)
        assert trainer.losses_of(outputs[None], data[0].y).mean().item() == pytest.approx(
            losses[0, 0].item(), rel=1e-12
        )
        assert accuracies.isnan().all()
    torch.testing.assert_close(fast.gradient(data, start), loop.gradient(data, start), rtol=1e-10, atol=1e-12)


def test_accuracy_of_one_logit_by_hand() -> None:
    outputs, labels = torch.tensor([[-1.0], [2.0], [0.5], [-0.1]]), torch.tensor([0, 1, 0, 1])
    assert correct(outputs, labels).item() == 0.5
    data = clients(labels=2)
    start = Layout.of(network(1)).read(network(1), F64)
    expected = [((network(1)(split.x)[:, 0] > 0).long() == split.y).double().mean().item() for split in data]
    for trainer in trainers(network(1), binary_loss):
        assert trainer.evaluate(data, start[None])[1][:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_the_offset_of_one_logit_moves_the_odds_as_two_outputs_do(labels: list[int]) -> None:
    two = output_offset(torch.zeros(1, 4, 2), torch.tensor(labels))[0, 0]
    one = output_offset(torch.zeros(1, 4, 1), torch.tensor(labels))[0, 0]
    assert one.item() == pytest.approx(float(two[1] - two[0]))
    assert one.item() != 0


def test_an_ensemble_of_logits_averages_probabilities() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    x = torch.tensor([[0.3], [-2.0]])
    expected = (torch.sigmoid(first(x)) + torch.sigmoid(second(x))) / 2
    torch.testing.assert_close(torch.sigmoid(Ensemble([first, second])(x)), expected)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss='crossentropy': did you mean 'cross-entropy'"):
        find_loss("crossentropy")


def test_a_flip_mirrors_some_images_and_a_crop_moves_each() -> None:
    images = torch.arange(2.0 * 64 * 3 * 4).view(64, 2, 3, 4)
    flipped = flip(images, torch_generator(1))
    mirrored = [bool((a == b.flip(-1)).all()) for a, b in zip(flipped, images, strict=True)]
    assert 16 < sum(mirrored) < 48
    assert all(m or (a == b).all() for m, a, b in zip(mirrored, flipped, images, strict=True))
    moved = crop(images, torch_generator(1), 2)
    seen = set()
    for own, image in zip(moved, images, strict=True):
        wide = F.pad(image, (2, 2, 2, 2))
        [place] = [(i, j) for i in range(5) for j in range(5) if torch.equal(own, wide[:, i : i + 3, j : j + 4])]
        seen.add(place)
    assert len(seen) > 12


@pytest.mark.parametrize("batch", [None, 3])
def test_augmented_training_is_the_same_on_both_trainers_and_follows_the_seed(batch: int | None) -> None:
    how = Training(lr=0.1, steps=5, batch_size=batch, augment="flip,crop:1", optimizer="adam")
    start = Layout.of(network()).read(network(), F64)
    jobs = [TrainingJob(split, start, 5 + i) for i, split in enumerate(clients())]
    loop, fast = (updates(trainer, jobs, how) for trainer in trainers(network(), softmax_loss))
    torch.testing.assert_close(loop, fast, rtol=1e-10, atol=1e-10)
    plain, again = (
        updates(trainers(network(), softmax_loss)[0], jobs, replace(how, augment=a)) for a in (None, how.augment)
    )
    assert torch.equal(loop, again)
    assert (loop - plain).norm() > 1e-3
    other = updates(trainers(network(), softmax_loss)[0], [job._replace(seed=job.seed + 90) for job in jobs], how)
    assert (loop - other).norm() > 1e-3


def test_an_augmentation_of_the_users_own_must_keep_the_shape() -> None:
    how = Training(lr=0.1, steps=1, batch_size=None, augment=lambda images, generator: images[:, :, :2])
    job = TrainingJob(clients()[0], Layout.of(network()).read(network(), F64), 0)
    for trainer in trainers(network(), softmax_loss):
        with pytest.raises(ConfigError, match=r"the augmentation made .* keep their shape"):
            trainer.train([job], how)
    for wrong in ("flop", "crop:x", "flip:3"):
        with pytest.raises(ConfigError, match="augment="):
            find_augment(wrong)
