"""What a node with a list of the clients' keys lets a server ask of it: exchanges of secure sums, losses, little else.

Other tasks answer with projections, distances, codes or models of this client alone. A method that needs one declares
it (`Needs.tasks`), and the node's operator lets it through (`sums-allow` in the node-config). Losses of any model that
the server sends are reported in any case, and a server that chooses its models can learn much from them.

Such a node bounds the terms of a sum by itself: `least-in-sum` clients or more (3), no weight above `sums-uneven` times
another's (10), noise of `sums-noise` times the length that updates are cut to, or more (0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context

from coterie.errors import ConfigError, did_you_mean
from coterie.flower.certificates import read_lines
from coterie.methods import make_method
from coterie.methods.needs import needs_of
from coterie.parameters import Layout
from coterie.privacy.client_keys import owner_from_line
from coterie.privacy.secure_tasks import Agree, CheckShares, Masked, OfferKeys, Reveal, ShareSecrets
from coterie.tasks import Evaluate
from coterie.tasks.base import Task
from coterie.tasks.personalise import Personalise
from coterie.trainers.base import UNEVEN, SumRules

LEAST_IN_SUM = 3
"""How many vectors a sum must be of for a node that demands secure sums and says no number."""
ALWAYS = (OfferKeys, ShareSecrets, CheckShares, Masked, Agree, Reveal, Evaluate, Personalise)


def tasks_beside_sums(method: str) -> list[str]:
    """The tasks that a method needs on secure sums beside the sums themselves, by name."""
    needs = needs_of(make_method(method))
    return [] if needs is None else [task.__name__ for task in needs.tasks]


def sum_rules(context: Context, clients: Mapping[str, str] | None) -> SumRules | None:
    """What this node demands of secure sums: None without a list of the clients' keys, in a file or as given."""
    node = context.node_config
    if (file := node.get("sums-clients-file")) is not None:
        clients = read_lines(Path(str(file)))
    if clients is None:
        return None
    least = node.get("least-in-sum", LEAST_IN_SUM)
    if not isinstance(least, int) or least < 2:
        raise ConfigError(f"least-in-sum={least!r}: expected a whole number from 2 on")
    owners = frozenset(owner_from_line(line) for line in clients.values())
    if len(owners) < len(clients):
        raise ConfigError("two clients have the same key: with its key each proves who it is")
    allowed = check_names(str(node.get("sums-allow", "")).split(","))
    return SumRules(owners, least, allowed, _number(node, "sums-uneven", UNEVEN, 1.0), _number(node, "sums-noise", 0.0))


def _number(node: Mapping[str, Any], name: str, default: float, least: float = 0.0) -> float:
    given = node.get(name, default)
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given < math.inf:
        raise ConfigError(f"{name}={given!r}: expected a number from {least:g} on")
    return float(given)


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
