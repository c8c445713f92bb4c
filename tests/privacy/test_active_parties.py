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
from coterie.engines.secure_exchange import Cluster, Members, SecureExchange
from coterie.parameters import Layout
from coterie.privacy.client_keys import certify, new_signing_key, owner_of
from coterie.privacy.sealing import seal, signed
from coterie.privacy.secure_sum import SecureClient, Shares
from coterie.privacy.secure_tasks import (
    Agree,
    CheckShares,
    Masked,
    OfferKeys,
    Reveal,
    ShareSecrets,
    as_bytes,
    as_numbers,
    open_offer,
    pieces,
    remembered,
    task_digest,
)
from coterie.privacy.sum_terms import NotOpened, Terms, box_text, keys_text
from coterie.privacy.whole_numbers import Quantiser
from coterie.tasks.base import ClientContext, Number, Reduction, Reply, ReplyBlock, ReplySchema, Request, SumNoise, Task
from coterie.trainers.base import SumRules

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

    layout = None

    def __init__(self, signing_key: bytes | None = None, rules: SumRules | None = None) -> None:
        self.signing_key, self.sum_rules = signing_key, rules


class Network:
    """Nine nodes, and a hook on what they send."""

    def __init__(self, tamper: Tamper | None = None, **rules: Any) -> None:
        self.contexts = {client.id: ClientContext(client, {}) for client in FEDERATION}
        self.keys = {client: new_signing_key() for client in IDS}
        """The clients' own."""
        registered = frozenset(owner_of(key) for key in self.keys.values())
        self.rules: SumRules | None = SumRules(registered, 3, **rules)
        self.tamper = tamper
        self.faults: list[Fault] = []
        self.members = Members({}, {})
        self.blamed = self.members.blamed

    def carry(self, requests: Sequence[Request]) -> Iterator[ReplyBlock]:
        replies = []
        for client, task in requests:
            context = self.contexts[client]
            try:
                reply = task.answer(context, Trainer(self.keys[client], self.rules))  # type: ignore[arg-type]
            except NotOpened as problem:
                self.faults.append(Fault(client, str(problem)))
                continue
            found = reply if self.tamper is None else self.tamper(client, task, reply, context.state)
            replies += [] if found is None else [found]
        yield ReplyBlock(replies, {})

    def sum(
        self,
        weights: Sequence[float] = (1.0,) * NODES,
        ids: Sequence[str] = IDS,
        name: str = "run/1",
        odd_model: Tensor | None = None,
        noise: SumNoise | None = None,
    ) -> ReplyBlock:
        exchange = SecureExchange(self.carry, None, 1.0, 3, self.faults, self.members, name)  # type: ignore[arg-type]
        models = [torch.zeros(3) if odd_model is None or i == 0 else odd_model for i in range(len(ids))]
        requests = [Request(client, Give(models[i], i)) for i, client in enumerate(ids)]
        return exchange.run(requests, Reduction(weights=list(weights), groups=[0] * len(ids), noise=noise))


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
    return bytes_of(reply, boxes=os.urandom(2 * len(reply.values["boxes"])))


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
        taken.append(open_offer(reply.values["keys"])[0].mask)
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


def test_a_server_cannot_call_dropped_out_whose_weights_hide_a_large_one(monkeypatch: pytest.MonkeyPatch):
    """Three weigh a million times the others; without two of them the sum would be the vector of the third."""

    def cheating(self: SecureExchange, clusters: Any) -> None:
        for cluster in clusters.values():
            for number in (2, 3):
                del cluster.trained[number]
        honest(self, clusters)

    honest, network = SecureExchange._agree, Network()
    weights = [1.0] * 3 + [1e-6] * 6
    np.testing.assert_array_equal(
        network.sum(weights).sums[0].numpy(), expected(IDS, NODES, dict(zip(IDS, weights, strict=True)))
    )
    monkeypatch.setattr(SecureExchange, "_agree", cheating)
    assert not network.sum(weights).sums
    assert any("the sum would show a single vector" in fault.reason for fault in network.faults)
    assert not network.blamed


def test_a_client_bounds_weights_and_noise_by_itself():
    weights = [3.0] + [1.0] * 8
    assert Network().sum(weights).sums
    network = Network(uneven=2.0)
    assert not network.sum(weights).sums
    assert all("more than a 2th of the largest" in fault.reason for fault in network.faults)
    network = Network(noise=1.0)
    assert not network.sum(noise=SumNoise(0.5, 1.0)).sums
    assert all("noise of 0.5, and this client demands 1" in fault.reason for fault in network.faults)
    assert not network.sum().sums
    assert network.sum(noise=SumNoise(1.0, 1.0)).sums


def test_a_server_cannot_give_the_others_a_model_at_which_their_updates_are_nothing():
    """Pasquini, Francati, Ateniese 2022: what is left of the sum would be one client's update."""
    network = Network()
    assert not network.sum(odd_model=torch.full((3,), float("inf"))).sums
    assert {fault.client for fault in network.faults} == set(IDS)
    assert all("another model or task" in fault.reason for fault in network.faults)
    assert Network(allowed=("Give",)).sum(odd_model=torch.ones(3)).sums  # where its operator says so


