"""Parties that do not keep to the protocol of secure sums: each is named, and the others' sum is what it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import Federation
from coterie.engines.base import Fault
from coterie.engines.secure_exchange import Cluster, SecureExchange
from coterie.parameters import Layout
from coterie.privacy.secure_sum import (
    NotOpened,
    Quantiser,
    SecureClient,
    Shares,
    box_text,
    seal,
    signed,
)
from coterie.privacy.secure_tasks import (
    CheckShares,
    Masked,
    Reveal,
    ShareSecrets,
    as_bytes,
    as_numbers,
    open_keys,
    pieces,
    remembered,
    task_digest,
)
from coterie.tasks.base import ClientContext, Number, Reduction, Reply, ReplyBlock, ReplySchema, Request, Task

NODES = 9
SIZE = 50
FEDERATION = Federation.from_tensors(
    [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(NODES)], splits=(1, 0, 0)
)
IDS = FEDERATION.ids
VECTORS = dict(zip(IDS, np.random.default_rng(0).normal(0, 0.3, (NODES, SIZE)), strict=True))
Tamper = Callable[[str, Task, Reply, dict[str, Tensor]], Reply | None]


@dataclass(frozen=True)
class Give(Task):
    """Send the client's vector."""

    model: Tensor
    seed: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(SIZE, {"loss": Number()})

    def perform(self, tasks: Any, contexts: Sequence[ClientContext], trainer: Any, reduce: Any = None) -> ReplyBlock:
        own = [context.client.id for context in contexts]
        values = {"loss": 1.0, "norm": 1.0}
        return ReplyBlock([Reply(client, 1, torch.from_numpy(VECTORS[client]), values) for client in own], {})


class Trainer:
    """As much of a trainer as the exchanges look at."""

    sum_rules = None
    layout = None


class Network:
    """Nine nodes, and a hook on what they send."""

    def __init__(self, tamper: Tamper | None = None) -> None:
        self.contexts = {client.id: ClientContext(client, {}) for client in FEDERATION}
        self.tamper = tamper
        self.faults: list[Fault] = []
        self.blamed: dict[str, str] = {}

    def carry(self, requests: Sequence[Request]) -> Iterator[ReplyBlock]:
        replies = []
        for client, task in requests:
            context = self.contexts[client]
            try:
                reply = task.answer(context, Trainer())  # type: ignore[arg-type]
            except NotOpened as problem:
                self.faults.append(Fault(client, str(problem)))
                continue
            found = reply if self.tamper is None else self.tamper(client, task, reply, context.state)
            replies += [] if found is None else [found]
        yield ReplyBlock(replies, {})

    def sum(self, weights: Sequence[float] = (1.0,) * NODES, ids: Sequence[str] = IDS) -> ReplyBlock:
        exchange = SecureExchange(self.carry, None, 1.0, 3, self.faults, self.blamed, "run/1")  # type: ignore[arg-type]
        requests = [Request(client, Give(torch.zeros(3), i)) for i, client in enumerate(ids)]
        return exchange.run(requests, Reduction(weights=list(weights), groups=[0] * len(ids)))


def expected(ids: Sequence[str], offered: int, weights: dict[str, float] | None = None) -> np.ndarray:
    """The sum of the rounded vectors, as it always was."""
    weight = weights or dict.fromkeys(ids, 1.0)
    largest, quantiser = max(weight.values()), Quantiser.for_sums(1.0, offered)
    words = np.zeros(SIZE, dtype=np.uint32)
    for client in ids:
        words += quantiser.encode(VECTORS[client] * (weight[client] / largest))
    return quantiser.decode(words) * largest


def bytes_of(reply: Reply, **values: bytes) -> Reply:
    return replace(reply, values={**reply.values, **{name: as_numbers(v).tolist() for name, v in values.items()}})


def garbage(reply: Reply) -> Reply:
    """Random bytes for boxes."""
    return bytes_of(reply, boxes=os.urandom(len(reply.values["boxes"])))


def signed_garbage(reply: Reply, task: ShareSecrets, client: SecureClient) -> Reply:
    """Boxes that hold other shares than was committed to, with right signatures."""
    dealt, terms = task.dealt_by(client.number, reply.values), task.terms()
    boxes = b""
    for number in sorted(dealt.boxes):
        box = seal(client._channel_key(number), client.number, number, Shares(1, 2).to_bytes())
        boxes += box + signed(
            client._sign, box_text(terms.digest(), client.number, number, box, dealt.commitments[number])
        )
    return bytes_of(reply, boxes=boxes)


def test_honest_sums_are_to_the_bit_what_they_were():
    network, weights = Network(), [1.0, 2.0, 3.0, 1.5, 1.0, 2.5, 0.7, 1.0, 3.0]
    block = network.sum(weights)
    assert not network.faults
    np.testing.assert_array_equal(block.sums[0].numpy(), expected(IDS, NODES, dict(zip(IDS, weights, strict=True))))
    assert [reply.client for reply in block.replies] == list(IDS)


