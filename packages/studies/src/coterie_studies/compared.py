"""`coterie.compare`: methods on the same clients with one budget equal, and the table in every form it is wanted in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.errors import ConfigError
from coterie.runs import check_federation, make_config, new_folder, write_atomically
from coterie_studies import tables
from coterie_studies.comparing import comparison_figures
from coterie_studies.comparison import read_comparison, run_methods, split_methods
from coterie_studies.run_options import config_values
from coterie_studies.side_by_side import Given
from coterie_views.report import element, pdf_of, table

if TYPE_CHECKING:
    import pandas

    from coterie.federation import Federation
    from coterie.runs import Model


@dataclass(frozen=True)
class Comparison:
    """Compared methods. As text it is the table and the paired differences; notebooks show it as a table."""

    path: Path
    """The folder with the runs."""
    table: Mapping[str, Any] = field(repr=False)
    """All numbers, as in `comparison.json`."""

    @classmethod
    def load(
        cls, path: str | Path, *, baseline: str | None = None, test: Literal["t", "wilcoxon"] | None = None
    ) -> Comparison:
        """Read a comparison from its folder, finished or not.

        Args:
            path: the folder, or one in which run folders lie side by side.
            baseline: the method to measure the others against; by default as it was, else the best.
            test: "t" or "wilcoxon"; by default as it was.

        Returns:
            The comparison, its numbers taken from the runs.

        Raises:
            RunError: the folder holds no runs, or a file is damaged.
        """
        return cls(Path(path), read_comparison(Path(path), baseline, test))

    @property
    def best(self) -> str | None:
        """The method with the highest mean accuracy, or with the lowest loss where there is no accuracy."""
        best: str | None = self.table["best"]
        return best

    def __str__(self) -> str:
        return tables.plain(self.table)

    def _repr_html_(self) -> str:
        parts: list[object] = [
            table(tables.columns(self.table), tables.cells(self.table)),
            element("p", tables.caption(self.table)),
        ]
        if titles := tables.difference_columns(self.table):
            parts.append(table(titles, tables.difference_cells(self.table)))
            parts.append(element("p", tables.difference_caption(self.table)))
        return element("div", *parts)

    def to_pandas(self) -> pandas.DataFrame:
        """The numbers as a table with one row per method, as in `table.csv`."""
        try:
            import pandas
        except ImportError:
            raise ConfigError('to_pandas() needs pandas: pip install "coterie[pandas]"') from None
        import io

        return pandas.read_csv(io.StringIO(self.to_csv())).set_index("method")

    def to_csv(self) -> str:
        """The numbers as CSV: mean, sample deviation and standard error of every measure, and the differences."""
        return tables.as_csv(self.table)

    def to_markdown(self) -> str:
        """The tables in Markdown."""
        return tables.markdown(self.table)

    def to_latex(self) -> str:
        """The table for a paper; it needs the package booktabs."""
        return tables.as_latex(self.table)

    def write_latex(self, path: str | Path) -> Path:
        """Write `to_latex()` to a file."""
        return _written(path, self.to_latex().encode())

    def write_pdf(self, path: str | Path) -> Path:
        """Write the figures to a PDF file, one per page: accuracy over the rounds, and the spread over the clients."""
        return _written(path, pdf_of([(one.draw, one.height) for one in comparison_figures(self.path, self.table)]))


def _written(path: str | Path, content: bytes) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content)
    return target


def compare(
    methods: Sequence[str] | str,
    federation: Federation | None = None,
    *,
    seeds: int = 1,
    baseline: str | None = None,
    test: Literal["t", "wilcoxon"] = "t",
    equal: Literal["rounds", "bytes", "passes"] = "rounds",
    model: Model | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on the same clients, with as many rounds, bytes or passes each, and put them side by side.

    The caption says which of rounds, bytes and passes over clients' data were equal.

    Everything is checked before anything is trained. A folder that holds a comparison is added to: what is complete
    is not done again, other methods' rows stay, options that are not given are the folder's.

    Args:
        methods: names with their options, as in `["fedavg", "ifca:k=4"]`, or as in "fedavg,ifca:k=4".
        federation: the clients. Without it a scenario or a folder of data is named.
        seeds: how many seeds, from `seed` on. A seed makes the same federation for every method.
        baseline: the method to measure the others against; by default the best.
        test: "t" (paired t test) or "wilcoxon" (signed-rank test), over the seeds; with one seed over its clients.
        equal: the budget that is held: "rounds", or "bytes" or "passes", of which each run may spend `max_bytes` or
            `max_passes`, by default what the first method spends; a run ends after `rounds` in any case.
        model: as in `run`.
        out: the folder to keep the runs in; by default a new one under runs/.
        say: is given a line of text as each run ends.
        options: the other options of `run`, for all methods, in groups or by themselves. `workers` are runs at once, by
            default one. With more than one, each has a process of its own, and a script needs
            `if __name__ == "__main__":` around this call. With objects (federation, model, loss) it is one.

    Returns:
        The comparison: print it, or write it as LaTeX and PDF.

    Raises:
        ConfigError: a method or an option does not exist or is out of range, or the baseline is not compared.
        RunError: the folder holds something else, or every run failed.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> folder = tempfile.TemporaryDirectory()
        >>> found = coterie.compare(
        ...     ["fedavg", "local"], scenario="digits-iid", clients=4, rounds=2, out=f"{folder.name}/both"
        ... )
        >>> [row["method"] for row in found.table["rows"]]
        ['fedavg', 'local']
        >>> folder.cleanup()
    """
    check_federation(federation)
    names = split_methods([methods] if isinstance(methods, str) else methods)
    values, own_model, own_loss = config_values(options, model)
    place = Path(out) if out else new_folder(make_config(values), "compared")
    found = run_methods(
        names,
        out=place,
        seeds=seeds,
        workers=values.pop("workers", 1),
        baseline=baseline,
        test=test,
        equal=equal,
        say=say or (lambda text: None),
        given=Given(federation, own_model, own_loss),
        **values,
    )
    write_tables(place, found)
    return Comparison(place, found)


def write_tables(place: Path, found: Mapping[str, Any]) -> None:
    """Write a comparison's tables into its folder: `table.md` and `table.csv`."""
    write_atomically(place / "table.md", tables.markdown(found).encode())
    write_atomically(place / "table.csv", tables.as_csv(found).encode())