@pytest.mark.parametrize("changed", ["weights", "keys"])
def test_a_server_cannot_tell_one_client_other_terms(monkeypatch: pytest.MonkeyPatch, changed: str):
    """What the first client signs, and what it is given of the others, belongs to another sum."""

    def cheating(requests: Sequence[Request]) -> Iterator[ReplyBlock]:
        given = []
        for client, task in requests:
            if isinstance(task, ShareSecrets) and client == IDS[0]:
                keys = torch.cat([task.keys[:1], stranger[None], task.keys[2:]])
                other = {"weights": (1.0, 2.0, *task.weights[2:])} if changed == "weights" else {"keys": keys}
                task = replace(task, **other)
            given.append(Request(client, task))
        yield from honest(given)

    network, own = Network(), new_signing_key()
    network.rules = None  # with them the stranger would be refused at once
    taken = SecureClient(2, _owner=owner_of(own)).keys()
    stranger = as_numbers(b"".join(taken) + certify(own, keys_text("run/1", 2, taken)))
    honest = network.carry
    monkeypatch.setattr(network, "carry", cheating)
    np.testing.assert_array_equal(network.sum().sums[0].numpy(), expected(IDS[1:], NODES - 1))
    assert set(network.blamed) == {IDS[0]}  # an honest server would know it by that


def test_a_server_cannot_tell_one_client_that_others_came_through(monkeypatch: pytest.MonkeyPatch):
    """With both secrets of a client, its vector lies open: from six the shares of its seed, from three of its key."""
    revealed: dict[str, bool] = {}

    def cheating(requests: Sequence[Request]) -> Iterator[ReplyBlock]:
        lists = {client: tuple(range(2, 10)) if i > 5 else tuple(range(1, 10)) for i, client in enumerate(IDS)}
        given = [
            Request(client, replace(task, through=lists[client]) if isinstance(task, Agree | Reveal) else task)
            for client, task in requests
        ]
        for block in honest(given):
            revealed.update((reply.client, True) for reply in block.replies if "shares" in reply.values)
            yield block

    network = Network()
    honest = network.carry
    monkeypatch.setattr(network, "carry", cheating)
    assert not network.sum().sums
    assert not revealed


def test_keys_certified_by_none_of_the_clients_are_refused_by_all_and_a_false_certificate_names_its_sender():
    network = Network()
    network.keys[IDS[4]] = new_signing_key()
    assert not network.sum().sums
    assert all("client 5 of the sum is none of the registered clients" in fault.reason for fault in network.faults)

    def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if not isinstance(task, OfferKeys) or client != IDS[4]:
            return reply
        keys, _ = open_offer(reply.values["keys"])
        taken = keys._replace(owner=owner_of(network.keys[IDS[0]]))  # another client's name
        certificate = certify(network.keys[IDS[4]], keys_text(task.name, task.number, taken))
        return bytes_of(reply, keys=b"".join(taken) + certificate)

    network = Network(tamper)
    np.testing.assert_array_equal(
        network.sum().sums[0].numpy(), expected([client for client in IDS if client != IDS[4]], NODES - 1)
    )
    assert network.blamed == {IDS[4]: "its keys are not certified by a key of its own"}


def test_one_node_cannot_be_several_clients_of_a_sum():
    network = Network()
    network.keys[IDS[1]] = network.keys[IDS[0]]
    np.testing.assert_array_equal(
        network.sum().sums[0].numpy(), expected([client for client in IDS if client != IDS[1]], NODES - 1)
    )
    assert network.blamed == {IDS[1]: "its keys are another client's"}
    # A server that lets it pass asks the others in vain.
    client, other = SecureClient(1), SecureClient(2)
    keys = {1: client.keys(), 2: other.keys()._replace(owner=client.keys().owner)}
    with pytest.raises(NotOpened, match="not all different"):
        client.shares(Terms("sum", ("task",), keys, {1: 1.0, 2: 1.0}, 2, 2))


def test_a_certificate_holds_in_one_sum_and_for_one_number():
    network, kept = Network(), {}

    def replay(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply:
        if isinstance(task, OfferKeys) and client == IDS[2]:
            return kept.setdefault(client, reply)
        return reply

    network.tamper = replay
    assert network.sum(name="run/1").sums
    assert not network.blamed
    network.sum(name="run/2")
    assert set(network.blamed) == {IDS[2]}
    network = Network(replay)
    kept.clear()
    network.sum()
    network.sum(ids=IDS[::-1])
    assert set(network.blamed) == {IDS[2]}


def test_the_first_key_of_a_client_is_its_own_for_the_run():
    network = Network()
    assert network.sum().sums
    network.keys[IDS[3]] = new_signing_key()
    registered = frozenset(owner_of(key) for key in network.keys.values())
    network.rules = SumRules(registered, 3)
    np.testing.assert_array_equal(
        network.sum(name="run/2").sums[0].numpy(), expected([client for client in IDS if client != IDS[3]], NODES - 1)
    )
    assert "another key than is registered" in network.blamed[IDS[3]]


def test_a_task_is_known_by_all_but_its_seed():
    digest = task_digest(Give(torch.zeros(3), 1))
    assert digest == task_digest(Give(torch.zeros(3), 2))
    assert digest != task_digest(Give(torch.tensor([0.0, 0.0, 1e-9]), 1))
    assert pieces(b"abcd", 2) == [b"ab", b"cd"]
