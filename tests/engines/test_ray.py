"""Ray actors on a real cluster of two nodes: the bits of the local engine, whatever happens to an actor."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.engines.buffers import GrowingBuffer, deserialise, serialise
from coterie.engines.local import BATCHED
from coterie.engines.ray import RayEngine
from coterie.engines.ray_worker import BlockRequest, RayWorker, serialise_shard
from coterie.errors import ConfigError, RunError
from coterie.models import build
from coterie.runs.assemble import assemble, make_federation
from coterie.runs.config import make_config
from coterie.runs.loop import execute
from coterie.tasks import Evaluate, Train
from coterie.tasks.base import Reply, ReplyBlock, Request
from coterie.trainers.base import Training
from method_specs import METHODS, spec_of

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("many_blocks")]
DIGITS, _ = make_federation(make_config({"scenario": "digits-permuted", "clients": 30, "samples": 40}))
SHARD_BYTES = 3 * 40 * 65 * 4
"""Room for two or three clients, so that blocks and shards do not end at the same clients."""


def perceptron(seed: int) -> nn.Module:
    return build("mlp:hidden=16", DIGITS.input_shape, DIGITS.classes, seed)


@pytest.fixture(scope="module", autouse=True)
def _own_folder() -> Iterator[None]:
    """Sockets and logs in a folder of these tests' own: no other Ray on the machine finds this one, nor it another."""
    folder = tempfile.mkdtemp(prefix="ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_is_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send evaluations to the actors however little there is to do: the tests' federations are small."""
    monkeypatch.setattr("coterie.engines.ray.WORK_FOR_ACTORS", 0)


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    from ray.cluster_utils import Cluster

    # Not 127.0.0.1, for which Ray would put an address that can be reached from outside.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.2"}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        made = RayEngine(DIGITS, perceptron, address=cluster.address, shard_bytes=SHARD_BYTES)
        yield made
        made.close()
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def training_requests(engine: LocalEngine, steps: int) -> list[Request]:
    model, training = engine.initial_model(0), Training(steps=steps, batch_size=8)
    return [Request(c, Train(model, training, i)) for i, c in enumerate(engine.clients)]


def replies_of(engine: LocalEngine, requests: Sequence[Request]) -> list[Reply]:
    return [reply for block in engine.run(requests) for reply in block.replies]


def bits(replies: Sequence[Reply]) -> list[Any]:
    return [
        (r.client, r.samples, repr(r.values), r.group, b"" if r.vector is None else r.vector.numpy().tobytes())
        for r in replies
    ]


def kept_bytes(state: dict[str, Any]) -> dict[str, Any]:
    """What a client keeps, with tensors as bytes."""
    return {key: value.numpy().tobytes() if isinstance(value, Tensor) else value for key, value in state.items()}


def outcome(engine: LocalEngine, method: str, **options: Any) -> tuple[Any, ...]:
    """Everything that three rounds of a method leave, in bytes."""
    engine.restore_client_states({})
    given = {"method": method, "model": "mlp:hidden=16", "rounds": 3, "seed": 5, "workers": 1} | options
    run, _ = assemble(make_config(given), federation=DIGITS)
    engine.traffic.drain()
    result = execute(replace(run, server=replace(run.server, engine=engine)))
    states = {c: kept_bytes(state) for c, state in engine.client_states().items()}
    history = [replace(line, seconds=0.0) for line in result.history]
    return [m.numpy().tobytes() for m in result.models], result.clusters, repr(history), states


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_bits_of_the_local_engine(
    engine: RayEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.clustering.manifold._UMAP_NEEDS", 10**9)  # FLT's layout without UMAP, in this process
    monkeypatch.setattr("coterie.methods.flt.import_umap", lambda: None)
    options: dict[str, Any] = {"participation": 0.6, "batch_size": "full" if name == "ifca" else 20}
    expected = outcome(LocalEngine(DIGITS, perceptron), spec_of(name), **options)
    assert outcome(engine, spec_of(name), **options) == expected
    assert bool(expected[3]) == (name in {"auto", "ditto", "fedper", "fedsoft", "local", "oneshot"})


def test_there_is_an_actor_on_each_node(engine: RayEngine) -> None:
    outcome(engine, "fedavg")
    assert engine._pool is not None

    def where(_: RayWorker) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    nodes = {ray.get(actor.handle.__ray_call__.remote(where)) for actor in engine._pool._actors}
    assert len(nodes) == 2


def test_two_blocks_go_to_two_actors(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for answers, so that the actor that answers first does not get both."""
    replies_of(engine, training_requests(engine, 1))
    assert engine._pool is not None
    pool, held = engine._pool, []
    wait: Any = pool.collect
    monkeypatch.setattr(pool, "collect", lambda now: (held.append([len(a.blocks) for a in pool._actors]), wait(now)))
    requests = training_requests(engine, 1)[: 2 * BATCHED]
    assert len(replies_of(engine, requests)) == len(requests)
    assert held[0] == [1, 1]


def test_a_brief_evaluation_is_done_here(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    replies_of(engine, training_requests(engine, 1))
    assert engine._pool is not None
    before = engine._pool.runs
    requests = [Request(client, Evaluate(engine.initial_model(0)[None])) for client in engine.clients]
    travelled = bits(replies_of(engine, requests))
    assert engine._pool.runs == before + 1
    monkeypatch.setattr("coterie.engines.ray.WORK_FOR_ACTORS", 10**9)
    assert bits(replies_of(engine, requests)) == travelled
    assert engine._pool.runs == before + 1
    replies_of(engine, training_requests(engine, 1))
    assert engine._pool.runs == before + 2


def test_a_killed_actor_changes_nothing(engine: RayEngine) -> None:
    requests = training_requests(engine, steps=800) * 2  # enough work for many blocks
    expected = bits(replies_of(LocalEngine(DIGITS, perceptron), requests))
    replies_of(engine, training_requests(engine, 1))
    assert engine._pool is not None
    pool = engine._pool
    pids = {actor.handle: ray.get(actor.handle.pid.remote()) for actor in pool._actors}
    replies = []
    for number, block in enumerate(engine.run(requests)):
        replies += block.replies
        if number == 0:
            victim = max(pool._actors, key=lambda actor: len(actor.blocks))
            assert victim.blocks
            os.kill(pids[victim.handle], signal.SIGKILL)
    assert bits(replies) == expected
    assert victim not in pool._actors
    assert bits(replies_of(engine, requests)) == expected


def test_a_block_that_every_actor_dies_of_ends_the_run(engine: RayEngine) -> None:
    """The first block takes for ever; whoever has it is killed."""
    model = engine.initial_model(0)
    requests = [Request(engine.clients[0], Train(model, Training(steps=10**9, batch_size=None), 0))]
    over = threading.Event()

    def murder() -> None:
        while not over.is_set():
            for actor in engine._pool._actors if engine._pool else []:
                if actor.blocks:
                    ray.kill(actor.handle)
            time.sleep(0.05)

    murderer = threading.Thread(target=murder)
    replies_of(engine, training_requests(engine, 1))
    murderer.start()
    try:
        with pytest.raises(RunError, match="3 Ray actors died on the block of client"):
            replies_of(engine, requests)
    finally:
        over.set()
        murderer.join()
    assert len(replies_of(engine, training_requests(engine, 1))) == len(DIGITS)


@dataclass(frozen=True)
class Unheard(Evaluate):
    """A task of a module that no actor can import."""

    def perform(self, tasks: Any, contexts: Any, trainer: Any, reduce: Any = None) -> ReplyBlock:
        if self.part == "validation":
            raise ZeroDivisionError("a task of the user's own")
        return super().perform(tasks, contexts, trainer, reduce)


def test_what_an_actor_cannot_do_is_done_here_where_its_error_shows(engine: RayEngine) -> None:
    models = engine.initial_model(0)[None]
    client = engine.clients[0]
    with pytest.warns(UserWarning, match="done here"):
        here = replies_of(engine, [Request(client, Unheard(models))])
    assert bits(here) == bits(replies_of(engine, [Request(client, Evaluate(models))]))
    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        replies_of(engine, [Request(client, Unheard(models, "validation"))])


def test_a_run_given_up_and_a_run_inside_a_run(engine: RayEngine) -> None:
    requests = training_requests(engine, steps=5)
    expected = bits(replies_of(LocalEngine(DIGITS, perceptron), requests))
    run = engine.run(requests)
    next(run)
    assert bits(replies_of(engine, requests)) == expected
    del run
    assert bits(replies_of(engine, requests)) == expected


def test_an_actor_keeps_what_came_first_within_its_budget(engine: RayEngine) -> None:
    """The class of the actors, here in this process, with shards from the real object store."""
    local = LocalEngine(DIGITS, perceptron)
    clients = DIGITS.clients[:3]
    shards = {i: ray.put(serialise_shard([c])) for i, c in enumerate(clients)}
    size = sum(t.numel() * t.element_size() for s in (clients[0].train, clients[0].validation, clients[0].test)
               for t in (s.x, s.y))  # fmt: skip
    worker = RayWorker(lambda: local.trainer, 2 * size)
    for i in (0, 1, 2, 1):
        request = Request(clients[i].id, Train(local.initial_model(0), Training(steps=3), i))
        data, memory = serialise(([request], {}, None))
        packed, tensors, held = worker.do(BlockRequest(1, data, memory, {i: shards[i]}), GrowingBuffer().seal())
        assert held == ([0] if i == 0 else [0, 1])
        assert bits(deserialise(packed, tensors)[0].replies) == bits(replies_of(local, [request]))


class Halves(nn.Module):
    """Writes to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1).mul_(0.5))  # type: ignore[no-any-return]


def test_data_is_read_in_the_store_only_where_no_users_code_could_write_to_it() -> None:
    batched, other = LocalEngine(DIGITS, perceptron), LocalEngine(DIGITS, lambda seed: Halves())
    scored = LocalEngine(DIGITS, perceptron, metrics={"own": lambda outputs, labels: 0.0})
    found = [RayWorker(lambda local=local: local.trainer, 0)._in_place for local in (batched, other, scored)]
    assert found == [True, False, False]


def test_a_cluster_that_is_not_there_fails_with_one_line(engine: RayEngine) -> None:
    for address, hint in (("127.0.0.1:1", "no answer at"), ("nowhere", "expected host:port")):
        with pytest.raises(ConfigError, match=hint) as caught:
            RayEngine(DIGITS, perceptron, address=address)
        assert "\n" not in str(caught.value)
        assert address in str(caught.value)


def test_options_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="goes with engine='ray'"):
        make_config({"ray_address": "auto"})
    with pytest.raises(ConfigError, match="workers=0"):
        RayEngine(DIGITS, perceptron, workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "coterie\[ray\]"'):
        RayEngine(DIGITS, perceptron)
