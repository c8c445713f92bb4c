"""The contract of a rule that says when a cluster is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from torch import Tensor

from coterie.methods.aggregation import WeightedSum
from coterie.methods.base import Event, Matrix
from coterie.methods.compared import Compared
from coterie.methods.options import with_checked_options
from coterie.methods.server import Server
from coterie.methods.tree import Branch, Node
from coterie.plugins import load, offered
from coterie.tasks import Reply, Task


class LeafRound(NamedTuple):
    """A cluster's round as a rule sees it."""

    leaf: Node
    """The cluster before the round."""
    total: WeightedSum
    """The weighted sum of its participants' updates."""
    replies: list[Reply]
    """The participants' replies; with vectors if the rule `needs_updates`."""
    after: Tensor
    """The cluster's model `(d,)` after the round."""
    compared: Compared
    """What is compared in this run."""
    weighting: str
    """The weight of a client in a mean."""


class SplitDecision(NamedTuple):
    """A split to be made: the children, the model that their cluster was split at, and why."""

    branches: tuple[Branch, ...]
    model: Tensor
    evidence: dict[str, float]
    reason: str

    def event(self, cluster: int) -> Event:
        """The split of a cluster in words, with its evidence."""
        sizes = " and ".join(str(len(branch.members)) for branch in self.branches)
        text = f"cluster {cluster} splits into {sizes}: {self.reason}"
        return Event("split", text, self.evidence | {"cluster": cluster})


class Look(NamedTuple):
    """What comes of considering a cluster: the rule's memory of it, a split if there is to be one, matrices to keep."""

    memory: Any
    split: SplitDecision | None = None
    matrices: Sequence[Matrix] = ()


class Watched(NamedTuple):
    """What comes of looking after a split: what to remember (None: the split stands), or the model to join all with."""

    memory: Any
    joint: Tensor | None = None
    """The model of the cluster that the parts become again; the memory is then that cluster's."""
    reason: str = ""
    moved: Mapping[str, int] = MappingProxyType({})
    """Members that go to another of the parts, by its number."""


class SplitRule:
    """When to split a cluster. A rule has no state of its own: what it remembers of a cluster is passed in and out.

    `consider` is all that a rule must have. The memory is any value that a checkpoint can hold.
    """

    needs_updates: ClassVar[bool] = True
    """Whether it looks at the single updates of a round."""
    tasks: ClassVar[tuple[type[Task], ...]] = ()
    """What it asks single clients for, beside updates (`Needs.tasks`)."""
    watches: ClassVar[bool] = False
    """Whether it looks after its splits, and may undo them."""

    def begin(self) -> Any:
        """The memory of a cluster that has just begun."""
        return None

    def consider(self, memory: Any, seen: LeafRound, t: int, server: Server) -> Look:
        """Look at a cluster after its round `t`."""
        raise NotImplementedError(f"{type(self).__name__} has no consider")

    def inherited(self, memory: Any, members: Sequence[str]) -> Any:
        """The memory that a child with these members begins with."""
        return self.begin()

    def watch(self, memory: Any, parent: Node, children: Sequence[Node], t: int, server: Server) -> Watched:
        """Look after a split in every round from the next on; called while the memory of the split cluster is kept."""
        return Watched(None)

    def newcomer(self, client: str, model: Tensor, t: int, server: Server, compared: Compared) -> Tensor:
        """What a newcomer is placed by at a node's model: of the kind that the edges of the tree hold."""
        return compared.of_newcomer(client, model, t, server)

    def thresholds(self, memory: Any) -> dict[str, float]:
        """What the rule compared its numbers with, by name, for the records."""
        return {}

    def obstacles(self, server: Server) -> list[str]:
        """What makes a split impossible in this run, in words, before the first round."""
        return []

    def why_whole(self, memory: Any, server: Server) -> Event:
        """After the last round of a run without a split: why there was none."""
        return Event("whole", "no split", {})


R = TypeVar("R", bound=type)
RULES: dict[str, type[SplitRule]] = {}
"""All rules by name."""


@dataclass_transform(frozen_default=True)
def split_rule(name: str) -> Callable[[R], R]:
    """Class decorator that makes a rule known by `name`, and its fields checked options."""

    def register(cls: R) -> R:
        RULES[name] = made = with_checked_options(cls, f"rule {name!r}")
        return made

    return register


def load_offered(name: str) -> None:
    """Load the rule that an installed package offers under this name, if there is none yet."""
    if name not in RULES and (point := offered("coterie.rules").get(name)) is not None:
        load(point, "rule")
