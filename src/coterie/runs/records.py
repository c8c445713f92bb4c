"""What a run records: typed rounds, clients, splits, matrices and a summary, and their form as JSON.

`docs/run-folder.md` describes the files. Numbers that JSON cannot hold (a loss that overflowed) are stored as null.
Whatever reads a run (report, live page, plots, trackers, `coterie tree`) reads these records and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from coterie.errors import RunError, extra

if TYPE_CHECKING:
    import pandas

FORMAT = 2
"""Version of the run folder's files. Version 1 had no cluster ids and no assignments in the history."""
CHANGED = "changed"
"""The kind of the event that names clients whose data has changed."""
MOST_CLUSTERS = 64
"""Rounds with more clusters than this are evaluated, tracked and shown as a whole only."""
STRICT = ConfigDict(extra="forbid", strict=False)

R = TypeVar("R")


@dataclass(frozen=True, config=STRICT)
class Spread:
    """How a metric is spread over the clients that have it; the tenths hold at least one client."""

    mean: float | None = None
    min: float | None = None
    max: float | None = None
    variance: float | None = None
    """Population variance."""
    worst10: float | None = None
    """Mean of the worst tenth: the lowest of an accuracy, the highest of a loss."""
    best10: float | None = None
    """Mean of the best tenth."""
    clients: int | None = None
    """How many clients have a value; None where there is none."""

    @classmethod
    def of(cls, values: Sequence[float | None], *, higher_is_better: bool = True) -> Spread:
        """The spread of the known values; all None where there are none."""
        known = np.sort([value for value in values if value is not None and not math.isnan(value)])
        if not len(known):
            return cls()
        tenth = max(1, len(known) // 10)
        low, high = float(known[:tenth].mean()), float(known[-tenth:].mean())
        return cls(
            float(known.mean()),
            float(known[0]),
            float(known[-1]),
            float(known.var()) if math.isfinite(known[-1]) else math.inf,
            *((low, high) if higher_is_better else (high, low)),
            len(known),
        )


class WithMeans:
    """Short names for the usual metrics of a record with one number for each."""

    __slots__ = ()
    metrics: dict[str, float | None]

    @property
    def accuracy(self) -> float | None:
        """Accuracy, or None."""
        return self.metrics.get("accuracy")

    @property
    def loss(self) -> float | None:
        """Test loss, or None."""
        return self.metrics.get("loss")


class WithSpreads:
    """Short names for the usual metrics of a record with a spread for each."""

    metrics: dict[str, Spread]

    @property
    def accuracy(self) -> Spread:
        """The spread of accuracy; all None where there is none."""
        return self.metrics.get("accuracy", Spread())

    @property
    def loss(self) -> Spread:
        """The spread of the test loss; all None where there is none."""
        return self.metrics.get("loss", Spread())


@dataclass(frozen=True, config=STRICT)
class Bytes:
    """Bytes sent from the clients (up) and to them (down)."""

    up: int = 0
    down: int = 0

    @property
    def total(self) -> int:
        """Up and down together."""
        return self.up + self.down


@dataclass(frozen=True, config=STRICT)
class ClusterRecord(WithMeans):
    """One cluster in one round."""

    id: int
    """The same in every round, file and table."""
    members: int
    train_loss: float | None = None
    mean_norm: float | None = None
    """Norm of the mean update."""
    max_norm: float | None = None
    """Largest norm of a client's update."""
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """Means over the members, on their own test data."""
    thresholds: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """What the method compared its numbers with in this round, by name, such as eps1."""


@dataclass(frozen=True, config=STRICT)
class EventRecord:
    """Something that happened in a round: its kind, in words, and its evidence in numbers."""

    kind: str
    text: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class SplitRecord:
    """A cluster that was replaced by others: their ids, their members, and the evidence."""

    cluster: int
    children: list[int]
    members: list[list[str]]
    evidence: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.children) != len(self.members):
            raise ValueError(f"{len(self.children)} children with {len(self.members)} lists of members")
        if len({self.cluster, *self.children}) <= len(self.children):
            raise ValueError(f"cluster {self.cluster} splits into {self.children}: every id must be another")


