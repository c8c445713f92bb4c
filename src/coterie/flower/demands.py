"""What a node that holds a secret for secure sums lets a server ask of it: exchanges of sums, losses, and little else.

Other tasks answer with projections, distances, codes or models of this client alone. A method that needs one declares
it (`Needs.tasks`), and the node's operator lets it through (`sums-allow` in the node-config). Losses of any model that
the server sends are reported in any case, and a server that chooses its models can learn much from them.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.errors import ConfigError, did_you_mean
from coterie.methods import make_method
from coterie.methods.needs import needs_of
from coterie.parameters import Layout
from coterie.privacy.secure_tasks import Agree, CheckShares, Masked, OfferKeys, Reveal, ShareSecrets
from coterie.tasks import Evaluate
from coterie.tasks.base import Task
from coterie.tasks.personalise import Personalise
from coterie.trainers.base import SumRules

ALWAYS = (OfferKeys, ShareSecrets, CheckShares, Masked, Agree, Reveal, Evaluate, Personalise)


def tasks_beside_sums(method: str) -> list[str]:
    """The tasks that a method needs on secure sums beside the sums themselves, by name."""
    needs = needs_of(make_method(method))
    return [] if needs is None else [task.__name__ for task in needs.tasks]


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of tasks that an operator lets through; ConfigError for one that is not known."""
    given = tuple(name for name in (name.strip() for name in names) if name)
    known = {task.__name__ for task in Task.kinds.values()}
    for name in given:
        if name not in known:
            raise ConfigError(f"sums-allow={name!r}: {did_you_mean(name, sorted(known))}")
    return given


def check_task(task: Task, rules: SumRules, layout: Layout) -> None:
    """ConfigError for what this node does not answer."""
    if isinstance(task, Masked):
        if not (_hidden_by_sums(task.task, layout) or type(task.task).__name__ in rules.allowed):
            raise ConfigError(f"this node puts no {type(task.task).__name__} into secure sums")
        return
    schema = task.schema(layout)
    allowed = type(task).__name__ in rules.allowed and (schema.shown or not schema.shows_vector)
    if not (allowed or type(task) in ALWAYS):
        raise ConfigError(
            f"this node sends single updates nowhere, and answers {type(task).__name__} only if its operator says so "
            "(sums-allow): run with secure_sums"
        )


def _hidden_by_sums(task: Task, layout: Layout) -> bool:
    """Whether a secure sum hides all of the task's reply but single numbers, such as its loss."""
    schema = task.schema(layout)
    return schema.shows_vector and schema.only_numbers and schema.choices == 1
