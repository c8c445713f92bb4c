"""What a method needs of clients, declared once; read by differential privacy, secure sums, networks and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.tasks import Evaluate, Request, Task

OTHERS = "use cfl, ifca or fedavg with them, or leave privacy and secure_sums out"


@dataclass(frozen=True)
class Needs:
    """What a method needs beside weighted sums of clients' vectors and the losses of models that it sends.

    A method declares it as `needs`, a class attribute or, where options decide, a property. The server holds the method
    to it. Without a declaration a method may ask for anything that the engine gives, and differential privacy refuses
    it.

    Example:
        >>> from coterie.methods import FedAvg, make_method
        >>> from coterie.methods.needs import Needs
        >>> FedAvg.needs == Needs()
        True
        >>> make_method("flhc").needs.updates
        'must'
    """

    updates: Literal["never", "may", "must"] = "never"
    """Vectors of single clients: "may" looks at them where they are shown, and does with sums elsewhere."""
    tasks: tuple[type[Task], ...] = ()
    """Tasks beside Evaluate to which the replies of single clients are seen: projections, centroids, weights."""
    choices: Literal["none", "seen", "hidden"] = "none"
    """Whether there are several sums and clients choose theirs, so that the number in each is of their data."""
    personal: bool = False
    """Whether clients keep layers or models of their own."""
    of_data: str = ""
    """What single clients send of their inputs, in words; refused beside masked updates and secure sums."""
    in_sums: bool = False
    """Whether that goes into sums where these are secure."""
    agreed: bool = True
    """Whether the options say that a server on a network may see it."""
    unnoised: str = ""
    """Why noise on the sums would not cover all that the method publishes, in words."""
    instead: str = ""
    """What to do where the needs cannot be met."""

    def beyond_noise(self) -> str | None:
        """Why differential privacy does not cover a method with these needs, or None."""
        if self.unnoised:
            return self.unnoised
        if self.updates == "must":
            return "it looks at single updates, which have no noise"
        if self.tasks:
            return f"replies of single clients to {', '.join(task.__name__ for task in self.tasks)} have no noise"
        if self.personal:
            return "clients have layers or a model of their own, which have no noise"
        return None


def needs_of(method: Any) -> Needs | None:
    """What a method declares; None where it declares nothing."""
    found = getattr(method, "needs", None)
    if found is not None and not isinstance(found, Needs):
        raise ConfigError(f"{type(method).__name__}.needs is {found!r}: expected a Needs")
    return found


def check_protection(method: Any, secure: bool, masked: bool) -> None:
    """Refuse what secure sums do not show, and what would undo them or the masks of updates."""
    needs, name = needs_of(method) or Needs(), _name(method)
    if needs.of_data and masked:
        raise ConfigError(f"{name}: {needs.of_data} would go out in clear beside masked updates: {OTHERS}")
    if not secure:
        return
    if needs.of_data and not needs.in_sums:
        instead = (needs.agreed and needs.instead) or OTHERS
        raise ConfigError(f"{name}: {needs.of_data} would go out in clear beside secure sums: {instead}")
    if needs.updates == "must":
        instead = needs.instead or "use a method that needs sums only, such as fedavg or ifca"
        raise ConfigError(f"{name} needs single updates, which secure sums do not show: {instead}")


def check_network(method: Any, secure: bool) -> None:
    """Refuse to send what reveals single samples over a network in clear, unless the options agree to it."""
    needs = needs_of(method)
    if needs is not None and needs.of_data and not (needs.agreed or secure):
        instead = needs.instead or "give secure_sums=true, or use another method"
        raise ConfigError(
            f"{_name(method)} would send {needs.of_data} over the network in clear, which can reveal single samples: "
            f"{instead}"
        )


def _name(method: Any) -> str:
    return str(getattr(method, "name", type(method).__name__))


def check_requests(needs: Needs, requests: Sequence[Request], layout: Layout, summed: bool) -> None:
    """ConfigError for requests beyond a method's declared needs; one of each kind of task is looked at."""
    for kind, task in {type(request.task): request.task for request in requests}.items():
        why = None if isinstance(task, Evaluate) or kind in needs.tasks else _beyond(needs, task, layout, summed)
        if why is not None:
            raise ConfigError(f"the method asks for {kind.__name__}, beyond what it declares as `needs`: {why}")


def _beyond(needs: Needs, task: Task, layout: Layout, summed: bool) -> str | None:
    """What of a task's reply was not declared, and how to declare it; None if all was."""
    schema = task.schema(layout)
    if task.keeps_own_model and not needs.personal:
        return "clients keep a model of their own, declare Needs(personal=True)"
    if schema.choices > 1 and needs.choices == "none":
        return "clients choose their sum, declare Needs(choices='seen')"
    if summed:
        declared = schema.only_numbers
    elif schema.shows_vector and needs.updates == "never":
        return "it sees single vectors, use server.exchange(…) for sums or declare Needs(updates='must')"
    else:
        declared = schema.shows_vector or task.keeps_own_model
    return None if declared else f"it sees single clients' replies, declare Needs(tasks=({type(task).__name__},))"
