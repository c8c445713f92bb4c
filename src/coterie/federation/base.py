"""A federation: clients with stable ids, each with its own train, validation and test data, checked on the way in."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError
from coterie.federation.client import (
    ONE_TYPE,
    PARTS,
    STANDARD,
    Client,
    Splits,
    check_id,
    entry_of,
    make_client,
    several,
    values_of,
)

if TYPE_CHECKING:
    from coterie.federation.datasets import Datasets, Values
    from coterie.federation.labels import Task
    from coterie.federation.table_sites import Tables
    from coterie.federation.tables import Table

MOST_LABEL = 2**24
"""The largest label: up to here every whole number is one of float32, in which counts of labels are kept."""


class Federation:
    """An immutable, checked collection of clients.

    Made from data that you have by `from_tables`, `from_images`, `from_tensors`, `from_arrays`, `from_folder`,
    `from_datasets` or `from_hub`. `classes` is the number of labels, or 0 when the targets are real numbers
    (regression). `label_names` are the labels as they were given, where they were not numbers from 0; `table` is the
    preprocessing of a federation that was made from tables.

    Raises:
        DataError: there are no clients, two share an id, one has no training samples, their samples differ in shape or
            type, a label is out of range, or a number is not finite.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        classes: int | None = None,
        name: str = "federation",
        *,
        label_names: Sequence[str] | None = None,
        table: Table | None = None,
        task: Task | None = None,
    ) -> None:
        self.name = name
        self.clients = tuple(clients)
        self.ids = tuple(client.id for client in self.clients)
        self.label_names = tuple(label_names) if label_names else None
        self.table = table
        self._by_id = {client.id: client for client in self.clients}
        _check_ids(self.ids)
        _check_alike(self.clients)
        self.regression = self.clients[0].train.y.is_floating_point()
        if self.label_names and not self.regression:
            classes = len(self.label_names)
        for some in several(self.clients):
            _check_finite(some)
        if self.regression and task is None:
            _warn_of_classes(self.clients, name)
        self.classes = 0 if self.regression else _check_labels(self.clients, classes)

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    def __getitem__(self, client_id: str) -> Client:
        return self._by_id[client_id]

    def __repr__(self) -> str:
        sizes = [len(client.train) for client in self.clients]
        shape = "×".join(map(str, self.input_shape)) or "1"
        return (
            f"Federation({self.name!r}: {len(self)} clients, {min(sizes)}-{max(sizes)} training samples, input {shape})"
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def groups(self) -> list[int] | None:
        """The hidden groups in the order of `ids`, or None when any is unknown. For metrics only."""
        known = [client.group for client in self.clients if client.group is not None]
        return known if len(known) == len(self) else None

    def at(self, t: int) -> Federation:
        """The federation in round `t`, counted from 1: this one, unless it changes with time."""
        return self

    def with_clients(self, clients: Sequence[Client]) -> Federation:
        """The same with other clients in place of each, of the same ids and kinds: they are not checked again."""
        made = copy.copy(self)
        made.clients = tuple(clients)
        made._by_id = {client.id: client for client in made.clients}
        return made

    def subset(self, ids: Sequence[str]) -> Federation:
        """The federation of the named clients only."""
        return Federation(
            [self[client_id] for client_id in ids],
            self.classes or None,
            self.name,
            label_names=self.label_names,
            table=self.table,
            task="regression" if self.regression else None,
        )

    @classmethod
    def from_tensors(
        cls,
        data: Mapping[str, Any] | Sequence[Any],
        *,
        splits: Splits = STANDARD,
        groups: Mapping[str, int] | Sequence[int] | None = None,
        blocks: Mapping[str, Any] | Sequence[Any] | None = None,
        classes: int | None = None,
        task: Task | None = None,
        label_names: Sequence[str] | None = None,
        seed: int = 0,
        name: str = "tensors",
    ) -> Federation:
        """A federation from one item per client.

        Args:
            data: per client a pair `(x, y)`, or a dict of pairs for `train`, `validation`, `test`. A mapping gives the
                ids, a sequence numbers them. Tensors, arrays and lists of numbers will do; uint8 is scaled to [0, 1].
                Labels may also be texts, booleans, or numbers that do not begin at 0: they are counted from 0, and
                `label_names` keeps what they were.
            splits: fractions for train, validation and test. A bare pair, or a dict of `train` alone, is divided by
                them at random; (1, 0, 0) leaves it as it is.
            groups: the hidden group of each client, for metrics only.
            blocks: per client the block of each (training) sample: numbers or texts that name its recording, day or
                patient. The samples of a block are never divided between train, validation and test.
            classes: the number of labels; by default one more than the highest.
            task: "classification" or "regression", where the targets do not show it: floats are quantities, unless
                they are 0 and 1 only.
            label_names: the labels of classes 0, 1, … where they are known, such as those of another federation.
            seed: the seed of the random division.
            name: what the federation is called in records.

        Returns:
            The federation, its clients in the order of `data`.

        Raises:
            DataError: an item cannot be read as numbers, or the clients do not fit together.

        Example:
            >>> import torch
            >>> from coterie import Federation
            >>> x, y = torch.randn(20, 3), torch.arange(20) % 2
            >>> federation = Federation.from_tensors({"ward-a": (x, y), "ward-b": (x + 1, y)})
            >>> federation.ids, len(federation["ward-a"].train)
            (('ward-a', 'ward-b'), 16)
        """
        items = list(data.items()) if isinstance(data, Mapping) else [(str(i), item) for i, item in enumerate(data)]
        from coterie.federation.labels import encode_texts

        encoded, names = encode_texts(items, label_names)
        clients = []
        with no_collection():
            for position, (client_id, item) in enumerate(encoded):
                group = entry_of(groups, "groups", client_id, position)
                block = entry_of(blocks, "blocks", client_id, position)
                clients.append(make_client(str(client_id), item, splits, seed, group, block))
            return cls._named(clients, classes, name, task, names)

    @classmethod
    def _named(
        cls,
        clients: Sequence[Client],
        classes: int | None,
        name: str,
        task: Task | None,
        label_names: Sequence[str] | None = None,
    ) -> Federation:
        """The federation of clients whose labels are numbers, counted from 0 if they are not yet."""
        from coterie.federation.labels import name_numbers

        if label_names is None and clients:
            clients, label_names = name_numbers(clients, task, classes)
        return cls(clients, classes, name, label_names=label_names, task=task)

    @classmethod
    def from_arrays(
        cls,
        x: Values,
        y: Values,
        client: Values,
        *,
        splits: Splits = STANDARD,
        task: Task | None = None,
        label_names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation from one table: samples, targets, and a column that names the client of each row.

        Args:
            x: the samples `(n, …)`, or the `.npy` file that holds them.
            y: the targets `(n, …)`, likewise.
            client: the name of the client of each row `(n,)`, likewise.
            splits: fractions for train, validation and test, drawn at random. With (1, 0, 0), float32 rows of a file
                that lie together per client stay on disk until they are used.
            task: "classification" or "regression", as in `from_tensors`.
            label_names: the labels of classes 0, 1, …, as in `from_tensors`.
            seed: the seed of the random division.

        Returns:
            The federation, its clients in the order in which they first appear.

        Raises:
            DataError: the arrays have different lengths, a file cannot be read, or the clients do not fit together.

        Example:
            >>> import numpy as np
            >>> from coterie import Federation
            >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
            >>> Federation.from_arrays(x, y, np.repeat(["ann", "bob"], 20)).ids
            ('ann', 'bob')
        """
        from coterie.federation.datasets import items_from_arrays

        items = items_from_arrays(x, y, client)
        return cls.from_tensors(items, splits=splits, task=task, label_names=label_names, seed=seed, name="arrays")

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        splits: Splits = STANDARD,
        task: Task | None = None,
        label_names: Sequence[str] | None = None,
        seed: int = 0,
        memory_bytes: int | None = None,
    ) -> Federation:
        """A federation from a folder with one file per client, or one per array.

        Args:
            folder: it holds `<id>.npz` files with arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, … and
                optionally `group` and `block`, the block of each (training) sample; or `<id>.x.npy`, `<id>.y.npy` and
                so on. Inputs in `.npy` files, float32 or int64, stay on disk and are read as they are used.
            splits: fractions for train, validation and test where a client's data comes undivided. Archives are divided
                at random; `.npy` files as they lie, the first rows to train, because a random choice would copy them.
            task: "classification" or "regression", as in `from_tensors`.
            label_names: the labels of classes 0, 1, …, as in `from_tensors`.
            seed: the seed of the random division.
            memory_bytes: archives beyond a quarter of it are kept in a file without a name (in TMPDIR, else /var/tmp).

        Returns:
            The federation, called by the folder's name.

        Raises:
            DataError: there is no such folder, it holds no client, or a file of it is damaged.

        Example:
            >>> import tempfile
            >>> import numpy as np
            >>> from coterie import Federation
            >>> folder = tempfile.TemporaryDirectory()
            >>> for name in ("ann", "bob"):
            ...     np.savez(f"{folder.name}/{name}.npz", x=np.ones((10, 3), np.float32), y=np.arange(10) % 2)
            >>> Federation.from_folder(folder.name).ids
            ('ann', 'bob')
            >>> folder.cleanup()
        """
        from coterie.federation.folders import clients_from_folder

        clients, names = clients_from_folder(Path(folder), splits, seed, memory_bytes, label_names)
        return cls._named(clients, None, Path(folder).name, task, names)

    @classmethod
    def from_tables(
        cls,
        tables: Tables,
        label: str,
        *,
        client_column: str | None = None,
        drop: Iterable[str] = (),
        categorical: Iterable[str] = (),
        task: Task | None = None,
        scale: bool = True,
        max_categories: int = 64,
        decimal: str | None = None,
        splits: Splits = STANDARD,
        groups: Mapping[str, int] | None = None,
        blocks: str | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation from tables: CSV or Parquet files, or data frames.

        Numbers are scaled to mean 0 and deviation 1 over the training rows of all clients, each category is an input of
        its own, and an input says where a value is missing. For that a client gives counts, means and sums of squared
        deviations of its columns, and how often each category occurs; no row is pooled. `federation.table` is the
        fitted preprocessing.

        Args:
            tables: a pattern such as "sites/*.csv", a folder, a list of files, a mapping of files or data frames by
                client, or with `client_column` one file or data frame.
            label: the column to predict. Texts, booleans and few whole numbers are classes, `label_names` their names;
                other numbers are quantities.
            client_column: the column that names the client of each row; without it every file is a client.
            drop: columns to leave out.
            categorical: columns of numbers that are categories.
            task: "classification" or "regression", where the label does not show it.
            scale: whether numbers are scaled; missing ones are filled with the mean in any case.
            max_categories: categories of a column that get an input of their own; the rarest of more share one.
            decimal: the decimal mark of all files, "." or ","; by default it is found in each.
            splits: fractions for train, validation and test, drawn at random.
            groups: the hidden group of each client, for metrics only.
            blocks: a column such as a day, a patient or a recording, whose rows of one value are never divided between
                train, validation and test. It is no input.
            seed: the seed of the random division.

        Returns:
            The federation, its clients in the order of the files' names, or of their first rows.

        Raises:
            DataError: a file cannot be read, tables differ in their columns, or it is not clear what a column means.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from coterie import Federation
            >>> folder = tempfile.TemporaryDirectory()
            >>> for site in ("north", "south"):
            ...     rows = "".join(f"{age},{'yes' if age > 40 else 'no'}\\n" for age in range(20, 70, 2))
            ...     _ = Path(folder.name, f"{site}.csv").write_text(f"age,ill\\n{rows}")
            >>> federation = Federation.from_tables(f"{folder.name}/*.csv", label="ill")
            >>> federation.ids, federation.label_names, federation.table.features
            (('north', 'south'), ('no', 'yes'), ['age'])
            >>> folder.cleanup()
        """
        from coterie.federation.labels import classes_of_columns
        from coterie.federation.table_sites import common_columns, read_all, tables_name
        from coterie.federation.tables import (
            Table,
            check_named,
            check_options,
            client_of,
            column_names,
            fit_table,
            report_site,
            site_of,
        )

        drop, categorical = column_names(drop, "drop"), column_names(categorical, "categorical")
        check_options(label, client_column, decimal, max_categories)
        raw = read_all(tables, client_column, decimal)
        check_named(raw, label, {"drop": drop, "categorical": categorical, "blocks": (blocks,) if blocks else ()})
        names = classes_of_columns({one.origin: one.columns[label] for one in raw.values()}, label, task)
        sites = [site_of(name, one, blocks, splits, seed) for name, one in raw.items()]
        drop = drop if blocks is None else (*drop, blocks)
        left_out = {label, client_column, *drop}
        common_columns({site.raw.origin: [c for c in site.raw.columns if c not in left_out] for site in sites})
        reports = [report_site(site, label, left_out, categorical) for site in sites]
        table = fit_table(reports, Table(label, names, (), drop, client_column, decimal), max_categories, scale=scale)
        clients = [client_of(site, table, groups) for site in sites]
        done: Task = "classification" if names else "regression"
        return cls(clients, name=tables_name(tables), label_names=names, table=table, task=done)

    @classmethod
    def from_images(
        cls,
        folder: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        colour: bool | None = None,
        splits: Splits = STANDARD,
        seed: int = 0,
    ) -> Federation:
        """A federation from images in folders, `<folder>/<client>/<class>/*.png` (needs `coterie[images]`).

        Args:
            folder: a folder for each client, in it one for each class; or `train`, `validation` and `test`, each with
                folders of classes. Files that Pillow knows by their ending are read.
            size: side in pixels, or (height, width), to which every image is resized; needed if they differ.
            colour: three channels (True) or one (False); by default three if any image has colour.
            splits: fractions for train, validation and test, drawn at random where a client's images come undivided.
            seed: the seed of the random division.

        Returns:
            The federation, its inputs `(channels, height, width)` between 0 and 1, `label_names` its classes.

        Raises:
            DataError: there are no images, one cannot be read, or they differ in size.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from PIL import Image
            >>> from coterie import Federation
            >>> folder = tempfile.TemporaryDirectory()
            >>> for client, kind, i in [(c, k, i) for c in "ab" for k in ("cat", "dog") for i in range(5)]:
            ...     place = Path(folder.name, client, kind)
            ...     place.mkdir(parents=True, exist_ok=True)
            ...     Image.new("L", (8, 8), 10 * i).save(place / f"{i}.png")
            >>> federation = Federation.from_images(folder.name)
            >>> federation.ids, federation.input_shape, federation.label_names
            (('a', 'b'), (1, 8, 8), ('cat', 'dog'))
            >>> folder.cleanup()
        """
        from coterie.federation.images import clients_from_images

        clients, names = clients_from_images(Path(folder), size, colour, splits, seed)
        return cls(clients, name=Path(folder).name, label_names=names)

    @classmethod
    def from_datasets(
        cls,
        datasets: Datasets,
        *,
        splits: Splits = STANDARD,
        task: Task | None = None,
        label_names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation from one torch `Dataset` per client.

        Args:
            datasets: map-style data sets of `(x, y)` items, read once into tensors. A mapping gives the ids, a sequence
                numbers them. Items may be tensors, arrays, numbers or images of Pillow; labels also texts.
            splits: fractions for train, validation and test, drawn at random.
            task: "classification" or "regression", as in `from_tensors`.
            label_names: the labels of classes 0, 1, …, as in `from_tensors`.
            seed: the seed of the random division.

        Returns:
            The federation, its clients in the order of `datasets`.

        Raises:
            DataError: a data set is empty or its items differ in shape.

        Example:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> from coterie import Federation
            >>> one = TensorDataset(torch.randn(20, 3), torch.arange(20) % 2)
            >>> len(Federation.from_datasets({"ann": one, "bob": one}))
            2
        """
        from coterie.federation.datasets import items_from_datasets

        items = items_from_datasets(datasets)
        return cls.from_tensors(items, splits=splits, task=task, label_names=label_names, seed=seed, name="datasets")

    @classmethod
    def from_hub(
        cls,
        data: Any,
        *,
        x: str = "image",
        y: str = "label",
        client: str | None = None,
        transform: Callable[[np.ndarray], np.ndarray] | None = None,
        splits: Splits = STANDARD,
        task: Task | None = None,
        label_names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation from a Hugging Face data set or a `flwr_datasets` partitioner.

        Args:
            data: a `datasets.Dataset`, or a partitioner of `flwr_datasets`, each of whose partitions is a client.
            x: the column of the inputs.
            y: the column of the targets.
            client: the column that names the client of each row; a partitioner needs none.
            transform: applied to the inputs `(n, …)` of each client, for example to put channels first.
            splits: fractions for train, validation and test, drawn at random.
            task: "classification" or "regression", as in `from_tensors`.
            label_names: the labels of classes 0, 1, …, as in `from_tensors`.
            seed: the seed of the random division.

        Returns:
            The federation, its clients in the order in which they first appear.

        Raises:
            DataError: a column is missing, rows differ in shape, or a client has no rows.

        Example:
            >>> from datasets import Dataset
            >>> from coterie import Federation
            >>> rows = {"pixels": [[0.1, 0.2]] * 20, "label": [0, 1] * 10, "who": ["ann"] * 10 + ["bob"] * 10}
            >>> Federation.from_hub(Dataset.from_dict(rows), x="pixels", client="who").ids
            ('ann', 'bob')
        """
        from coterie.federation.datasets import items_from_hub

        items = items_from_hub(data, x, y, client, transform)
        return cls.from_tensors(items, splits=splits, task=task, label_names=label_names, seed=seed, name="hub")


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles inside: among very many objects that all stay it would only take time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_ids(ids: Sequence[str]) -> None:
    if not ids:
        raise DataError("the federation has no clients: give at least one")
    seen: set[str] = set()
    for client_id in ids:
        check_id(client_id)
        if client_id in seen:
            raise DataError(f"client {client_id!r} appears twice: give every client an id of its own")
        seen.add(client_id)


def _check_alike(clients: Sequence[Client]) -> None:
    first = clients[0]
    inputs, targets = first.train.x, first.train.y
    alike = (inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)
    for what, values in (("inputs", inputs), ("targets", targets)):
        if values.shape[1:].numel() == 0:
            raise DataError(
                f"client {first.id!r}: its {what} have shape {tuple(values.shape)}: give at least one number per sample"
            )
    for client in clients:
        if len(client.train) == 0:
            raise DataError(f"client {client.id!r} has no training samples: give it data or leave it out")
        if client.scaled != first.scaled:
            holder, beside = (client, first) if client.scaled else (first, client)
            raise DataError(
                f"client {holder.id!r} has uint8 inputs, which are scaled to [0, 1], and client {beside.id!r} has "
                f"not: {ONE_TYPE}"
            )
        for part in PARTS:
            split = client.part(part)
            shape, other = split.x.shape, split.y.shape
            if shape[0] != other[0] or (shape[1:], split.x.dtype, other[1:], split.y.dtype) != alike:
                _refuse_part(client, part, first)


def _refuse_part(client: Client, part: str, first: Client) -> None:
    """Say in what a part is unlike the first client's training data."""
    split = client.part(part)
    if len(split.x) != len(split.y):
        raise DataError(
            f"client {client.id!r}, {part}: x has {len(split.x)} samples and y has {len(split.y)} targets: "
            "give one target for each sample"
        )
    for what, here, there in (("x", split.x, first.train.x), ("y", split.y, first.train.y)):
        if here.shape[1:] != there.shape[1:] or here.dtype != there.dtype:
            raise DataError(
                f"client {client.id!r}, {part}.{what}: shape {tuple(here.shape[1:])} {here.dtype}, but client "
                f"{first.id!r} has {tuple(there.shape[1:])} {there.dtype}: all clients need the same"
            )


def _warn_of_classes(clients: Sequence[Client], name: str) -> None:
    """Warn where all real targets look like class labels."""
    if all(_whole(client.train.y) for client in clients):
        warnings.warn(
            f"the targets of {name!r} are whole numbers stored as floats, so this is a regression: store class "
            "labels as integers, or say which it is with task='classification' or task='regression'",
            stacklevel=3,
        )


def _whole(targets: Tensor) -> bool:
    """Whether real targets look like class labels: one whole number from 0 up per sample."""
    return targets.ndim == 1 and bool((targets >= 0).all()) and bool((targets == targets.round()).all())


def _check_labels(clients: Sequence[Client], classes: int | None) -> int:
    """The number of classes: one more than the highest label, where it is not given."""
    above = MOST_LABEL if classes is None else classes
    highest = 0
    for some in several(clients):
        values = values_of(some, "y")
        highest = max(highest, int(values.max()))
        if values.min() < 0 or highest >= above:
            _refuse_labels(some, above)
    return highest + 1 if classes is None else classes


def _refuse_labels(clients: Sequence[Client], above: int) -> None:
    """Name the first client with a label below 0 or not below `above`."""
    for client in clients:
        for part in PARTS:
            y = client.part(part).y
            wrong = y[(y < 0) | (y >= above)]
            if len(wrong):
                bad = wrong.min() if wrong.min() < 0 else wrong.max()
                raise DataError(
                    f"client {client.id!r}, {part}: label {int(bad)} is out of range, expected 0 to {above - 1}: "
                    "renumber the labels or give the right number of classes"
                )


def _check_finite(clients: Sequence[Client]) -> None:
    if len(clients) > 1 and all(
        torch.isfinite(values_of(clients, what).sum())
        for what in ("x", "y")
        if getattr(clients[0].train, what).is_floating_point()
    ):
        return
    for client in clients:
        _check_finite_client(client)


def _check_finite_client(client: Client) -> None:
    for part in PARTS:
        split = client.part(part)
        for what in ("x", "y"):
            values = getattr(split, what)
            # A sum is finite only if every term is (or if huge terms overflow: then look closely).
            if values.is_floating_point() and len(values) and not torch.isfinite(values.sum()):
                bad = (~torch.isfinite(values)).flatten(1).any(1) if values.ndim > 1 else ~torch.isfinite(values)
                if bad.any():
                    raise DataError(
                        f"client {client.id!r}, {part}.{what}: sample {int(bad.nonzero()[0])} holds NaN or Inf: "
                        "clean it or leave the sample out"
                    )
