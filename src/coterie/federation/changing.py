"""Federations that change with time: the same clients, whose data is another from given rounds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.errors import DataError
from coterie.federation.base import Federation
from coterie.federation.client import Client


class ChangingFederation(Federation):
    """A federation whose clients hold other data from given rounds on; to look at it is to look at its first phase.

    `phases` maps the first round of each phase to the federation as it is from then on; one begins with round 1. All
    have the same clients, and samples of one shape and kind. A client that does not change is the same object.

    Example:
        >>> import torch
        >>> from coterie import Federation
        >>> from coterie.federation import ChangingFederation
        >>> x = torch.randn(20, 2)
        >>> before = Federation.from_tensors({"ann": (x, (x[:, 0] > 0).long())})
        >>> after = Federation.from_tensors({"ann": (x, (x[:, 0] < 0).long())})
        >>> changing = ChangingFederation({1: before, 11: after})
        >>> changing.at(10) is before, changing.at(11) is after
        (True, True)
    """

    def __init__(self, phases: Mapping[int, Federation]) -> None:
        self.phases = dict(sorted(phases.items()))
        if next(iter(self.phases), None) != 1:
            raise DataError(f"phases begin in rounds {list(self.phases)}: the first one begins in round 1")
        first = self.phases[1]
        for start, phase in self.phases.items():
            if phase.ids != first.ids:
                raise DataError(f"the phase from round {start} has other clients: only their data may change")
            if (phase.input_shape, phase.regression) != (first.input_shape, first.regression):
                raise DataError(f"the phase from round {start} has samples of another shape or kind")
        classes = max(phase.classes for phase in self.phases.values())
        super().__init__(
            first.clients,
            classes or None,
            first.name,
            label_names=first.label_names,
            table=first.table,
            task="regression" if first.regression else None,
        )

    def at(self, t: int) -> Federation:
        """The federation in round `t`, counted from 1."""
        return self.phases[max(start for start in self.phases if start <= max(t, 1))]

    def subset(self, ids: Sequence[str]) -> ChangingFederation:
        """The federation of the named clients only, in all phases."""
        return ChangingFederation({start: phase.subset(ids) for start, phase in self.phases.items()})


def changed_clients(before: Federation, after: Federation) -> list[Client]:
    """The clients of `after` whose data is another than in `before`."""
    return [client for client in after if client is not before[client.id]]
