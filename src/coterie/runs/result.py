"""What a run gives back: clusters, models, history and summary, fresh or loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from coterie.errors import ConfigError, did_you_mean
from coterie.parameters import Layout, scatter
from coterie.runs.records import ClientRecord, RoundRecord, Spread, Summary, assignments, to_json

if TYPE_CHECKING:
    import pandas


def model_file(number: int) -> str:
    """The file that holds the model with an id, without its ending."""
    return f"cluster-{number}"


class History(list[RoundRecord]):
    """One record per round, as in `history.jsonl`."""

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row per round; nested numbers become columns such as `metrics.accuracy.mean`."""
        try:
            import pandas
        except ImportError:
            raise ConfigError('history.to_pandas() needs pandas: pip install "coterie[pandas]"') from None
        return pandas.json_normalize(to_json(list(self))).set_index("round")

    def assignment(self) -> dict[str, int]:
        """The cluster of every client as last recorded."""
        return assignments(self)


@dataclass(frozen=True)
class Result:
    """A finished run.

    Example:
        >>> import coterie
        >>> result = coterie.run("fedavg", scenario="digits-iid", clients=4, samples=40, rounds=2)
        >>> len(result.clusters), result.summary.rounds
        (1, 2)
        >>> model = result.model_of(result.clients[0].client)  # a torch module
    """

    summary: Summary
    """As in `summary.json`."""
    clusters: list[list[str]]
    """Client ids, one list per cluster."""
    history: History = field(repr=False)
    clients: list[ClientRecord] = field(repr=False)
    """One record per client: its cluster, the model it was measured with, its metrics on its own test data."""
    state: Any = field(repr=False)
    """The method's last state."""
    layout: Layout = field(repr=False)
    architecture: Callable[[int], nn.Module] | None = field(repr=False)
    path: Path | None = None
    files: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """The models `(d,)` by the names of their files, as `clients` refers to them."""
    private: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """The private layers of clients that have some, as far as they are known here."""
    private_layers: tuple[str, ...] = ()
    """The names of the private layers."""

    @classmethod
    def load(cls, path: str | Path, *, model: Any = None) -> Result:
        """Load a finished run from its folder.

        Args:
            path: the run's folder.
            model: the module or the callable that the run was given in Python; not needed for a model known by name.

        Returns:
            The result as `coterie.run` returned it.

        Raises:
            RunError: the folder holds no finished run, or a file of it is damaged.
        """
        from coterie.runs.loading import load_result

        return load_result(Path(path), model)

    def _repr_html_(self) -> str:
        """The summary table and the tree, for notebooks."""
        from coterie.runs.notebook import result_html

        return result_html(self)

    def record_of(self, client: str) -> ClientRecord:
        """A client's record; ConfigError where there is no such client."""
        for row in self.clients:
            if row.client == client:
                return row
        raise ConfigError(f"no client {client!r} in this run: {did_you_mean(client, [r.client for r in self.clients])}")

    @property
    def test(self) -> Mapping[str, Spread]:
        """The metrics over all clients, each on its own test data."""
        return self.summary.metrics

    @property
    def validation(self) -> Mapping[str, Spread]:
        """The metrics over all clients, each on its own validation data; empty where the run did not use it."""
        return self.summary.validation

    @cached_property
    def models(self) -> Sequence[Tensor]:
        """One flat vector `(d,)` per cluster; that of a client alone in its cluster holds its private layers."""
        rows = {row.client: row for row in self.clients}
        found = []
        for number, members in zip(self.summary.cluster_ids, self.clusters, strict=True):
            alone = rows.get(members[0]) if len(members) == 1 else None
            if alone is not None and alone.private and alone.model is not None:
                found.append(self._vector(alone))
            elif (name := model_file(number)) in self.files:  # a run may leave its models out
                found.append(self.files[name])
        return found

    def vector_of(self, client: str) -> Tensor:
        """The parameters `(d,)` that a client was measured with, its private layers included."""
        return self._vector(self.record_of(client))

    def _vector(self, row: ClientRecord) -> Tensor:
        if row.model is None:
            raise ConfigError(
                f"the model of client {row.client!r} is not known here: its own layers never left the client"
            )
        vector = self.files[row.model]
        if row.private:
            vector = vector.clone()
            scatter(vector, self.layout.select(self.private_layers), self.private[row.client])
        return vector

    def model_of(self, client: str) -> nn.Module:
        """A module with the parameters that this client was measured with, in evaluation mode.

        Args:
            client: the client's id.

        Returns:
            A new module, its private layers included.

        Raises:
            ConfigError: there is no such client, or its model is not known here.
        """
        if self.architecture is None:
            raise ConfigError("the network is not known here: only its arrays are")
        module = self.architecture(0)
        self.layout.write(self.vector_of(client), module)
        return module.eval()
