"""Where a drop-in strategy stands after a round, kept in one file so that a new run can go on from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.flower.plain import PlainEngine
from coterie.flower.wire import layout_mark
from coterie.methods import Method
from coterie.runs.assemble import describe_method
from coterie.snapshot import load_snapshot, save_snapshot, saved


@saved
@dataclass(frozen=True)
class Standing:
    """The round that is done, the method's state, and what the nodes told of themselves."""

    round: int
    method: str
    layout: str
    state: Any
    samples: dict[str, float]


def save_standing(path: Path, method: Method, t: int, state: Any, engine: PlainEngine) -> None:
    """Write the standing after round `t`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    standing = Standing(t, describe_method(method), layout_mark(engine.layout), state, dict(engine.known))
    save_snapshot(standing, path)


def load_standing(path: Path, method: Method, engine: PlainEngine) -> Standing | None:
    """The standing in the file, or None if there is no file; one of another method or model is refused."""
    if not path.exists():
        return None
    found = load_snapshot(path)
    given = (describe_method(method), layout_mark(engine.layout))
    if not isinstance(found, Standing) or (found.method, found.layout) != given:
        raise RunError(f"{path}: holds another method or another model: give the same ones, or another checkpoint")
    engine.known.update(found.samples)
    return found
