"""Who is behind the nodes of a grid: each node describes its client, and the server keeps the book.

Descriptions come from outside and are checked as replies are, and against what the operator expects. The data of all
clients must be of one kind; a client of another kind is left out with a reason.

An id belongs to the node that first came with it. Where nodes have keys of their own (SuperNode authentication), that
is for good: the id is never given to another key. Where they have none, Flower makes up a key and a number for every
start of a node, so that a restarted one is another: an id is free again when the grid no longer lists its node. One
node goes by one id, unless the operator allows more.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, RecordDict

from coterie.engines.base import Fault
from coterie.errors import RunError
from coterie.federation import PARTS, Client, Federation, Split
from coterie.federation.labels import Task
from coterie.federation.tables import Table
from coterie.flower.exchange import Answer, Exchange
from coterie.flower.wire import refuse_refusal
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

    `bound` are clients with their keys that an earlier part of the run has met; `question` goes to every node that is
    asked who it is.
    """

    def __init__(
        self,
        exchange: Exchange,
        expected: Expected | None = None,
        bound: Mapping[str, str] | None = None,
        question: RecordDict | None = None,
    ) -> None:
        self.exchange = exchange
        self.question = question or RecordDict()
        self.kind: Kind | None = None
        self.expected = expected or Expected()
        self.classes = self.expected.classes or 0
        self.bound: dict[str, str] = dict(self.expected.keys or bound or {})
        """The key of the node behind each client that has been here; a node without one stands with its number."""
        self._keys: dict[int, str] = {}
        self._described: dict[int, Description] = {}
        self._asked: dict[str, int] = {}
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

    def groups(self) -> list[int] | None:
        """The hidden groups in the order of the clients, if all report theirs in a trial: for metrics only."""
        groups = [self[client].group for client in self.clients]
        known = [group for group in groups if group is not None]
        return known if len(known) == len(groups) else None

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
        """Wait until `count` clients of one kind are here; the kind that most are of is the run's."""
        deadline = time.monotonic() + seconds
        self.refresh()
        while (here := self._admissible()) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RunError(
                    f"{here} clients came within {seconds:g} s, {count} are needed: start more nodes, or ask for "
                    f"fewer{self._why_not()}"
                )
            time.sleep(min(self.exchange.poll, left))
            self.refresh()
        if self.kind is None:
            self.kind, self.classes = self._most_common(self._eligible())
            self._enter()

    def refresh(self) -> None:
        """Forget the nodes that are gone, ask the new ones who they are, and read what answers there are."""
        keyed = self.expected.keyed or self.expected.keys is not None
        self._keys = {node.node_id: _key(node, keyed) for node in self.exchange.grid.get_nodes()}
        listed = set(self._keys)
        self._forget_others(listed)
        unknown = listed - set(self._described) - self._refused
        asked = set(self._asked.values())
        nodes = sorted((unknown | self._silent) - asked)
        self._asked |= self.exchange.ask(self.question, nodes, "query.describe")
        for key, answer in self.exchange.pull(self._asked).items():
            self._hear(self._asked.pop(key), answer)
        self._enter()

    def _forget_others(self, listed: set[int]) -> None:
        """Forget all nodes that the grid does not list."""
        here = set(self._keys.values())
        # A node without a key returns under another number, so its client's id is free again.
        self.bound = {client: key for client, key in self.bound.items() if not is_number(key) or key in here}
        self._described = {node: description for node, description in self._described.items() if node in listed}
        self._node = {client: node for client, node in self._node.items() if node in listed}
        for book in (self._refused, self._silent, self._doubled):
            book &= listed

    def _hear(self, node: int, answer: Answer) -> None:
        try:
            description = read_description(answer.records())
        except BadReply as problem:
            if not answer.silent:
                self._refuse(node, str(problem))
            return
        self._silent.discard(node)
        self._described[node] = description

    def _refuse(self, node: int, reason: str) -> None:
        self._refused.add(node)
        self._described.pop(node, None)
        self._node = {client: other for client, other in self._node.items() if other != node}
        self._faults.append(Fault(f"node {node}", reason))

    def _admissible(self) -> int:
        """How many clients are in the run or, before its kind is known, would be."""
        return len(self._node) if self.kind is not None else self._unlikenesses().count(None)

    def _why_not(self) -> str:
        """The last reason for which a node was left out or would be, to end a sentence with."""
        faults = [f"{fault.client}: {fault.reason}" for fault in self._faults]
        reasons = faults + [reason for reason in self._unlikenesses() if reason is not None]
        return f"; {reasons[-1]}" if reasons else ""

    def _unlikenesses(self) -> list[str | None]:
        """Of each client that is who it says: why it could not take part if the run began now, None where it could."""
        eligible = self._eligible()
        if not eligible:
            return []
        kind, classes = self._most_common(eligible)
        return [self._unlike(description, kind, classes) for description in eligible.values()]

    def _eligible(self) -> dict[str, Description]:
        """What those clients report that are who they say they are."""
        nodes = [node for node in sorted(self._described) if not self._not_its_own(self._described[node].client, node)]
        return {self._described[node].client: self._described[node] for node in nodes}

    def _most_common(self, eligible: Mapping[str, Description]) -> tuple[Kind, int]:
        """The kind of data that most of these clients have, and the run's number of classes."""
        kinds = Counter(description.kind for description in eligible.values())
        kind = kinds.most_common(1)[0][0]
        counts = [description.classes for description in eligible.values() if description.kind == kind]
        return kind, self.expected.classes or second_most(counts)

    def _enter(self) -> None:
        """Give every id to the node it belongs to, or to the first that comes with it."""
        if self.kind is None:
            return
        for node in sorted(self._described):
            description = self._described[node]
            if self._node.get(description.client) == node:
                continue
            unlike = self._unlike(description, self.kind, self.classes)
            if reason := unlike or self._too_many(description.client, self._keys[node]):
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

    def _unlike(self, description: Description, kind: Kind, classes: int) -> str | None:
        """Why a client's data is not what the run is about."""
        if description.kind != kind:
            return f"client {description.client!r} has data of another kind: {description.kind}, expected {kind}"
        if description.classes > classes:
            return (
                f"client {description.client!r} has {description.classes} classes, the run's model has "
                f"{classes}: give classes= if that is right"
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
    refuse_refusal(records)
    record = records.get("client")
    if not isinstance(record, ConfigRecord):
        raise BadReply("it did not say who it is")
    samples = {part: _whole(record, part, 1 if part == "train" else 0, MOST_SAMPLES) for part in PARTS}
    group = _whole(record, "group", 0, MOST_CLASSES) if "group" in record else None
    return Description(_id(record), samples, _kind(record), _whole(record, "classes", 0, MOST_CLASSES), group)


def _id(record: ConfigRecord) -> str:
    client = record.get("client")
    if not isinstance(client, str) or not client or in_words(client) != client or len(client) > ID_LETTERS:
        raise BadReply("it has no proper id: expected a short line of text")
    return client


def _kind(record: ConfigRecord) -> Kind:
    dtype, target_dtype = str(record.get("dtype")), str(record.get("target_dtype"))
    if dtype not in DTYPES or target_dtype not in DTYPES:
        raise BadReply(f"its data is {in_words(dtype)} and {in_words(target_dtype)}, expected float32 or int64")
    return Kind(_shape(record, "shape"), dtype, _shape(record, "target_shape"), target_dtype)


def _whole(record: ConfigRecord, name: str, least: int, most: int) -> int:
    value: Any = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadReply(f"its {name} is {in_words(value)}, expected a whole number from {least} to {most}")
    return value


def _shape(record: ConfigRecord, name: str) -> tuple[int, ...]:
    value: Any = record.get(name)
    if not isinstance(value, list) or len(value) > 8 or not all(isinstance(n, int) and n > 0 for n in value):
        raise BadReply(f"its {name} is {in_words(value)}, expected a few whole numbers")
    if math.prod(value) > MOST_NUMBERS:
        raise BadReply(f"its {name} is {in_words(value)}, which is too large")
    return tuple(value)


def stand_in(kind: Kind, classes: int, name: str, table: Table | None = None) -> Federation:
    """A federation of one zero sample of that kind: what a server that has no data tries its model on."""
    x = torch.zeros(1, *kind.shape, dtype=DTYPES[kind.dtype])
    y = torch.zeros(1, *kind.target_shape, dtype=DTYPES[kind.target_dtype])
    none = Split(x[:0], y[:0])
    names = table.label_names if table is not None else None
    client = Client("none", Split(x, y), none, none)
    task: Task = "regression" if y.is_floating_point() else "classification"
    return Federation([client], classes or None, name, label_names=names, table=table, task=task)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do: client-2 before client-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]
