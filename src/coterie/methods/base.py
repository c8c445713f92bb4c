"""What every method is: three functions on an explicit state, and the registry that finds methods by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.options import parse_options, unknown_option, with_checked_options
from coterie.methods.published import PRINTED, Table, as_published, paper_of, table_of
from coterie.methods.server import Server
from coterie.option_types import field_types
from coterie.plugins import check_name, load, offered
from coterie.snapshot import saved


@saved
@dataclass(frozen=True)
class Event:
    """Something that happened: its kind, in words, and its evidence in numbers."""

    kind: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterInfo:
    """What the server saw of one cluster in a round; None where it saw nothing."""

    members: int
    train_loss: float | None = None
    mean_norm: float | None = None
    max_norm: float | None = None
    id: int | None = None
    """The cluster's id, as in `Assignment.ids`; None: its position in the list."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """What the method compared its numbers with, by name."""


@dataclass(frozen=True)
class ClusterSplit:
    """A cluster that was replaced by others, with the evidence for it."""

    cluster: int
    children: Sequence[int]
    members: Sequence[Sequence[str]]
    evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Matrix:
    """Values `(n, n)` between clients that a method clustered by.

    `meaning` says in words what the values are; `similar` whether larger values mean more alike.
    """

    name: str
    clients: tuple[str, ...]
    values: npt.NDArray[np.float32]
    meaning: str
    similar: bool


@dataclass(frozen=True)
class Info:
    """What a round reports: its clusters, what happened, splits, and matrices worth keeping."""

    clusters: Sequence[ClusterInfo] = ()
    events: Sequence[Event] = ()
    splits: Sequence[ClusterSplit] = ()
    matrices: Sequence[Matrix] = ()


class Served(NamedTuple):
    """A client with the id of its cluster, and the id and vector `(d,)` of the model it is given.

    One that is given a mixture has the weights of its models by id, and as its model the one that weighs most.
    """

    client: str
    cluster: int
    model_id: int
    model: Tensor
    mixture: Mapping[int, float] = MappingProxyType({})


class Hidden(NamedTuple):
    """What is known of models that clients choose among without showing their choices."""

    kept: str
    """The name under which a client keeps its choice."""
    models: Tensor
    """All models `(k, d)` that there are to choose from, in the order of the choices."""
    sizes: Sequence[int]
    """How many clients chose each model of the assignment."""


@dataclass(frozen=True)
class Assignment:
    """Which model each client is given: `members[i]` use `models[i]`, with their own `private` layers if any."""

    models: Sequence[Tensor]
    members: Sequence[Sequence[str]]
    private: tuple[str, ...] = ()
    ids: Sequence[int] | None = None
    """The clusters' ids, which stay the same from round to round; None: their positions."""
    served_by: Mapping[str, int | Mapping[int, float]] = field(default_factory=dict)
    """Clients that are given another model than their cluster's, and its id; or a mixture, and its weights by id.

    The weights of a mixture sum to one. It predicts by the weighted mean of its models' class probabilities, or of
    their outputs in a regression.
    """
    other_models: Mapping[int, Tensor] = field(default_factory=dict)
    """The models of `served_by` that are no cluster's, by id."""
    served_because: str = ""
    """Why clients are in `served_by`, for the record."""
    events: Sequence[Event] = ()
    """What to record about how clients are served, in the end."""
    hidden: Hidden | None = None
    """Where clients keep their choice of a model to themselves; `members` are then empty."""

    @property
    def cluster_ids(self) -> list[int]:
        """The id of every cluster."""
        return list(range(len(self.models)) if self.ids is None else self.ids)

    @property
    def sizes(self) -> list[int]:
        """How many clients every cluster has."""
        return [len(own) for own in self.members] if self.hidden is None else list(self.hidden.sizes)

    @property
    def by_id(self) -> dict[int, Tensor]:
        """Every model that a client may be given, by id: the clusters' and the others."""
        return dict(zip(self.cluster_ids, self.models, strict=True)) | dict(self.other_models)

    def served(self, among: Sequence[str] | None = None) -> Iterator[Served]:
        """Every client (or those `among`) with the model it is given, cluster by cluster."""
        by_id = self.by_id
        own = self.members
        if among is not None:
            # With one cluster there is no need to look through a million clients for a few.
            wanted = set(among)
            own = [among] if len(own) == 1 else [[c for c in members if c in wanted] for members in own]
        for cluster, members in zip(self.cluster_ids, own, strict=True):
            for client in members:
                given = self.served_by.get(client, cluster)
                if isinstance(given, int):
                    yield Served(client, cluster, given, by_id[given])
                else:  # of models that weigh the same, the cluster's own
                    heaviest = max(given, key=lambda number: (given[number], number == cluster))
                    yield Served(client, cluster, heaviest, by_id[heaviest], given)


