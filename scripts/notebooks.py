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
            record_timing=False,  # it would put the time of day into every cell
        )
        return client.execute()


def drop_progress(notebook: nbformat.NotebookNode) -> None:
    """Join what a cell prints, without the lines of a run's progress: scripts print none."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        printed = "".join(output.text for output in outputs if output.output_type == "stream")
        lines = [line for line in printed.split("\n") if "\r" not in line and not line.startswith("training: ")]
        kept = "\n".join(lines)
        others = [output for output in outputs if output.output_type != "stream"]
        if kept:
            others.insert(0, nbformat.v4.new_output("stream", text=kept))
        if "outputs" in cell:
            cell.outputs = others


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
