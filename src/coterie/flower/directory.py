"""Who is behind the nodes of a grid: each node describes its client, and the server keeps the book.

Descriptions come from outside and are checked as replies are, and against what the operator expects. The data of all
clients must be of one kind; a client of another kind is left out with a reason.

An id belongs to the node that first came with it. Where nodes have keys of their own (SuperNode authentication), that
is for good: the id is never given to another key. Where they have none, Flower makes up a key and a number for every
start of a node, so that a restarted one is another: an id is free again when the grid no longer lists its node. One
node goes by one id, unless the operator allows more.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from coterie.engines.base import Fault
from coterie.errors import RunError
from coterie.federation import PARTS, Client, Federation, Split
from coterie.flower.exchange import Answer, Exchange
from coterie.tasks.wire import BadReply, in_words

DTYPES = {"float32": torch.float32, "int64": torch.int64}
MOST_SAMPLES = 2**40
MOST_CLASSES = 2**20
MOST_NUMBERS = 2**31
"""In one input: more is no description of any data."""
ID_LETTERS = 200


class Kind(NamedTuple):
    """What one sample of a client's data looks like."""

    shape: tuple[int, ...]
    dtype: str
    target_shape: tuple[int, ...]
    target_dtype: str


class Description(NamedTuple):
    """What a client reports of itself."""

    client: str
    samples: dict[str, int]
    kind: Kind
    classes: int
    group: int | None


class Expected(NamedTuple):
    """What the operator knows of the clients; None where nothing is known."""

    classes: int | None = None
    """How many labels there may be. None takes the most that two clients report, so that none decides alone."""
    shape: tuple[int, ...] | None = None
    """Of one input."""
    most_samples: int = MOST_SAMPLES
    keys: Mapping[str, str] | None = None
    """The public key of every client that may take part. None: any, and the first key of a client is its own."""
    keyed: bool = False
    """Whether nodes have keys that outlive a restart."""
    ids_per_node: int = 1
    """How many different clients one node may be in a run."""


