"""Run the notebooks in docs/notebooks, each in an empty folder, and store what they print.

python scripts/notebooks.py            all of them
python scripts/notebooks.py own-data   one
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"
SECONDS = 300
"""The longest that a cell may take; they take a second or two on an idle machine."""


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
            record_timing=False,  # it would put the time of day into every cell
        )
        return client.execute()


def drop_progress(notebook: nbformat.NotebookNode) -> None:
    """Take out the lines that a run rewrites while it goes on: a page cannot rewrite them."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = "\n".join(line for line in output.text.split("\n") if "\r" not in line)


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, and write them back."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = executed(path)
            notebook.metadata.pop("language_info", None)  # it names the exact version of Python
            drop_progress(notebook)
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
