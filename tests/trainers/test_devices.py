"""The device that clients compute on. Without a graphics card, a stand-in is as strict as one about what lies where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import coterie
from coterie.cli import main
from coterie.cli.run_commands import resume
from coterie.engines import LocalEngine, local
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.options import LIMIT_KEYS, PLACE_KEYS
from coterie.runs.config import make_config
from coterie.tasks import Train
from coterie.tasks.base import Request
from coterie.trainers import BatchedTrainer, LoopTrainer
from coterie.trainers.base import Reduction, Trainer, Training, TrainingJob
from coterie.trainers.batched import Way
from coterie.trainers.devices import choose_device
from coterie.trainers.losses import softmax_loss, squared_loss
from coterie.trainers.low_rank import LARGE
from coterie.trainers.recognition import plan_of

CARD = torch.device("cpu", 0)
"""For torch the processor too, but under another name: what is made there or moved there can be told."""
MIXES = ("aten.copy_.default", "aten._to_copy.default")
PASSES = (6, 9)
MOST_WAITS = 2
"""Waits per client and training: for its update and its loss."""
INDEXES = ("aten.index.Tensor", "aten.index_put_.default", "aten._index_put_impl_.default")


READS = (
    "aten._local_scalar_dense.default",
    "aten.equal.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten._unique2.default",
)
METHODS = (Tensor.tolist, Tensor.numpy, Tensor.__iter__)


class Card(TorchDispatchMode):
    """Keeps count of what lies on the card, and refuses to compute with tensors from both memories, as CUDA does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.there: dict[int, torch.UntypedStorage] = {}
        self.computed = 0
        self.transfers: list[str] = []
        """Copies between the memories; each is a call of the driver, and one to memory waits for the card."""
        self.waits: list[str] = []
        """Reads of numbers that are on the card: everything queued there must be done first."""

    def holds(self, tensor: Tensor) -> bool:
        return _place(tensor) in self.there

    def take(self, tensor: Tensor) -> Tensor:
        self.there[_place(tensor)] = tensor.untyped_storage()  # kept, so that its place is not used again
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        # CUDA takes indices from either memory.
        given = (args[:1], args[2:]) if str(func) in INDEXES else (args, kwargs)
        tensors = [t for t in tree_flatten(given)[0] if isinstance(t, Tensor)]
        there = {self.holds(t) for t in tensors if t.ndim > 0}  # single numbers may come from anywhere
        if len(there) == 2 and str(func) not in MIXES:
            raise RuntimeError(f"{func}: tensors on the card and in memory")
        if str(func) in MIXES and (len(there) == 2 or (kwargs.get("device") == CARD and there == {False})):
            self.transfers.append(str(func))
        if str(func) in INDEXES and self.holds(args[0]):
            near = [t for t in args[1] if isinstance(t, Tensor) and t.ndim > 0 and not self.holds(t)]
            self.transfers += ["an index"] * len(near)
        if str(func) in READS and any(map(self.holds, tensors)):
            self.waits.append(str(func))
        result = func(*args, **kwargs)
        # What is made from a tensor lies where that lies: `new_zeros` and the like name no other device.
        moved = kwargs.get("device") == CARD or any(map(self.holds, tensors[:1] if str(func) in MIXES else tensors))
        for made in tree_flatten(result)[0]:
            known = isinstance(made, Tensor) and any(_place(made) == _place(t) for t in tensors)
            if isinstance(made, Tensor) and moved and not known:
                self.take(made)
        self.computed += moved
        return result