@dataclass(frozen=True, config=STRICT)
class FaultRecord:
    """A client that was left out, and why."""

    client: str
    reason: str


@dataclass(frozen=True, config=STRICT)
class RoundRecord(WithSpreads):
    """One round: a line of `history.jsonl`."""

    round: int
    clusters: list[ClusterRecord]
    bytes: Bytes
    seconds: float
    metrics: dict[str, Spread] = dataclasses.field(default_factory=dict)
    """Over all clients, each on its own test data; empty where the round was not evaluated."""
    assignment: dict[str, int | None] = dataclasses.field(default_factory=dict)
    """Clients whose cluster is another than in the record before, and its id; None for a client that left."""
    splits: list[SplitRecord] = dataclasses.field(default_factory=list)
    events: list[EventRecord] = dataclasses.field(default_factory=list)
    faults: list[FaultRecord] = dataclasses.field(default_factory=list)
    participants_only: bool = False
    """Whether the metrics are over the round's participants alone; who is in which cluster is then not recorded."""
    validation: dict[str, Spread] = dataclasses.field(default_factory=dict)
    """As `metrics`, on validation data, where the run uses it."""
    restored: int | None = None
    """In the last record: the earlier round whose models and clusters the run ended with."""
    mixtures: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    """Clients that are served by a mixture of models, with its weights by id in hundredths, where these are others than
    in the record before."""
    epsilon: float | None = None
    """What the models up to this round give away of any one client, at the run's δ, where noise was asked for."""
    passes: float | None = None
    """Passes of a client over its training data that the round took, in units of training; a look without a gradient is
    a third. As `bytes` and `exchanges`, the first round's include what was spent before it. None: not counted."""
    exchanges: int | None = None
    """How often clients were asked and answered, one after another."""


@dataclass(frozen=True, slots=True, config=STRICT)
class ClientRecord(WithMeans):
    """One client in the end: its cluster, the model it was measured with, and its metrics on its own test data."""

    client: str
    cluster: int
    model: str | None
    """Name of the file in `models/` with the model it was measured with; None where the server does not know it."""
    test_samples: int
    metrics: dict[str, float | None]
    private: bool = False
    """Whether its own layers, in `models/private.safetensors`, take the place of the file's."""
    personalised: float | None = None
    """Accuracy after its own fine-tuning, where that was asked for."""
    validation: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """Its metrics on its own validation data, where the run uses it."""
    mixture: dict[str, float] = dataclasses.field(default_factory=dict)
    """The weights of the files in `models/` that it was measured with together; `model` is the heaviest. Empty: one."""
    constant: float | None = None
    """The accuracy of its most common training label, or the loss of its mean training target; None: not known."""


@dataclass(frozen=True, config=STRICT)
class ExplanationRecord:
    """Why the clusters differ: `explanation.json`, written by `coterie explain`."""

    clusters: list[int]
    """Their ids, the largest first."""
    scores: list[list[float]]
    """For each cluster's clients (rows), what each cluster's model (columns) scores: accuracy or variance explained."""
    regression: bool
    words: list[str]


