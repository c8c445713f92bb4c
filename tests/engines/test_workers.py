"""Worker processes: the same bits for any number of them, whatever happens to one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.engines.spawning import pack_inheritance, unpack_inheritance
from coterie.errors import ConfigError, ModelError, RunError
from coterie.federation import Client, Federation, Split
from coterie.models import build
from coterie.tasks import Choose, Evaluate, Gradient, Train
from coterie.tasks.base import Reply, Request
from coterie.trainers.base import Training
from coterie.trainers.losses import softmax_loss

pytestmark = pytest.mark.usefixtures("many_blocks")
CLIENTS = 40


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(CLIENTS):
        n = 6 + 4 * (i % 7)
        train = Split(torch.randn(n, 8, generator=generator), torch.randint(3, (n,), generator=generator))
        clients.append(Client(f"c{i}", train, train, train))
    return Federation(clients, 3)


def perceptron(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def any_module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Sigmoid(), nn.Linear(6, 3))


def requests_of(engine: LocalEngine, private: tuple[str, ...] = ()) -> list[Request]:
    models = torch.stack([engine.initial_model(seed) for seed in range(3)])
    batches, full = Training(batch_size=4, epochs=2), Training(batch_size=None, steps=6)
    requests = [Request(c, Train(models[0], batches, i, private)) for i, c in enumerate(engine.clients)]
    requests += [Request(c, Choose(models, full, i)) for i, c in enumerate(engine.clients)]
    requests += [Request(c, Evaluate(models)) for c in engine.clients]
    return requests + [Request(c, Gradient(models[1])) for c in engine.clients]


def replies_of(engine: LocalEngine, requests: Sequence[Request]) -> list[Reply]:
    return [reply for block in engine.run(requests) for reply in block.replies]


def same(a: Sequence[Reply], b: Sequence[Reply]) -> bool:
    def bits(vector: Tensor | None) -> bytes:
        return b"" if vector is None else vector.contiguous().numpy().tobytes()

    return [(r.client, r.samples, r.values, r.group, bits(r.vector)) for r in a] == [
        (r.client, r.samples, r.values, r.group, bits(r.vector)) for r in b
    ]


@pytest.fixture
def engines() -> Iterator[list[LocalEngine]]:
    made: list[LocalEngine] = []
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("architecture", [perceptron, any_module])
def test_any_number_of_workers_gives_the_same_bits(architecture, engines: list[LocalEngine]) -> None:  # type: ignore[no-untyped-def]
    data = federation()
    results = []
    for workers in (1, 2, 3):
        engine = LocalEngine(data, architecture, workers=workers)
        engines.append(engine)
        results.append([replies_of(engine, requests_of(engine)) for _ in range(2)])
    assert len(results[0][0]) == 4 * CLIENTS
    assert all(same(results[0][0], run) for result in results for run in result)
    assert len({engine.traffic.drain() for engine in engines}) == 1
    assert len(list(engines[0].run(requests_of(engines[0])))) >= 8  # blocks, so that there was work for all


def test_private_layers_travel_with_the_client(engines: list[LocalEngine]) -> None:
    data = federation()
    one, two = LocalEngine(data, perceptron), LocalEngine(data, perceptron, workers=2)
    engines += [one, two]
    for _ in range(3):
        results = []
        for engine in (one, two):
            requests = requests_of(engine, private=("2",))[:CLIENTS]
            requests = [request for request in requests if int(request.client[1:]) % 3]
            results.append(replies_of(engine, requests))
        assert same(*results)
    states = one.client_states()
    assert states.keys() == two.client_states().keys() == {f"c{i}" for i in range(CLIENTS) if i % 3}
    for client, state in two.client_states().items():
        assert torch.equal(state["private"], states[client]["private"])
    model = one.initial_model(0)
    requests = [Request(c, Evaluate(model.unsqueeze(0), private=("2",))) for c in one.clients]
    assert same(replies_of(one, requests), replies_of(two, requests))


def test_a_client_asked_twice_keeps_the_order_of_its_states(engines: list[LocalEngine]) -> None:
    data = federation()
    one, two = LocalEngine(data, perceptron), LocalEngine(data, perceptron, workers=2)
    engines += [one, two]
    requests = requests_of(one, private=("2",))[:CLIENTS] * 3
    assert same(replies_of(one, requests), replies_of(two, requests))


def test_a_killed_worker_changes_nothing(engines: list[LocalEngine]) -> None:
    def slow_in_workers(outputs: Tensor, targets: Tensor) -> Tensor:
        if os.getpid() != parent:
            time.sleep(0.01)
        return softmax_loss(outputs, targets)

    parent = os.getpid()
    data = federation()
    one = LocalEngine(data, perceptron, loss=slow_in_workers)
    two = LocalEngine(data, perceptron, loss=slow_in_workers, workers=2)
    engines += [one, two]
    model = one.initial_model(0)
    requests = [Request(c, Train(model, Training(steps=1), i)) for i, c in enumerate(one.clients)]
    expected = replies_of(one, requests)
    replies: list[Reply] = []
    killed = []
    for number, block in enumerate(two.run(requests)):
        replies += block.replies
        if number in (1, 5):
            assert two._pool is not None
            at_work = max(two._pool._workers, key=lambda worker: len(worker.blocks))
            assert at_work.blocks
            killed.append(at_work.process.pid)
            os.kill(killed[-1], signal.SIGKILL)
    assert len(killed) == 2
    assert same(expected, replies)
    assert same(expected, replies_of(two, requests))
    assert two._pool is not None
    assert len(two._pool.pids) == 2
    assert not set(killed) & set(two._pool.pids)


def test_a_stopped_worker_is_noticed_and_replaced(engines: list[LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engines.pool.LOOK_SECONDS", 0.1)
    engine = LocalEngine(federation(), perceptron, workers=2)
    engines.append(engine)
    requests = requests_of(engine)
    expected = replies_of(engine, requests)
    assert engine._pool is not None
    stopped = engine._pool.pids[0]
    os.kill(stopped, signal.SIGSTOP)
    with pytest.warns(UserWarning, match=f"worker {stopped} was stopped"):
        assert same(expected, replies_of(engine, requests))
    assert stopped not in engine._pool.pids


def test_spawned_workers_give_the_same_bits(engines: list[LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    data = federation()
    one = LocalEngine(data, perceptron, privacy="permutation", secret=1)
    two = LocalEngine(data, perceptron, privacy="permutation", secret=1, workers=2)
    engines += [one, two]
    monkeypatch.setenv("COTERIE_START_METHOD", "spawn")
    assert same(replies_of(one, requests_of(one)), replies_of(two, requests_of(two)))
    assert two._pool is not None
    assert two._pool._context.get_start_method() == "spawn"


def test_a_model_from_a_file_can_be_sent_to_a_spawned_worker(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from torch import nn\nclass Own(nn.Linear): pass\ndef make(): return Own(8, 3)\n")
    modules = [build(f"{file}:make", (8,), 3, seed) for seed in (0, 1)]
    engine = LocalEngine(federation(), lambda seed: modules[seed])
    packed = pack_inheritance(engine.contexts, partial(engine._trainer_maker(None), 0))
    name = type(modules[0]).__module__
    del sys.modules[name]  # as in a process that inherits nothing
    contexts, make_trainer = unpack_inheritance(packed)
    assert list(contexts) == list(engine.clients)
    assert make_trainer().layout == engine.layout
    assert name in sys.modules


def test_spawned_workers_need_what_can_be_sent(engines: list[LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(federation(), perceptron, loss=lambda outputs, targets: outputs.sum(), workers=2)
    engines.append(engine)
    monkeypatch.setenv("COTERIE_START_METHOD", "spawn")
    with pytest.raises(RunError, match="spawned workers cannot be sent the model, the loss or a metric"):
        replies_of(engine, requests_of(engine))
    monkeypatch.setenv("COTERIE_START_METHOD", "spoon")
    with pytest.raises(ConfigError, match="COTERIE_START_METHOD='spoon': expected fork or spawn"):
        replies_of(engine, requests_of(engine))


def test_a_worker_killed_between_runs_is_replaced(engines: list[LocalEngine]) -> None:
    engine = LocalEngine(federation(), perceptron, workers=2)
    engines.append(engine)
    requests = requests_of(engine)
    expected = replies_of(engine, requests)
    assert engine._pool is not None
    for pid in engine._pool.pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    assert same(expected, replies_of(engine, requests))


def test_a_block_that_kills_every_worker_ends_the_run(engines: list[LocalEngine]) -> None:
    def deadly(outputs: Tensor, targets: Tensor) -> Tensor:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return outputs.sum()

    parent = os.getpid()
    engine = LocalEngine(federation(), perceptron, loss=deadly, workers=2)
    engines.append(engine)
    with pytest.raises(RunError, match="3 workers died"):
        replies_of(engine, requests_of(engine))


def test_an_error_in_a_worker_is_raised_here(engines: list[LocalEngine], capfd: pytest.CaptureFixture[str]) -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError("a loss of the user's own")

    engine = LocalEngine(federation(), perceptron, loss=broken, workers=2)
    engines.append(engine)
    with pytest.raises(ModelError, match=r"client 'c0': the loss raised ZeroDivisionError: a loss of the user's own"):
        replies_of(engine, requests_of(engine))
    assert capfd.readouterr().err == ""


def test_a_run_given_up_and_a_run_inside_a_run(engines: list[LocalEngine]) -> None:
    data = federation()
    one, two = LocalEngine(data, perceptron), LocalEngine(data, perceptron, workers=2)
    engines += [one, two]
    requests = requests_of(one)
    expected = replies_of(one, requests)
    run = two.run(requests)
    next(run)
    assert same(expected, replies_of(two, requests))
    del run
    assert same(expected, replies_of(two, requests))


def test_no_process_outlives_its_engine() -> None:
    def alive(pid: int) -> bool:
        return os.path.exists(f"/proc/{pid}")

    data = federation()
    engine = LocalEngine(data, perceptron, workers=3)
    replies_of(engine, requests_of(engine))
    assert engine._pool is not None
    pids = engine._pool.pids
    assert all(map(alive, pids))
    engine.close()
    assert not any(map(alive, pids))
    forgotten = LocalEngine(data, perceptron, workers=2)
    replies_of(forgotten, requests_of(forgotten))
    assert forgotten._pool is not None
    pids = forgotten._pool.pids
    del forgotten
    assert not any(map(alive, pids))


def test_workers_end_when_the_parent_is_killed() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        engine = LocalEngine(federation(), perceptron, workers=2)
        replies_of(engine, requests_of(engine))
        assert engine._pool is not None
        os.write(write, ",".join(map(str, engine._pool.pids)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    pids = [int(pid) for pid in os.read(read, 100).decode().split(",")]
    os.waitpid(child, 0)

    def running(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, pids))


def test_little_work_stays_here_and_much_goes_to_workers(engines: list[LocalEngine]) -> None:
    engine = LocalEngine(federation(), perceptron, workers="auto")
    engines.append(engine)
    replies_of(engine, requests_of(engine))
    assert engine._pool is None
    model = engine.initial_model(0)
    long = [Request(c, Train(model, Training(steps=10**6), 0)) for c in engine.clients]
    here = engine.contexts
    costs = [[r.task.cost(here[r.client].client) for r in some] for some in (long, requests_of(engine))]
    assert engine._work(costs[0]) > 10 * engine._work(costs[1])


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    engine = LocalEngine(federation(), perceptron)
    for _ in engine.run(requests_of(engine)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("given", [{"workers": 0}, {"workers": "many"}, {"precision": "float16"}])
def test_wrong_options_are_named(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        LocalEngine(federation(), perceptron, **given)  # type: ignore[arg-type]
