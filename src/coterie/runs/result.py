"""What a run gives back: clusters, models, history and summary, fresh or loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from coterie import plugins
from coterie.errors import ConfigError, did_you_mean
from coterie.models.ensemble import Ensemble
from coterie.parameters import Layout, scatter, span_size
from coterie.runs.records import ClientRecord, History, Spread, Summary, model_file
from coterie.runs.target_scaling import TargetScaling
from coterie.runs.words import mixture_text

if TYPE_CHECKING:
    import numpy as np

    from coterie.federation import Federation
    from coterie.federation.tables import Table
    from coterie.runs.prepared import Placing
    from coterie_advice import Explanation
    from coterie_inference.newcomers import Drift
    from coterie_inference.unlabelled import InputFit


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
    shape: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the model takes and answers, as in `model.json`."""
    table: Table | None = field(default=None, repr=False)
    """How rows of a table become inputs, where the run was trained on tables."""
    placing: Placing | None = field(default=None, repr=False)
    """What newcomers are placed by."""

    @property
    def clusters(self) -> list[list[str]]:
        """Client ids, one list per cluster."""
        return self.summary.clusters

    def _repr_html_(self) -> str | None:
        """The summary table and the tree, for notebooks; None, and so plain text, without the package that draws it."""
        point = plugins.offered("coterie.results").get("html")
        return None if point is None else str(plugins.load(point, "view")(self))

    def record_of(self, client: str) -> ClientRecord:
        """A client's record; ConfigError where there is no such client, or the run does not know its model."""
        if self.summary.hidden_sizes is not None:
            raise ConfigError(
                f"client {client!r}: which model it chose only the client knows (hide_choice=True); with its data, ask "
                "result.assign, or give cluster=…"
            )
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
            elif (name := model_file(number)) in self.files:  # they may have been removed
                found.append(self.files[name])
        return found

    def vector_of(self, client: str) -> Tensor:
        """The parameters `(d,)` that a client was measured with, its private layers included.

        ConfigError for a client that is served by a mixture of models.
        """
        return self._vector(self.record_of(client))

    def _vector(self, row: ClientRecord) -> Tensor:
        if self._mixed(row):
            raise ConfigError(
                f"client {row.client!r} is served by a mixture of models ({mixture_text(row.mixture)}), not by one "
                "vector: use model_of, or the models of the clusters"
            )
        return self._vector_in(row, row.model)

    def _mixed(self, row: ClientRecord) -> bool:
        """Whether a client needs several models; one whose layers are all its own has one, whatever the mixture."""
        own = row.private and span_size(self.layout.select(self.private_layers)) == self.layout.size
        return bool(row.mixture) and not own

    def _vector_in(self, row: ClientRecord, file: str | None) -> Tensor:
        """The parameters `(d,)` in a file, with the client's private layers in place."""
        if file is None:
            raise ConfigError(
                f"the model of client {row.client!r} is not known here: its own layers never left the client"
            )
        vector = self.files[file]
        if row.private:
            vector = vector.clone()
            scatter(vector, self.layout.select(self.private_layers), self.private[row.client])
        return vector

    def model_of(self, client: str) -> nn.Module:
        """A module with the parameters that this client was measured with, in evaluation mode.

        Args:
            client: the client's id.

        Returns:
            A new module, its private layers included; for a client that is served by a mixture of models one that
            answers with their weighted mean.

        Raises:
            ConfigError: there is no such client, or its model is not known here.
        """
        row = self.record_of(client)
        if not self._mixed(row):
            return self.module_with(self._vector(row))
        members = [self.module_with(self._vector_in(row, file)) for file in row.mixture]
        regression = not self.shape.get("classes", 0)
        return Ensemble(members, list(row.mixture.values()), regression=regression).eval()

    def path_of(self, client: str) -> dict[int, nn.Module]:
        """The models on the way to a client's cluster, of a method that grows a tree of them.

        Args:
            client: the client's id.

        Returns:
            New modules by the cluster's id, from the model of all clients to that of the client's cluster.

        Raises:
            ConfigError: the method has no such path, or is not known here.
        """
        path = None if self.placing is None else getattr(self.placing.method, "path", None)
        if self.placing is None or path is None:
            raise ConfigError(f"method {self.summary.method!r} has no path of models here, only those of its clusters")
        vectors = path(self.state, client)
        return {number: self.module_with(self.placing.reveal(vector)) for number, vector in vectors.items()}

    def ensemble_of(self, client: str) -> nn.Module:
        """One module that averages the predictions of all models on the way to a client's cluster.

        Args:
            client: the client's id.

        Returns:
            A new module, in evaluation mode.

        Raises:
            ConfigError: as `path_of`.
        """
        return Ensemble(list(self.path_of(client).values()), regression=not self.shape.get("classes", 0)).eval()

    def module_with(self, vector: Tensor) -> nn.Module:
        """A new module with the parameters `(d,)`, in evaluation mode; it answers in the units of a table's label."""
        if self.architecture is None:
            raise ConfigError("the network is not known here: only its arrays are")
        module = self.architecture(0)
        self.layout.write(vector, module)
        return TargetScaling.of(self.table).module(module.eval())

    def predict(
        self, inputs: Any, *, client: str | None = None, cluster: int | None = None, probabilities: bool = False
    ) -> np.ndarray:
        """What a client's model, or a cluster's, says of new samples.

        Args:
            inputs: an array or tensor `(n, …)`, or the path of a `.npz` or `.npy` file; for a run on tables a data
                frame or a table file with the run's columns, as they are before any preprocessing. Labels are not used.
            client: the client whose model is used, its private layers included.
            cluster: the cluster whose model is used. Where the run has one model, neither is needed.
            probabilities: whether to return a probability of every class.

        Returns:
            A class per sample `(n,)`, by name where the run knows names, or probabilities `(n, classes)`. For a
            regression numbers `(n,)`, or `(n, targets)` where there are several.

        Raises:
            ConfigError: there is no such client or cluster, or none is named and there are several models.
            DataError: the inputs are not of the shape or type that the model takes.

        Example:
            >>> import coterie
            >>> from coterie.data.scenarios import find_scenario
            >>> data = find_scenario("digits-rotated").build(clients=4, groups=2, seed=0)
            >>> result = coterie.run("ifca:k=2", data, model="mlp", rounds=3)
            >>> result.predict(data["client-0"].test.x[:5], client="client-0").shape
            (5,)
        """
        predicted: np.ndarray = _inference("predict")(self, inputs, client, cluster, probabilities=probabilities)
        return predicted

    def evaluate(
        self, data: Any, *, client: str | None = None, cluster: int | None = None, metrics: Any = None
    ) -> dict[str, float]:
        """Measure a client's model, or a cluster's, on new labelled data.

        Args:
            data: a pair `(inputs, labels)`, a `Split` such as `federation["a"].test`, or a `.npz` file with arrays x
                and y; for a run on tables a data frame or a table file with the label's column.
            client: the client whose model is used.
            cluster: the cluster whose model is used. Where the run has one model, neither is needed.
            metrics: further metrics by name, or functions by name (see `coterie.metrics`); by default those of the run.

        Returns:
            Loss, accuracy (of classes), and the further metrics by name.

        Raises:
            ConfigError: there is no such client, cluster or metric.
            DataError: the data has no labels, or does not fit the model.
        """
        measured: dict[str, float] = _inference("evaluate")(self, data, client, cluster, metrics=metrics)
        return measured

    def export(
        self, path: str | Path, *, client: str | None = None, cluster: int | None = None, format: str | None = None
    ) -> Path:
        """Write a client's model, or a cluster's, as a file that needs no Coterie.

        Beside it, in `<path>.json`, stands what the model takes and answers: shape and type of the inputs, the classes'
        names, and for a run on tables the preprocessing of the columns.

        Args:
            path: the file to write.
            client: the client whose model is written, its private layers included.
            cluster: the cluster whose model is written. Where the run has one model, neither is needed.
            format: "state_dict" (read by `torch.load`, or safetensors where the path ends so), "torchscript" or
                "onnx"; by default what the path's ending says, .onnx or .ts, else a state dict.

        Returns:
            The path.

        Raises:
            ConfigError: the format is unknown, its packages are missing, or torch cannot write this model so.
        """
        written: Path = _inference("export")(self, path, client, cluster, format=format)
        return written

    def assign(self, data: Any) -> dict[str, int]:
        """Place newcomers in the run's clusters by its own method; no other client is moved, and no model changes.

        CFL lets a newcomer train from the models on its way down the tree; IFCA and one-shot take the model with the
        lowest loss, FedSEM the nearest one, FLT and its PCA baseline the nearest inputs (no labels needed), FedCUAU the
        last cluster. With one model for all there is one place. Where the method needs labels and there are none, a
        newcomer goes to the one cluster that it fits by its inputs, see `fits`.

        Args:
            data: one newcomer as a pair `(inputs, labels)`, or inputs alone where the method needs no labels, or a
                file; several as a mapping by id, a `Federation`, or a folder with a file for each.

        Returns:
            The cluster's id by newcomer; one without a name is called "newcomer".

        Raises:
            ConfigError: the method has no place for newcomers, or there are no labels and inputs do not say where.
            DataError: the data does not fit the run's model.
        """
        places: dict[str, int] = _inference("assign")(self, data)
        return places

    def fits(self, data: Any, federation: Federation | None = None) -> dict[str, InputFit]:
        """Ask which cluster newcomers fit by their inputs alone; labels are not looked at.

        The means and mean squares of a newcomer's inputs are compared with those of each cluster's clients. Its
        distance to a cluster over that to the nearest other one is ranked among the same of the run's clients, each
        left out of its own (a conformal p-value, level 5 %). It fits one cluster, or several alike, as where clusters
        differ in labels only, or none, which is an alarm.

        Args:
            data: one newcomer, or several, as for `assign`.
            federation: the run's clients, as for `explain`.

        Returns:
            By newcomer the cluster (None: its inputs do not say), p-values, and a reason; `str` of it is a sentence.

        Raises:
            ConfigError: the clients' data is not at hand, the inputs are tokens, or the run keeps from the server
                what clients would send.
            DataError: the data does not fit the run's model, or the federation lacks a client of the run.
        """
        found: dict[str, InputFit] = _inference("fits")(self, data, federation)
        return found

    def drift(self, client: str, data: Any) -> Drift:
        """Ask whether a client of the run still fits its cluster.

        Args:
            client: the client's id.
            data: new labelled samples of the client, as for `evaluate`.

        Returns:
            Losses now, at training time and under other clusters' models, and p-values; `str` of it is a sentence,
            `.drifted` the answer.

        Raises:
            ConfigError: there is no such client.
            DataError: the data has no labels, too few samples, or does not fit the model.
        """
        judged: Drift = _inference("drift")(self, client, data)
        return judged

    def explain(self, federation: Federation | None = None) -> Explanation:
        """Ask why the clusters differ: each cluster's model is tried on the other clusters' clients.

        Args:
            federation: the run's clients; not needed where the run's folder says which scenario or files they are from.

        Returns:
            Every model on every cluster, and for each two clusters what sets them apart: the names of the labels, the
            label mix, the inputs, or the rule. `str` of it is a table and sentences.

        Raises:
            ConfigError: the clients' data is not at hand, or clients keep layers of their own.
            DataError: the federation lacks a client of the run, or does not fit its model.

        Example:
            >>> import coterie
            >>> from coterie.data.scenarios import find_scenario
            >>> data = find_scenario("digits-swapped").build(clients=6, groups=2, seed=1)
            >>> result = coterie.run("ifca:k=2,init=k-means++", data, model="mlp:hidden=32", rounds=15)
            >>> print(result.explain(data).pairs[0].kind)
            labels
        """
        explain = plugins.required("coterie.results", "explain", "Result.explain", "coterie-advice")
        explanation: Explanation = explain(self, federation)
        return explanation


def _inference(name: str) -> Callable[..., Any]:
    """What a result does with its models, from the package beside the core that does it."""
    act: Callable[..., Any] = plugins.required("coterie.results", name, f"Result.{name}", "coterie-inference")
    return act
