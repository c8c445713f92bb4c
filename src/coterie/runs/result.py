"""What a run gives back: clusters, models, history and summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from coterie.errors import ConfigError, did_you_mean
from coterie.parameters import Layout

if TYPE_CHECKING:
    import pandas


class History(list[dict[str, Any]]):
    """A record a round, as in `history.jsonl`."""

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row a round; nested numbers become columns such as `accuracy.mean`."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("history.to_pandas() needs pandas: pip install pandas") from None
        return pandas.json_normalize(list(self)).set_index("round")


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    """As in `summary.json`."""
    clusters: list[list[str]]
    """Client ids, one list a cluster."""
    models: Sequence[Tensor] = field(repr=False)
    """One flat vector `(d,)` a cluster."""
    history: History = field(repr=False)
    clients: list[dict[str, Any]] = field(repr=False)
    """One row a client: cluster, loss and accuracy on its own test data."""
    state: Any = field(repr=False)
    """The method's last state; for CFL it holds the tree."""
    layout: Layout = field(repr=False)
    architecture: Callable[[int], nn.Module] = field(repr=False)
    path: Path | None = None
    given: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Vectors of the clients that use another model than their cluster's, or have private layers in it."""

    def _repr_html_(self) -> str:
        """The summary table and the tree, for notebooks."""
        from coterie.runs.notebook import result_html

        return result_html(self)

    def model_of(self, client: str) -> nn.Module:
        """A module with the parameters that this client was given, its private layers included, ready to evaluate."""
        for model, members in zip(self.models, self.clusters, strict=True):
            if client in members:
                module = self.architecture(0)
                self.layout.write(self.given.get(client, model), module)
                return module.eval()
        known = [c for members in self.clusters for c in members]
        raise ConfigError(f"no client {client!r} in this run: {did_you_mean(client, known)}")