@dataclass(frozen=True, config=STRICT)
class Summary(WithSpreads):
    """A finished run: `summary.json`."""

    method: str
    scenario: str
    model: str
    seed: int
    rounds: int
    clients: int
    clusters: list[list[str]]
    """Client ids, one list per cluster."""
    cluster_ids: list[int]
    """The ids of the clusters, in the same order."""
    metrics: dict[str, Spread]
    ari: float | None
    """Adjusted Rand index of the clusters against the hidden groups; None where these are unknown, or only one."""
    bytes: Bytes
    seconds: float
    initial: float | None = None
    """Accuracy of the first cluster's model on all test data, where personalisation was asked for."""
    personalised: Spread | None = None
    epsilon: float | None = None
    """What the models give away of any one client, at `delta`, where noise was asked for."""
    delta: float | None = None
    warnings: list[str] = dataclasses.field(default_factory=list)
    """What puts the result in doubt, such as a loss that exploded."""
    validation: dict[str, Spread] = dataclasses.field(default_factory=dict)
    """As `metrics`, on validation data, where the run uses it."""
    stopped: str | None = None
    """Why the run ended before its last round, in words; `rounds` is what it did."""
    best_round: int | None = None
    """The round whose models these are, where the run kept the best by validation data."""
    hidden_sizes: list[int] | None = None
    """Where clients keep their choice of a model to themselves: how many have each. `clusters` are empty lists then,
    and there is no record of any client."""
    train_samples: int | None = None
    """Training samples of all clients."""
    passes: float | None = None
    """As in the rounds, of the whole run."""
    exchanges: int | None = None

    @property
    def sizes(self) -> list[int]:
        """How many clients every cluster has."""
        return [len(members) for members in self.clusters] if self.hidden_sizes is None else self.hidden_sizes


@dataclasses.dataclass
class TreeNode:
    """A cluster that is or was: where it came from and what became of it."""

    id: int
    parent: int | None
    members: list[str]
    born: int
    """The round in which it began."""
    children: list[int] = dataclasses.field(default_factory=list)
    split_round: int | None = None
    evidence: dict[str, float | None] = dataclasses.field(default_factory=dict)
    reason: str = ""
    """Why it was split, in the method's words; its evidence in numbers where the method gave none."""


_PLAIN = frozenset((str, int, bool, type(None)))
"""What JSON holds as it is: most of the values of a record."""


