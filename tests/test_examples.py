"""The examples run as they stand."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_model_in_fifteen_lines(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    accuracy = float(re.search(r"mean accuracy (0\.\d+) over 10 clients", capsys.readouterr().out).group(1))
    assert accuracy > 0.85
    assert list(tmp_path.iterdir()) == []
    source = (EXAMPLES / "own_model.py").read_text()
    body = ast.parse(source).body[1:]  # without the docstring
    lines = source.splitlines()[body[0].lineno - 1 :]
    assert len([line for line in lines if line.strip() and not line.strip().startswith("#")]) <= 15
