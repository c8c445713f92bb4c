"""The records of a run's rounds, as a table and as questions that they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import extra
from coterie.runs.records import RoundRecord, assignments, to_json

if TYPE_CHECKING:
    import pandas

CHANGED = "changed"
"""The kind of the event that tells of clients whose data has changed."""


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
        changes = [r.round for r in self if any(event.kind == CHANGED for event in r.events)]
        ends = [*changes[1:], len(self) + 1]
        known = {r.round: r.accuracy.mean for r in self if r.accuracy.mean is not None}
        found: dict[int, int | None] = {}
        for change, end in zip(changes, ends, strict=False):
            before = [value for t, value in known.items() if t < change]
            back = [t - change for t in range(change, end) if before and known.get(t, -1.0) >= before[-1] - within]
            found[change] = back[0] if back else None
        return found
