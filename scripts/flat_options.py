"""Write runs/flat_options.py: the options of runs/options.py as keyword arguments, for type checkers and editors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from coterie.runs import options

TARGET = Path(options.__file__).with_name("flat_options.py")
HEAD = '''"""The options of all groups as keyword arguments; written by scripts/flat_options.py from options.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from coterie.metrics import Metrics
from coterie.trainers.base import Augment
from coterie.trainers.losses import Loss


class FlatOptions(TypedDict, total=False):
    """Options of groups by themselves; those that share a group's name are parameters of `coterie.run`."""

'''


def plain(annotation: str) -> str:
    """A type without limits and placeholders: `float | None` of `Positive | None`."""
    annotation = re.sub(r"Annotated\[(\w+), Field\([^)]*\)\]", r"\1", annotation)
    annotated = {name: kind for name, kind in vars(options).items() if hasattr(kind, "__metadata__")}
    aliases = {name: get_args(kind)[0].__name__ for name, kind in annotated.items()}
    return re.sub(r"\b\w+\b", lambda word: aliases.get(word[0], word[0]), annotation)


if __name__ == "__main__":
    keys = [key for key in options.GROUP_OF if key not in options.GROUPS]
    lines = [f"    {key}: {plain(str(options.FIELDS[key].type))}\n" for key in keys]
    TARGET.write_text(HEAD + "".join(lines), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)