class Method(Protocol):
    """A federated method. Its options are its fields; its state is a dataclass marked with `@saved`.

    A method that moves its models by `server.step`, so that a server optimiser counts, says `server_steps = True`.
    A method may also have
    * `foresee(server) -> list[str]`, what makes its work impossible in this run, before the first round;
    * `finish(state, server) -> state`, called once after the last round;
    * `place(state, clients, server) -> dict[str, int]`, the clusters' ids of newcomers, who train but change nothing;
      without it they go where a cluster's model has the lowest loss on their data;
    * `paper`, what it is published in, and where its defaults depart from that, which `as=paper` undoes (see
      `published.Paper`);
    * `places_unlabelled = True`, if `place` looks at no labels;
    * `path(state, client) -> dict[int, Tensor]`, the models on the way to a client's cluster by id, the first first.
    """

    def start(self, server: Server) -> Any:
        """The state before the first round."""
        ...

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Info]:
        """One round, counted from 1: the next state and what there is to report."""
        ...

    def assignment(self, state: Any, server: Server) -> Assignment:
        """The model of every client, as things stand."""
        ...


M = TypeVar("M", bound=type)
GROUP = "coterie.methods"
"""The group of entry points in which packages offer methods."""
_METHODS: dict[str, type] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def method(name: str) -> Callable[[M], M]:
    """Class decorator that makes a method known by `name`, and its fields checked options.

    The class becomes a frozen dataclass. An option of the wrong type, out of range, or that there is not is a
    ConfigError when the method is made. The first line of the class's docstring is the method's summary; the text under
    a field is the option's description.

    Example:
        >>> from coterie.methods import PositiveInt, method
        >>> @method("nearest")
        ... class Nearest:
        ...     k: PositiveInt = 2
        >>> Nearest(k=3)
        Nearest(k=3)
        >>> Nearest(k=0)
        Traceback (most recent call last):
        coterie.errors.ConfigError: method 'nearest', option k=0: expected whole number from 1
    """

    def register(cls: M) -> M:
        other = _METHODS.get(name)
        if other is not None and _origin(other) != _origin(cls):
            raise ConfigError(f"method {name!r} of {_origin(cls)}: {_origin(other)} has this name: choose another")
        _METHODS[name] = made = with_checked_options(cls, f"method {name!r}")
        made.name = name  # type: ignore[attr-defined]
        return made

    return register


def _origin(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def method_classes() -> dict[str, type]:
    """All known methods by name: ours, and those that installed packages offer as `coterie.methods` entry points."""
    return {name: find_method(name) for name in method_names()}


def method_names() -> list[str]:
    """The names of all known methods; no package is loaded."""
    return sorted({*offered(GROUP), *_METHODS})


def find_method(name: str) -> type:
    """The class of the method of that name, or a ConfigError with a suggestion; other packages stay unloaded."""
    if name in _METHODS:
        return _METHODS[name]
    points = offered(GROUP)
    if name not in points:
        raise ConfigError(f"unknown method {name!r}: {did_you_mean(name, [*_METHODS, *points])}")
    cls: type = load(points[name], "method")
    if "name" not in vars(cls):
        cls.name = name  # type: ignore[attr-defined]
    check_name(points[name], "method", vars(cls)["name"])
    return cls


def make_method(spec: str) -> Method:
    """The method written as `name` or `name:key=value,key=value`."""
    name, _, text = spec.partition(":")
    find_method(name)
    return build_method(name, parse_options(text, spec))


def build_method(name: str, options: dict[str, Any]) -> Method:
    """The named method with its options checked before anything else happens."""
    cls = find_method(name)
    if "as" in options:
        options = as_published(cls, name, options)
    known = field_types(cls)
    if "clusters" not in known and "k" in known and "k" not in options:  # what many call the k of the papers
        options = {"k" if key == "clusters" else key: value for key, value in options.items()}
    for key in options:
        if key not in known:
            raise ConfigError(unknown_option(f"method {name!r}", key, known))
    try:
        made: Method = cls(**options)
    except (TypeError, ValueError) as problem:  # a class of another package, with checks of its own
        raise ConfigError(f"method {name!r}: {problem}") from problem
    return made


def published_spec(spec: str) -> str:
    """The method with `as=paper`, unless it names a version of its own or has no paper."""
    name, _, text = spec.partition(":")
    if "as" in parse_options(text, spec) or paper_of(find_method(name)) is None:
        return spec
    return f"{name}:as={PRINTED}" + (f",{text}" if text else "")


def published_table(spec: str) -> tuple[str, Table] | None:
    """The version that a method names by `as`, and what it stands for; None where it names none."""
    name, _, text = spec.partition(":")
    version = parse_options(text, spec).get("as") if "as" in text else None
    return None if version is None else (str(version), table_of(find_method(name), name, version))
