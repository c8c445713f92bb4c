"""Ray started for one run on this machine: the same files as without it, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.runs.folder import RunFolder

ray = pytest.importorskip("ray")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A short path for Ray's sockets, which also tells its processes from all others."""
    place = tempfile.mkdtemp(prefix="ray")
    monkeypatch.setenv("RAY_TMPDIR", place)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def processes_of(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if folder.encode() in words:
            found.append(entry.parent.name)
    return found


def test_a_run_on_a_ray_of_its_own(tmp_path: Path, folder: str) -> None:
    seen: list[int] = []

    class Watch:
        def on_start(self, run: object, done: int) -> None: ...
        def on_event(self, t: int, event: object) -> None: ...
        def on_end(self, result: object) -> None: ...
        def on_round(self, record: object) -> None:
            seen.append(len(processes_of(folder)))

    options: dict[str, Any] = {"scenario": "digits-permuted", "clients": 8, "samples": 30, "rounds": 2, "workers": 1}
    options["metrics"] = ["auc", lambda outputs, labels: float(outputs.std())]
    coterie.run("cfl", out=tmp_path / "here", **options)
    coterie.run("cfl", out=tmp_path / "ray", engine="ray", callbacks=[Watch()], **options)
    assert not ray.is_initialized()
    assert len(seen) == 2
    assert min(seen) > 0
    deadline = time.monotonic() + 10
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(folder)
    ours, theirs = (tmp_path / name for name in ("here", "ray"))
    for name in ("models/cluster-0.safetensors", "config.json"):
        # Where a run runs is no part of its identity, so that it can be resumed elsewhere.
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    here, there = (RunFolder(place).summary() for place in (ours, theirs))
    assert here is not None
    assert there is not None
    assert replace(here, seconds=0.0) == replace(there, seconds=0.0)
