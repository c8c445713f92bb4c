"""What a node that holds a secret for secure sums lets a server ask of it: exchanges of sums, losses, and little else.

Other tasks answer with projections, distances, codes or models of this client alone. A method that needs one names it
(`tasks_beside_sums`), and the node's operator lets it through (`sums-allow` in the node-config). Losses of any model
that the server sends are told in any case, and a server that chooses its models can learn much from them.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.errors import ConfigError, did_you_mean
from coterie.privacy.projection import Compare, CompareHalves
from coterie.privacy.secure_tasks import Agree, CheckShares, Masked, OfferKeys, Reveal, ShareSecrets
from coterie.tasks import CountChoice, Evaluate, HalfUpdates, HeldOut, ScoreHidden, Train, TrainHidden
from coterie.tasks.base import Task
from coterie.tasks.embed import Embed
from coterie.tasks.personalise import Personalise
from coterie.tasks.staged import Divergence, LayerUpdate, StagedTraining
from coterie.tasks.train import Collect
from coterie.tasks.words import WordSums
from coterie.trainers.base import SumRules

ALWAYS = (OfferKeys, ShareSecrets, CheckShares, Masked, Agree, Reveal, Evaluate, Personalise)
SUMMED = (
    Train, HalfUpdates, CountChoice, TrainHidden, ScoreHidden, LayerUpdate, StagedTraining, WordSums,
)  # fmt: skip
"""Tasks whose vectors may go into a sum."""
BESIDE_SUMS: dict[str, tuple[type[Task], ...]] = {
    "cfl": (Compare, CompareHalves, HeldOut),
    "fedcuau": (Divergence,),
    "flt": (Embed, HeldOut),
    "oneshot": (Collect, Train),
}
"""What methods ask for beside sums, by their name."""
ON_REQUEST = {task.__name__: task for tasks in BESIDE_SUMS.values() for task in tasks}


def tasks_beside_sums(method: str) -> list[str]:
    """The tasks that a method needs on secure sums beside the sums themselves, by name."""
    return [task.__name__ for task in BESIDE_SUMS.get(method.partition(":")[0], ())]


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of tasks that an operator lets through; ConfigError for one that is not known."""
    given = tuple(name for name in (name.strip() for name in names) if name)
    for name in given:
        if name not in ON_REQUEST:
            raise ConfigError(f"sums-allow={name!r}: {did_you_mean(name, ON_REQUEST)}")
    return given


def check_task(task: Task, rules: SumRules) -> None:
    """ConfigError for what this node does not answer."""
    if type(task) not in ALWAYS and type(task) not in {ON_REQUEST[name] for name in rules.allowed}:
        raise ConfigError(
            f"this node sends single updates nowhere, and answers {type(task).__name__} only if its operator says so "
            "(sums-allow): run with secure_sums"
        )
    if isinstance(task, Masked) and type(task.task) not in SUMMED:
        raise ConfigError(f"this node puts no {type(task.task).__name__} into secure sums")