class Directory:
    """The clients behind a grid, as far as they are what is `expected`.

    `bound` are clients with their keys that an earlier part of the run has met.
    """

    def __init__(
        self, exchange: Exchange, expected: Expected | None = None, bound: Mapping[str, str] | None = None
    ) -> None:
        self.exchange = exchange
        self.kind: Kind | None = None
        self.expected = expected or Expected()
        self.classes = self.expected.classes or 0
        self.bound: dict[str, str] = dict(self.expected.keys or bound or {})
        """The key of the node behind each client that has been here; a node without one stands with its number."""
        self._keys: dict[int, str] = {}
        self._described: dict[int, Description] = {}
        self._asked: dict[str, tuple[int, float]] = {}
        self._refused: set[int] = set()
        self._silent: set[int] = set()
        self._doubled: set[int] = set()
        self._node: dict[str, int] = {}
        self._faults: list[Fault] = []

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of the clients, numbers in them in the order of numbers."""
        return tuple(sorted(self._node, key=natural))

    def __getitem__(self, client: str) -> Description:
        return self._described[self._node[client]]

    def node_of(self, client: str) -> int | None:
        """The node to ask, or None while it owes an answer."""
        node = self._node.get(client)
        return None if node is None or node in self._silent else node

    @property
    def groups(self) -> dict[str, int]:
        """The hidden groups that clients report in a trial: for metrics only."""
        groups = {client: self[client].group for client in self._node}
        return {client: group for client, group in groups.items() if group is not None}

    def silence(self, client: str) -> None:
        """Do not ask this client again before its node has described itself again."""
        self._silent.add(self._node[client])

    def expel(self, client: str, reason: str) -> None:
        """Take a client out: a silent one until it speaks, any other until the grid has lost sight of its node."""
        node = self._node.pop(client, None)
        if node in self._silent:
            self._described.pop(node, None)
            self._faults.append(Fault(client, reason))
        elif node is not None:
            self._refuse(node, f"client {client!r}: {reason}")

    def faults(self) -> list[Fault]:
        """The nodes left out since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until so many clients of one kind are here; the kind that most are of is the run's."""
        deadline = time.monotonic() + seconds
        self.refresh()
        while len(self._most_alike()) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                why = "".join(f"; {fault.client}: {fault.reason}" for fault in self._faults[-1:])
                raise RunError(
                    f"{len(self._most_alike())} clients came within {seconds:g} s, {count} are needed: start more "
                    f"nodes, or ask for fewer{why}"
                )
            time.sleep(min(self.exchange.poll, left))
            self.refresh()
        if self.kind is None:
            alike = self._most_alike()
            self.kind = next(iter(alike.values())).kind
            self.classes = self.expected.classes or second_most([description.classes for description in alike.values()])
            self._enter()

    def refresh(self) -> None:
        """Forget the nodes that are gone, ask the new ones who they are, and read what answers there are."""
        keyed = self.expected.keyed or self.expected.keys is not None
        self._keys = {node.node_id: _key(node, keyed) for node in self.exchange.grid.get_nodes()}
        listed = set(self._keys)
        # A node without a key comes back under another number, so nobody can return as this one.
        gone = [c for c, key in self.bound.items() if is_number(key) and key not in self._keys.values()]
        for client in gone:
            del self.bound[client]
        self._described = {node: description for node, description in self._described.items() if node in listed}
        for book in (self._refused, self._silent, self._doubled):
            book &= listed
        self._node = {client: node for client, node in self._node.items() if node in listed}
        waiting = {node for node, _ in self._asked.values()}
        self._ask(sorted((listed - set(self._described) - self._refused | self._silent) - waiting))
        for key, answer in self.exchange.pull(list(self._asked)).items():
            self._hear(self._asked.pop(key)[0], answer)
        overdue = time.monotonic() - self.exchange.timeout
        self._asked = {key: (node, since) for key, (node, since) in self._asked.items() if since > overdue}
        self._enter()

    def _ask(self, nodes: list[int]) -> None:
        question = [Message(RecordDict(), node, "query.describe", ttl=self.exchange.timeout) for node in nodes]
        for key, node in zip(self.exchange.push(question), nodes, strict=True):
            if key:
                self._asked[key] = (node, time.monotonic())

    def _hear(self, node: int, answer: Answer) -> None:
        if answer.content is None:
            if not answer.silent:
                self._refuse(node, answer.reason)
            return
        try:
            description = read_description(answer.content)
        except BadReply as problem:
            self._refuse(node, str(problem))
            return
        self._silent.discard(node)
        self._described[node] = description

    def _refuse(self, node: int, reason: str) -> None:
        self._refused.add(node)
        self._described.pop(node, None)
        self._node = {client: other for client, other in self._node.items() if other != node}
        self._faults.append(Fault(f"node {node}", reason))

    def _most_alike(self) -> dict[str, Description]:
        """The clients of the run's kind or, before that is known, of the kind that most are of."""
        if self.kind is not None:
            return {client: self[client] for client in self._node}
        kinds = Counter(description.kind for description in self._described.values())
        if not kinds:
            return {}
        kind = kinds.most_common(1)[0][0]
        return {description.client: description for description in self._described.values() if description.kind == kind}

    def _enter(self) -> None:
        """Give every id to the node it belongs to, or to the first that comes with it."""
        if self.kind is None:
            return
        for node in sorted(self._described):
            description = self._described[node]
            if self._node.get(description.client) == node:
                continue
            if reason := self._unlike(description) or self._too_many(description.client, self._keys[node]):
                self._refuse(node, reason)
                continue
            if reason := self._not_its_own(description.client, node):
                if node not in self._doubled:
                    self._doubled.add(node)
                    self._faults.append(Fault(f"node {node}", reason))
                continue
            # A node that may be several clients is one at a time.
            self._node = {client: other for client, other in self._node.items() if other != node}
            self._node[description.client] = node
            self.bound[description.client] = self._keys[node]
            self._doubled.discard(node)

    def _not_its_own(self, client: str, node: int) -> str | None:
        """Why a node cannot be this client now."""
        if self.expected.keys is not None and client not in self.expected.keys:
            return f"client {client!r} is not on the operator's list"
        owner = self.bound.get(client)
        if owner is None or owner == self._keys[node]:
            return None
        if is_number(owner):
            return f"client {client!r} is already here, on another node: it can return when the grid has lost that one"
        return f"client {client!r} belongs to another key"

    def _too_many(self, client: str, key: str) -> str | None:
        """Why a node may not be this client beside those that it has been."""
        others = sum(1 for other, owner in self.bound.items() if owner == key and other != client)
        if others < self.expected.ids_per_node:
            return None
        return f"it is also client {client!r}: one node may be {self.expected.ids_per_node}, see ids_per_node"

    def _unlike(self, description: Description) -> str | None:
        if description.kind != self.kind:
            return f"client {description.client!r} has data of another kind: {description.kind}, expected {self.kind}"
        if description.classes > self.classes:
            return (
                f"client {description.client!r} has {description.classes} classes, the run's model has "
                f"{self.classes}: give classes= if that is right"
            )
        if self.expected.shape is not None and description.kind.shape != self.expected.shape:
            shape = description.kind.shape
            return f"client {description.client!r} has inputs of shape {shape}, expected {self.expected.shape}"
        if description.samples["train"] > self.expected.most_samples:
            most = self.expected.most_samples
            return (
                f"client {description.client!r} claims {description.samples['train']} samples, expected at most {most}"
            )
        return None


