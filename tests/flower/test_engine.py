"""The engine on a grid: the same clusters and models as on this machine, and faults that stop nobody else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from flower_trials import MODEL, QUICK, TRAINING, SlowGrid, assert_same, both, digits, grid_of, tampering
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

import coterie
from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.flower import FlowerEngine, InProcessGrid, client_app
from coterie.flower.client import STATE
from coterie.flower.directory import natural
from coterie.flower.server import run_on
from coterie.flower.wire import open_array, pack_array
from coterie.runs.assemble import make_architecture
from coterie.tasks import Evaluate, Train
from coterie.tasks.base import Reply, Request
from coterie.trainers.base import Training
from method_specs import METHODS, spec_of

HOW = Training(lr=0.1, epochs=1)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


def engine_on(grid: InProcessGrid, federation: Federation, **options: Any) -> FlowerEngine:
    settings: dict[str, Any] = {"timeout": 0.25, "poll": 0.02} | options
    return FlowerEngine(grid, make_architecture(MODEL, federation), **settings)


def trained(engine: FlowerEngine, clients: tuple[str, ...] | None = None) -> list[Reply]:
    model = engine.initial_model(1)
    requests = [Request(client, Train(model, HOW, 7)) for client in clients or engine.clients]
    return [reply for block in engine.run(requests) for reply in block.replies]


@pytest.mark.parametrize(
    "method", [*(spec_of(name) for name in METHODS if name != "local"), "fedcuau:clusters=2,base=fedper"]
)
def test_a_method_does_the_same_on_the_grid_as_here(method: str, federation: Federation) -> None:
    """All but local training, whose models stay with the clients: that is the next test."""
    here, there = both(method, federation, 3)
    assert_same(here, there)
    if method.startswith("cfl"):
        assert len(there.clusters) == 2
    if "fedper" in method:  # the private heads count: each client is judged with its own
        assert [row.accuracy for row in there.clients] == pytest.approx([row.accuracy for row in here.clients])


def test_models_of_clients_that_train_alone_are_the_same_and_stay_with_them(federation: Federation) -> None:
    given = TRAINING | {"method": "local", "rounds": 2}
    here, grid = coterie.run(federation=federation, workers=1, **given), grid_of(federation)
    there = run_on(grid, given | QUICK)
    assert there.clusters == here.clusters
    assert [record.bytes for record in there.history] == [record.bytes for record in here.history]
    assert [row.loss for row in there.clients] == pytest.approx([row.loss for row in here.clients], rel=1e-5)
    for model, known, context in zip(here.models, there.models, grid.contexts.values(), strict=True):
        assert torch.allclose(open_array(context.state[STATE]["private"]), model, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(known, model, atol=1e-3)  # the server knows the initial model only


def test_some_of_the_clients_in_a_round_and_their_own_fine_tuning_in_the_end_are_the_same_too() -> None:
    here, there = both("fedavg", digits(11), 3, participation=0.4, personalise=1)
    assert_same(here, there)
    assert there.summary.personalised is not None
    assert here.summary.personalised is not None
    assert there.summary.personalised.mean == pytest.approx(here.summary.personalised.mean)


def test_numbers_in_ids_are_sorted_as_numbers() -> None:
    names = ["client-10", "client-2", "b", "3", "20", "client-2a"]
    assert sorted(names, key=natural) == ["3", "20", "b", "client-2", "client-2a", "client-10"]


def nan_vector(message: Message) -> Message:
    size = message.content["arrays"]["vector"].shape[0]
    message.content["arrays"] = ArrayRecord({"vector": pack_array(torch.full((size,), math.nan))})
    return message


def oversized(message: Message) -> Message:
    message.content["arrays"] = ArrayRecord({"vector": pack_array(torch.ones(10**6))})
    return message


def wrong_names(message: Message) -> Message:
    message.content["arrays"] = ArrayRecord({"0.weight": message.content["arrays"]["vector"]})
    return message


def garbage(message: Message) -> Message:
    shape = message.content["arrays"]["vector"].shape
    message.content["arrays"] = ArrayRecord({"vector": Array("float32", tuple(shape), "numpy.ndarray", b"\x00junk")})
    return message


def emptied(message: Message) -> Message:
    message.content = RecordDict()
    return message


def boastful(message: Message) -> Message:
    message.content["values"] = MetricRecord(dict(message.content["values"]) | {"loss": math.inf})
    return message


def impostor(message: Message) -> Message:
    message.metadata.__dict__["_src_node_id"] = 4711
    return message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nan_vector, "not finite"),
        (oversized, "shape"),
        (wrong_names, "expected vector"),
        (garbage, "bytes"),
        (emptied, "expected arrays, values"),
        (boastful, "loss is not finite"),
        (impostor, "another node"),
        (lambda message: None, "did not answer"),
    ],
)
def test_a_bad_reply_is_a_fault_and_enters_no_sum(
    change: Callable[[Message], Message | None], reason: str, federation: Federation
) -> None:
    sound = trained(engine_on(grid_of(federation), federation))
    engine = engine_on(grid_of(federation, tamper=tampering(1003, change)), federation)
    replies = trained(engine)
    assert [reply.client for reply in replies] == [c for c in federation.ids if c != "client-2"]
    for reply, expected in zip(replies, [r for r in sound if r.client != "client-2"], strict=True):
        assert torch.equal(reply.vector, expected.vector)  # type: ignore[arg-type]
    (fault,) = engine.faults()
    assert fault.client == "client-2"
    assert reason in fault.reason
    assert engine.faults() == []


def test_a_norm_is_computed_here_and_not_taken_on_trust(federation: Federation) -> None:
    def liar(message: Message) -> Message:
        message.content["values"]["norm"] = 1e9
        return message

    engine = engine_on(grid_of(federation, tamper=tampering(1001, liar)), federation)
    replies = trained(engine)
    assert len(replies) == 5
    assert all(reply.norm == pytest.approx(float(reply.vector.norm())) for reply in replies)  # type: ignore[union-attr]


def test_a_run_goes_on_without_a_malicious_client_and_equals_the_one_where_it_never_answers(
    federation: Federation,
) -> None:
    options = TRAINING | {"method": "fedavg", "rounds": 2} | QUICK
    attacked, silent = (
        run_on(grid_of(federation, tamper=tampering(1001, change)), options)
        for change in (_spoilt, lambda message: None if _trained(message) else message)
    )
    assert torch.equal(attacked.models[0], silent.models[0])
    assert all("client-0" in {fault.client for fault in record.faults} for record in attacked.history)


def _spoilt(message: Message) -> Message:
    return nan_vector(message) if _trained(message) else message


def _trained(message: Message) -> bool:
    return "vector" in message.content.get("arrays", {})


def test_too_few_sound_replies_end_the_run_and_say_so(federation: Federation) -> None:
    def tamper(message: Message) -> Message:
        bad = message.metadata.message_type == "query.coterie" and message.metadata.src_node_id < 1005
        return emptied(message) if bad else message

    assert len(trained(engine_on(grid_of(federation, tamper=tamper), federation, min_replies=2))) == 2
    assert len(trained(engine_on(grid_of(federation, tamper=tamper), federation, min_replies=0.3))) == 2
    for least in (0.5, 3):
        with pytest.raises(RunError, match=r"only 2 of 6 .* 3 are needed.*client-3"):
            trained(engine_on(grid_of(federation, tamper=tamper), federation, min_replies=least))


def test_a_late_node_is_not_asked_again_before_it_has_answered_who_it_is(federation: Federation) -> None:
    grid = SlowGrid(client_app(MODEL, federation), node_configs=[{"client": c} for c in federation.ids])
    engine = engine_on(grid, federation)
    grid.slow = frozenset({1002})
    assert len(trained(engine)) == 5
    asked = len(grid._sent)
    assert len(trained(engine)) == 5
    assert len(grid._sent) == asked  # nothing was sent to it
    engine.refresh()
    assert engine.clients == federation.ids  # it stays a client
    assert [fault.client for fault in engine.faults()] == ["client-1", "client-1"]
    grid.slow = frozenset()
    engine.refresh()
    assert len(trained(engine)) == 6
    assert engine.faults() == []


def test_a_late_reply_of_an_earlier_round_is_never_counted(federation: Federation) -> None:
    grid = SlowGrid(client_app(MODEL, federation), node_configs=[{"client": c} for c in federation.ids])
    engine = engine_on(grid, federation)
    first = trained(engine)
    grid.slow = frozenset({1002})
    trained(engine)
    grid.slow = frozenset()
    engine.refresh()
    model = engine.initial_model(9)
    (again,) = next(iter(engine.run([Request("client-1", Train(model, HOW, 8))]))).replies
    assert not torch.equal(again.vector, first[1].vector)  # type: ignore[arg-type]


def test_a_client_with_faults_round_after_round_is_taken_for_gone(federation: Federation) -> None:
    engine = engine_on(grid_of(federation, tamper=tampering(1003, emptied)), federation)
    for _ in range(3):
        assert "client-2" in engine.clients
        trained(engine)
        engine.refresh()
    assert "client-2" not in engine.clients
    assert "3 rounds" in engine.faults()[0].reason
    engine.refresh()
    assert len(trained(engine)) == 5


def test_a_silent_client_that_is_taken_for_gone_comes_back_when_it_speaks(federation: Federation) -> None:
    grid = SlowGrid(client_app(MODEL, federation), node_configs=[{"client": c} for c in federation.ids])
    engine = engine_on(grid, federation)
    grid.slow = frozenset({1003})
    for _ in range(3):
        trained(engine)
        engine.refresh()
    assert "client-2" not in engine.clients
    grid.slow = frozenset()
    engine.refresh()
    assert engine.clients == federation.ids
    assert len(trained(engine)) == 6


def test_nodes_come_and_go_between_rounds_only(federation: Federation) -> None:
    grid = grid_of(federation, federation.ids[:4])
    engine = engine_on(grid, federation)
    assert engine.clients == federation.ids[:4]
    grid.join({"client": "client-5"})
    grid.leave(1001)
    assert engine.clients == federation.ids[:4]
    assert [reply.client for reply in trained(engine)] == ["client-1", "client-2", "client-3"]
    engine.refresh()
    assert engine.clients == ("client-1", "client-2", "client-3", "client-5")
    assert len(trained(engine)) == 4


def test_a_second_node_with_the_id_of_one_that_is_here_is_left_out_until_that_one_goes(federation: Federation) -> None:
    grid = grid_of(federation, [*federation.ids, "client-3"])
    engine = engine_on(grid, federation, min_nodes=6)
    assert engine.clients == federation.ids
    (fault,) = engine.faults()
    assert fault.client == "node 1007"
    assert "already here" in fault.reason
    engine.refresh()
    assert engine.faults() == []
    grid.leave(1004)
    engine.refresh()
    assert engine.clients == federation.ids
    assert engine.directory.node_of("client-3") == 1007
    assert len(trained(engine)) == 6


def test_descriptions_that_make_no_sense_are_left_out(federation: Federation) -> None:
    changes: dict[int, dict[str, Any]] = {
        1001: {"client": ""},
        1002: {"train": 0},
        1003: {"shape": [3]},
        1004: {"classes": 2**40},
    }

    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "query.describe":
            message.content["client"].update(changes.get(message.metadata.src_node_id, {}))
        return message

    engine = engine_on(grid_of(digits(8), tamper=tamper), federation)
    assert engine.clients == ("client-4", "client-5", "client-6", "client-7")
    assert {fault.client for fault in engine.faults()} == {f"node {node}" for node in changes}


def test_a_client_with_more_classes_than_the_model_cannot_join(federation: Federation) -> None:
    grid = grid_of(federation)
    engine = engine_on(grid, federation)

    def tamper(message: Message) -> Message:
        message.content["client"]["classes"] = 11
        return message

    grid.tamper = tampering(1007, tamper, "describe")
    grid.join({"client": "client-0"})
    engine.refresh()
    assert "11 classes" in engine.faults()[0].reason


def test_a_model_that_has_become_nan_has_an_infinite_loss_and_no_data_an_unknown_one(federation: Federation) -> None:
    engine = engine_on(grid_of(federation), federation)
    models = torch.stack([engine.initial_model(0), torch.full((engine.layout.size,), math.nan)])
    (reply,) = next(iter(engine.run([Request("client-0", Evaluate(models, "train"))]))).replies
    assert math.isfinite(reply.values["loss"][0])
    assert reply.values["loss"][1] == math.inf
    assert reply.samples == len(federation["client-0"].train)


def test_with_privacy_the_server_sees_masked_vectors_only_and_the_run_is_the_same_for_any_secret(
    federation: Federation,
) -> None:
    options = TRAINING | {"method": "fedavg", "rounds": 3, "privacy": "permutation"} | QUICK
    ids = [{"client": client} for client in federation.ids]
    results, grids = [], []
    for secret in ("one", "two"):
        app = client_app(MODEL, federation, secret=secret)
        grids.append(InProcessGrid(app, node_configs=ids, run_config={"privacy": "permutation"}))
        results.append(run_on(grids[-1], options))
    assert results[0].layout.layers == ("(masked)",)
    assert not torch.equal(results[0].models[0], results[1].models[0])
    for result in results:  # trained, from a proper initial model
        losses = [record.loss.mean for record in result.history]
        assert losses[-1] < losses[0]
    plain = engine_on(grid_of(federation), federation)
    assert not set(plain.initial_model(5).tolist()) & set(results[0].models[0].tolist())
    with pytest.raises(RunError, match="privacy"):
        run_on(grids[0], options | {"privacy": "none"})


def test_bad_settings_are_named(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        engine_on(grid_of(federation), federation, timeout=0)
    with pytest.raises(RunError, match=r"6 clients came .* 9 are needed"):
        engine_on(grid_of(federation), federation, min_nodes=9)


@pytest.mark.parametrize("private", [(), ("head",)])
def test_a_row_that_goes_to_many_clients_is_packed_once(private: tuple[str, ...], federation: Federation) -> None:
    sent: list[Array] = []

    class Watched(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            messages = list(messages)
            sent.extend(message.content["tensors"]["model"] for message in messages if "tensors" in message.content)
            return super().push_messages(messages)

    grid = Watched(client_app(MODEL, federation), node_configs=[{"client": client} for client in federation.ids])
    engine = engine_on(grid, federation)
    models = torch.stack([engine.initial_model(1)] * 2)
    init = 1 if private else None
    requests = [Request(c, Train(models[i % 2], HOW, 7, private, init=init)) for i, c in enumerate(engine.clients)]
    assert len([reply for block in engine.run(requests) for reply in block.replies]) == 6
    assert len(sent) == 6
    assert len({id(array) for array in sent}) == 2
    assert sent[0] is sent[2] is sent[4]