def to_json(record: Any) -> Any:
    """A record, or a list of records, as plain values for JSON; None for every number that JSON cannot hold."""
    kind = type(record)
    if kind in _PLAIN:
        return record
    if kind is float:
        return record if math.isfinite(record) else None
    if kind is dict:  # asked first, as asking for a dataclass takes longer
        return {str(key): value if type(value) in _PLAIN else to_json(value) for key, value in record.items()}
    if dataclasses.is_dataclass(kind):
        values = ((name, getattr(record, name)) for name in _field_names(kind))
        return {name: value if type(value) in _PLAIN else to_json(value) for name, value in values}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return list(map(to_json, record))
    return to_json(record.item()) if isinstance(record, np.generic) else record


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def parse_json(text: str | bytes) -> Any:
    """The values that JSON text spells, None for NaN and infinities; ValueError for damage of any kind."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_json(kind: type[R], value: Any, where: str) -> R:
    """The record of a kind that JSON holds; RunError says where it is damaged."""
    try:
        found: R = _adapter(kind).validate_python(value)  # type: ignore[arg-type]
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise RunError(f"{where}: damaged ({place}: {first['msg'].lower()}): restore it, or run again") from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def standing(rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """The rounds that led to the models in the end: all, or those up to the one that was restored."""
    restored = rounds[-1].restored if rounds else None
    return rounds if restored is None else [record for record in rounds if record.round <= restored]


class Growth:
    """Clusters as the records of rounds show them, one after another: who is in which, and the tree of splits."""

    def __init__(self, rounds: Iterable[RoundRecord] = ()) -> None:
        self.nodes: dict[int, TreeNode] = {}
        """The clusters that splits made or ended; the members are those at the time of the split."""
        self.cluster_of: dict[str, int] = {}
        self.mixtures: dict[str, dict[int, float]] = {}
        """In hundredths; empty for a client that has one model again."""
        for record in rounds:
            self.add(record)

    def add(self, record: RoundRecord) -> None:
        """Take one round in; RunError where a split gives an id that is in use already."""
        for split in record.splits:
            self._split(record, split)
        for client, cluster in record.assignment.items():
            if cluster is None:
                self.cluster_of.pop(client, None)
            else:
                self.cluster_of[client] = cluster
        self.mixtures |= record.mixtures

    def _split(self, record: RoundRecord, split: SplitRecord) -> None:
        node = self.nodes.setdefault(split.cluster, TreeNode(split.cluster, None, [], 0))
        node.members = [client for side in split.members for client in side]
        node.children, node.split_round = list(split.children), record.round
        node.evidence, node.reason = split.evidence, split_reason(record, split)
        for child in split.children:
            if child in self.nodes:
                raise RunError(f"round {record.round}: the split of cluster {split.cluster} begins {child} again")
            self.nodes[child] = TreeNode(child, node.id, [], record.round)


def assignments(rounds: Sequence[RoundRecord]) -> dict[str, int]:
    """The cluster of every client after the last of the rounds, or after the one that was restored."""
    return Growth(standing(rounds)).cluster_of


def mixtures(rounds: Sequence[RoundRecord]) -> dict[str, dict[int, float]]:
    """The mixture of every client that is served by one, in hundredths, after the last of the rounds."""
    return {client: mixture for client, mixture in Growth(standing(rounds)).mixtures.items() if mixture}


def tree_of(rounds: Sequence[RoundRecord]) -> list[TreeNode]:
    """The clusters that splits made, by id, with the members they have (or had when they were split).

    Empty where nothing was split. RunError where a split gives an id that is in use already.
    """
    growth = Growth(standing(rounds))
    place: dict[str, int | None] = {}
    for record in standing(rounds):
        for split in record.splits:
            for child, side in zip(split.children, split.members, strict=True):
                place |= dict.fromkeys(side, child)
        place |= record.assignment
    for client, cluster in place.items():
        if cluster in growth.nodes and not growth.nodes[cluster].children:
            growth.nodes[cluster].members.append(client)
    return [growth.nodes[number] for number in sorted(growth.nodes)]


def split_reason(record: RoundRecord, split: SplitRecord) -> str:
    """Why a cluster was split: what the round's event says of it after the colon, else the evidence in numbers."""
    for event in record.events:
        if event.kind == "split" and event.details.get("cluster") == split.cluster:
            return event.text.partition(": ")[2] or event.text
    known = {name: value for name, value in split.evidence.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in known.items())


def model_file(number: int) -> str:
    """The file that holds the model with an id, without its ending."""
    return f"cluster-{number}"


class History(list[RoundRecord]):
    """One record per round, as in `history.jsonl`."""

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row per round; nested numbers become columns such as `metrics.accuracy.mean`."""
        with extra("pandas", "history.to_pandas()"):
            import pandas
        return pandas.json_normalize(to_json(list(self))).set_index("round")

    def assignment(self) -> dict[str, int]:
        """The cluster of every client as last recorded."""
        return assignments(self)

    def recovery(self, within: float = 0.02) -> dict[int, int | None]:
        """How soon accuracy was back after clients' data changed (see `ChangingFederation`).

        Args:
            within: how far below the last accuracy before the change it may be.

        Returns:
            For each round with a change, the rounds after it until the mean accuracy was back, 0 where it never fell;
            None where it was not back before the next change or the end.
        """
        changes = [record.round for record in self if any(event.kind == CHANGED for event in record.events)]
        ends = [*changes[1:], len(self) + 1]
        return {change: self._back(change, end, within) for change, end in zip(changes, ends, strict=False)}

    def _back(self, change: int, end: int, within: float) -> int | None:
        """The rounds from a change until accuracy was back, before round `end`."""
        known = {record.round: record.accuracy.mean for record in self if record.accuracy.mean is not None}
        before = [value for t, value in known.items() if t < change]
        if not before:
            return None
        back = (t - change for t, value in known.items() if change <= t < end and value >= before[-1] - within)
        return next(back, None)