def test_a_sum_of_nine_survives_two_that_send_garbage_and_one_that_dies():
    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply | None:
        if isinstance(task, ShareSecrets) and client == IDS[2]:
            return garbage(reply)
        if isinstance(task, ShareSecrets) and client == IDS[5]:
            return signed_garbage(reply, task, remembered(state))
        return None if isinstance(task, Masked) and client == IDS[7] else reply

    network = Network(tamper)
    block = network.sum()
    assert set(network.blamed) == {IDS[2], IDS[5]}
    assert "signed none" in network.blamed[IDS[2]]
    assert "a box without the shares" in network.blamed[IDS[5]]
    assert {fault.client for fault in network.faults} == {IDS[2], IDS[5]}  # who dies is the engine's to report
    rest = [client for i, client in enumerate(IDS) if i not in (2, 5, 7)]
    np.testing.assert_array_equal(block.sums[0].numpy(), expected(rest, 7))
    assert [reply.client for reply in block.replies] == rest


def test_who_was_found_out_is_in_no_later_sum():
    network = Network(
        lambda client, task, reply, state: (
            garbage(reply) if isinstance(task, ShareSecrets) and client == IDS[0] else reply
        )
    )
    network.sum()
    network.tamper = None
    network.faults.clear()
    block = network.sum()
    assert [(fault.client, fault.reason.split(":")[0]) for fault in network.faults] == [
        (IDS[0], "left out of secure sums")
    ]
    np.testing.assert_array_equal(block.sums[0].numpy(), expected(IDS[1:], NODES - 1))


def test_a_changed_bit_in_a_share_names_its_sender_and_changes_nothing():
    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if not isinstance(task, Reveal) or client not in (IDS[1], IDS[4]):
            return reply
        shares = bytearray(as_bytes(reply.values["shares"]))
        shares[200] ^= 1
        return bytes_of(reply, shares=bytes(shares))

    network = Network(tamper)
    block = network.sum()
    np.testing.assert_array_equal(block.sums[0].numpy(), expected(IDS, NODES))
    assert set(network.blamed) == {IDS[1], IDS[4]}


def test_a_false_accusation_falls_back_on_the_accuser():
    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if not isinstance(task, CheckShares) or client != IDS[3]:
            return reply
        proof = remembered(state)._channel + bytes(32)
        wrong = [1.0] + [0.0] * (len(task.senders) - 1)
        return replace(reply, values={"wrong": wrong, "proof": as_numbers(proof).tolist()})

    network = Network(tamper)
    block = network.sum()
    assert set(network.blamed) == {IDS[3]}
    assert "accused" in network.blamed[IDS[3]]
    np.testing.assert_array_equal(block.sums[0].numpy(), expected([i for i in IDS if i != IDS[3]], NODES - 1))


def test_who_deals_shares_of_no_secret_is_named():
    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if not isinstance(task, ShareSecrets) or client != IDS[6]:
            return reply
        committed = as_bytes(reply.values["commitments"])
        return bytes_of(reply, commitments=committed[:-32] + bytes(32))

    network = Network(tamper)
    assert not network.sum().sums
    assert set(network.blamed) == {IDS[6]}
    network.tamper = None
    np.testing.assert_array_equal(network.sum().sums[0].numpy(), expected([i for i in IDS if i != IDS[6]], NODES - 1))


@pytest.mark.parametrize("key", [bytes(32), None])
def test_keys_that_stop_the_others_are_refused_at_once(key: bytes | None):
    taken: list[bytes] = []

    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if "keys" not in reply.values:
            return reply
        offered = as_bytes(reply.values["keys"])
        taken.append(open_keys(reply.values["keys"]).mask)
        return bytes_of(reply, keys=(key or taken[0]) + offered[32:]) if client == IDS[8] else reply

    network = Network(tamper)
    np.testing.assert_array_equal(network.sum().sums[0].numpy(), expected(IDS[:8], NODES - 1))
    assert set(network.blamed) == {IDS[8]}


def test_a_server_cannot_weigh_one_client_out_of_the_others():
    network = Network()
    assert not network.sum([1.0] + [1e-12] * 8).sums
    assert {fault.client for fault in network.faults} == set(IDS)
    assert all("the sum would show a single vector" in fault.reason for fault in network.faults)
    assert not network.blamed


def test_a_server_cannot_lower_the_threshold(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cluster, "threshold", property(lambda cluster: 5))
    network = Network()
    assert not network.sum().sums
    assert all("more than two thirds" in fault.reason for fault in network.faults)


def test_a_server_cannot_put_another_model_in_the_place_of_the_one_that_was_agreed_on(monkeypatch: pytest.MonkeyPatch):
    honest = SecureExchange._train

    def cheating(self: SecureExchange, clusters: Any) -> None:
        for cluster in clusters.values():
            cluster.tasks[1] = Request(cluster.tasks[1].client, Give(torch.ones(3), 0))
        honest(self, clusters)

    monkeypatch.setattr(SecureExchange, "_train", cheating)
    network = Network()
    network.sum()
    assert [fault.client for fault in network.faults] == [IDS[0]]
    assert "none of those that the sum was agreed to be of" in network.faults[0].reason


def test_a_task_is_known_by_all_but_its_seed():
    digest = task_digest(Give(torch.zeros(3), 1))
    assert digest == task_digest(Give(torch.zeros(3), 2))
    assert digest != task_digest(Give(torch.tensor([0.0, 0.0, 1e-9]), 1))
    assert pieces(b"abcd", 2) == [b"ab", b"cd"]