class Moves(TorchFunctionMode):
    """Sees what is asked for before torch turns it into operations: devices, copies to memory, tensors from lists."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        back = func is Tensor.cpu or (
            func is Tensor.to and any(isinstance(a, str | torch.device) and a != CARD for a in args)
        )
        if back and self.card.holds(args[0]):
            kinds = [a for a in args if isinstance(a, torch.dtype)]
            return torch.empty(args[0].shape, dtype=kinds[0] if kinds else args[0].dtype).copy_(args[0])
        if func in METHODS and self.card.holds(args[0]):
            self.card.waits.append(func.__name__)
        if func == Tensor.device.__get__ and self.card.holds(args[0]):
            return CARD
        made = func(*args, **kwargs)
        # Both make their result by operations that name the processor, which the card is for torch.
        listed = func is torch.tensor and kwargs.get("device") == CARD
        padded = func is torch._C._nn.pad_sequence and self.card.holds(args[0][0])
        if listed:
            self.card.transfers.append("torch.tensor")
        return self.card.take(made) if listed or padded else made


def _place(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


@contextmanager
def card() -> Iterator[Card]:
    with ExitStack() as stack:
        made = stack.enter_context(Card())
        stack.enter_context(Moves(made))
        yield made


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4, 3),
    )


def wide() -> nn.Module:
    """Its first layer is large enough that steps on it are kept apart."""
    return nn.Sequential(nn.Flatten(), nn.Linear(48, LARGE // 48 + 1), nn.Sigmoid(), nn.Linear(LARGE // 48 + 1, 3))


def clients(regression: bool = False) -> list[Split]:
    generator = torch.Generator().manual_seed(2)
    found = []
    for n in (9, 4, 9, 6):
        x = torch.randn(n, 3, 4, 4, generator=generator)
        y = torch.randn(n, 3, generator=generator) if regression else torch.randint(3, (n,), generator=generator)
        found.append(Split(x, y))
    return found


def fast(module: nn.Module, device: torch.device, **options: Any) -> BatchedTrainer:
    loss = options.pop("loss", softmax_loss)
    plan = plan_of(module, loss)
    return BatchedTrainer(module, plan, device=device, **options)


def by_steps(module: nn.Module, device: torch.device, **options: Any) -> BatchedTrainer:
    trainer = fast(module, device, **options)
    trainer._way = lambda *_: Way.STEPS  # type: ignore[method-assign]
    return trainer


def loop(module: nn.Module, device: torch.device, **options: Any) -> LoopTrainer:
    return LoopTrainer(module, options.pop("loss", softmax_loss), device=device, **options)


def everything(trainer: Trainer, data: Sequence[Split], starts: Tensor) -> list[Tensor]:
    """All that a trainer can do, in all the ways it has of doing it."""
    found: list[Tensor] = []
    same = [TrainingJob(split, starts[0], i) for i, split in enumerate(data)]
    own = [TrainingJob(split, starts[i % 2], i) for i, split in enumerate(data)]
    for training in (
        Training(batch_size=4, epochs=2),
        Training(batch_size=4, epochs=1, momentum=0.5, weight_decay=0.1, proximal=0.1),
        Training(batch_size=None, steps=5),
        Training(batch_size=None, steps=2, layers=("last",)),
    ):
        for jobs in (same, own):
            trained = trainer.train(jobs, training)
            assert trained.vectors is not None
            summed = trainer.train(jobs, training, Reduction([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]))
            found += [trained.vectors, trained.norms, trained.losses]
            # In memory the norm of a large model's update is taken in pieces.
            found += [summed.sums[0], summed.sums[1], summed.norms.round(decimals=3), summed.losses]
    found += trainer.gradient(data, starts[1])
    found += trainer.evaluate([*data, Split(data[0].x[:0], data[0].y[:0])], starts)
    return found


@pytest.mark.parametrize(
    ("make", "module", "options"),
    [
        (fast, perceptron, {}),
        (by_steps, perceptron, {}),
        (fast, perceptron, {"loss": squared_loss}),
        (loop, perceptron, {"loss": squared_loss}),
        (loop, convolutions, {}),
        pytest.param(loop, convolutions, {"bf16": True}, marks=pytest.mark.bfloat16),
        pytest.param(loop, wide, {"bf16": True}, marks=pytest.mark.bfloat16),
    ],
)
def test_trainers_compute_on_their_device_alone_and_answer_in_memory(
    make: Callable[..., Trainer], module: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    net, data = module(), clients("loss" in options)
    near = make(net, torch.device("cpu"), **options)
    starts = torch.stack([near.layout.read(net), near.layout.read(net) + 0.01])
    with card() as there:
        far = make(net, CARD, **options)
        found = everything(far, data, starts)
        assert not any(map(there.holds, found))
        assert there.computed > 500
    for a, b in zip(found, everything(near, data, starts), strict=True):
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_the_stand_in_is_strict() -> None:
    x = torch.ones(3)
    with card():
        far = x.to(CARD)
        with pytest.raises(RuntimeError, match="on the card and in memory"):
            far + x
        with pytest.raises(RuntimeError, match="on the card and in memory"):
            far.view(3, 1) @ torch.zeros(1, 3)
        assert (far + 1 + torch.tensor(1.0)).cpu().add(x).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("make", "module", "training"),
    [
        (fast, perceptron, Training(batch_size=2)),
        (fast, perceptron, Training(batch_size=2, momentum=0.5, weight_decay=0.1)),
        (fast, perceptron, Training(batch_size=None)),
        (loop, convolutions, Training(batch_size=2)),
        (loop, wide, Training(batch_size=2)),
    ],
)
def test_steps_neither_move_data_nor_wait_for_the_card(
    make: Callable[..., Trainer], module: Callable[[], nn.Module], training: Training
) -> None:
    """More steps take not one wait more, and no transfer but that of the samples' order, once a pass and client."""
    torch.manual_seed(0)
    net, data = module(), clients()
    counts = []
    for epochs in PASSES:
        with card() as there:
            trainer = make(net, CARD)
            start = trainer.layout.read(net)
            jobs = [TrainingJob(split, start, i) for i, split in enumerate(data)]
            trainer.train(jobs, replace(training, epochs=epochs), Reduction([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]))
            counts.append((len(there.transfers), len(there.waits)))
    few, many = counts
    assert many[0] - few[0] <= len(data) * (PASSES[1] - PASSES[0])
    assert many[1] == few[1] <= MOST_WAITS * len(data)