def second_most(counts: Sequence[int]) -> int:
    """The largest number that at least two clients report, or more; of one alone, its own."""
    ranked = sorted(counts, reverse=True)
    return ranked[1] if len(ranked) > 1 else ranked[0]


NUMBER = "node "
"""How a node without a key is written."""


def is_number(key: str) -> bool:
    """Whether this stands for a node without a key."""
    return key.startswith(NUMBER)


def _key(node: Any, keyed: bool) -> str:
    """The public key of a node in one line, or its number where it has none that lasts."""
    key = getattr(node, "public_key", None)
    return key.hex() if key and keyed else f"{NUMBER}{node.node_id}"


def read_description(records: RecordDict) -> Description:
    """The description in a client's answer; BadReply with the reason where there is none that makes sense."""
    if "refusal" in records:
        refusal = records["refusal"]
        raise BadReply(in_words(refusal.get("reason", "")) or "it refused without a reason")
    record = records.get("client")
    if not isinstance(record, ConfigRecord):
        raise BadReply("it did not say who it is")
    client = record.get("client")
    if not isinstance(client, str) or not client or in_words(client) != client or len(client) > ID_LETTERS:
        raise BadReply("it has no proper id: expected a short line of text")
    samples = {part: _whole(record, part, 1 if part == "train" else 0, MOST_SAMPLES) for part in PARTS}
    dtype, target_dtype = str(record.get("dtype")), str(record.get("target_dtype"))
    if dtype not in DTYPES or target_dtype not in DTYPES:
        raise BadReply(f"its data is {in_words(dtype)} and {in_words(target_dtype)}, expected float32 or int64")
    kind = Kind(_shape(record, "shape"), dtype, _shape(record, "target_shape"), target_dtype)
    group = _whole(record, "group", 0, MOST_CLASSES) if "group" in record else None
    return Description(client, samples, kind, _whole(record, "classes", 0, MOST_CLASSES), group)


def _whole(record: ConfigRecord, name: str, least: int, most: int) -> int:
    value: Any = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadReply(f"its {name} is {in_words(value)}, expected a whole number from {least} to {most}")
    return value


def _shape(record: ConfigRecord, name: str) -> tuple[int, ...]:
    value: Any = record.get(name)
    if not isinstance(value, list) or len(value) > 8 or not all(isinstance(n, int) and n > 0 for n in value):
        raise BadReply(f"its {name} is {in_words(value)}, expected a few whole numbers")
    numbers = 1
    for n in value:
        numbers *= n
    if numbers > MOST_NUMBERS:
        raise BadReply(f"its {name} is {in_words(value)}, which is too large")
    return tuple(value)


def stand_in(kind: Kind, classes: int, name: str) -> Federation:
    """A federation of one zero sample of that kind: what a server that has no data tries its model on."""
    x = torch.zeros(1, *kind.shape, dtype=DTYPES[kind.dtype])
    y = torch.zeros(1, *kind.target_shape, dtype=DTYPES[kind.target_dtype])
    none = Split(x[:0], y[:0])
    return Federation([Client("none", Split(x, y), none, none)], classes or None, name)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do: client-2 before client-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]
