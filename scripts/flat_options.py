"""Write runs/flat_options.py: the options of runs/options.py as keyword arguments, for type checkers and editors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from coterie.runs import options

TARGET = Path(options.__file__).with_name("flat_options.py")
OWN_PARAMETERS = {"method", "model", "seed", "out", "quiet", *options.GROUPS}
"""Options that are parameters of `coterie.run`, or of the command alone."""
STUDY_PARAMETERS = {"loss", "workers"}
"""Options that are parameters of `coterie.compare` and `coterie.sweep`."""
RESUME = {"data_dir", "workers", "device", "ray_address", "memory", "max_seconds", "max_bytes"}
HEAD = '''"""The options of all groups as keyword arguments; written by scripts/flat_options.py from options.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from coterie.metrics import Metrics
from coterie.trainers.base import Augment
from coterie.trainers.losses import Loss
'''


def plain(annotation: str) -> str:
    """A type without limits and placeholders: `float | None` of `Positive | None`."""
    annotation = re.sub(r"Annotated\[(\w+), Field\([^)]*\)\]", r"\1", annotation)
    aliases = {
        name: get_args(kind)[0].__name__ for name, kind in vars(options).items() if hasattr(kind, "__metadata__")
    }
    return re.sub(r"\b\w+\b", lambda word: aliases.get(word[0], word[0]), annotation)


def typed_dict(name: str, text: str, keys: Collection[str], base: str = "TypedDict") -> str:
    """A class with the given options, each with the type that its group gives it."""
    lines = [f"{key}: {plain(str(option.type))}" for key, option in options.FIELDS.items() if key in keys]
    return f'\n\nclass {name}({base}, total=False):\n    """{text}"""\n\n    ' + "\n    ".join(lines) + "\n"


def main() -> None:
    """Write the module."""
    keys = options.FIELDS.keys() - OWN_PARAMETERS
    body = typed_dict("SharedOptions", "Options that the runs of a study share.", keys - STUDY_PARAMETERS)
    body += typed_dict("FlatOptions", "Options of `coterie.run` by themselves.", STUDY_PARAMETERS, "SharedOptions")
    body += typed_dict("ResumeOptions", "Options that may differ when a run is resumed.", RESUME)
    TARGET.write_text(HEAD + body, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)


if __name__ == "__main__":
    main()