def test_transfers_and_waits_are_counted() -> None:
    x = torch.ones(3)
    with card() as there:
        far = x.to(CARD)
        far.cpu()
        assert len(there.transfers) == 2
        float(far.sum())
        far.tolist()
        assert len(there.waits) == 2


def federation() -> Federation:
    return Federation([Client(str(i), split, split, split) for i, split in enumerate(clients())], 3)


def architecture(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return perceptron()


def test_auto_is_the_processor_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = []
    for device in ("auto", "cpu"):
        engine = LocalEngine(federation(), architecture, device=device)
        assert engine.device == torch.device("cpu")
        model = engine.initial_model(0)
        requests = [Request(client, Train(model, Training(batch_size=4), 1)) for client in engine.clients]
        vectors = [reply.vector for block in engine.run(requests) for reply in block.replies]
        found.append(torch.stack([vector for vector in vectors if vector is not None]))
    assert torch.equal(*found)


def test_auto_is_cuda_where_torch_sees_it_and_no_processes_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device='cuda:2': torch sees cuda:0 to cuda:1 only"):
        choose_device("cuda:2")
    still = fast(perceptron(), torch.device("cpu"))  # nothing is computed here
    monkeypatch.setattr(local, "make_trainer", lambda *given: still)
    assert LocalEngine(federation(), architecture, workers="auto").workers == 1
    assert LocalEngine(federation(), architecture, workers=2).device == torch.device("cpu")
    with pytest.raises(ConfigError, match="workers=2 compute on the processor"):
        LocalEngine(federation(), architecture, workers=2, device="cuda")
    with pytest.raises(ConfigError, match="device='cuda' goes with engine='local'"):
        make_config({"engine": "ray", "device": "cuda"})


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "CUDA", "cpu:1", "meta", "cuda", "cuda:0"])
def test_a_device_that_is_not_there_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = "no CUDA device" if name in ("cuda", "cuda:0") else "expected auto, cpu, cuda or cuda:N"
    for attempt in (
        lambda: choose_device(name),
        lambda: LocalEngine(federation(), architecture, device=name),
        lambda: make_config({"device": name}),
    ):
        with pytest.raises(ConfigError, match=expected) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert repr(name) in str(caught.value)
    assert make_config({"device": "cpu"}).identity() == make_config({}).identity()


class Stop:
    """Ends a run after its first round."""

    def on_start(self, run: Any, done: int) -> None: ...

    def on_event(self, t: int, event: Any) -> None: ...

    def on_round(self, record: Any) -> None:
        raise KeyboardInterrupt

    def on_end(self, result: Any) -> None: ...


def test_a_run_is_resumed_at_any_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given: dict[str, Any] = {"scenario": "xor", "clients": 4, "samples": 10, "rounds": 2, "workers": 1}
    expected = coterie.run("fedavg", out=tmp_path / "whole", **given)

    with pytest.raises(KeyboardInterrupt):
        coterie.run("fedavg", out=tmp_path / "part", callbacks=[Stop()], **given)
    with pytest.raises(SystemExit) as caught:
        main(["resume", str(tmp_path / "part"), "--device", "cuda"])
    assert caught.value.code == 2
    assert "torch sees no CUDA device" in capfd.readouterr().err
    places = ["--workers", "1", "--engine", "local", "--memory", "1GB", "--device", "cpu"]
    main(["resume", str(tmp_path / "part"), "--data-dir", str(tmp_path), *places, "--quiet"])
    assert capfd.readouterr() == ("", "")
    for a, b in zip(expected.models, coterie.resume(tmp_path / "part").models, strict=True):
        assert torch.equal(a, b)


def test_every_place_is_an_option_of_resume_and_nothing_else_is() -> None:
    assert {option.name for option in resume.params} == PLACE_KEYS - {"out"} | LIMIT_KEYS | {"folder"}
