"""The run folder: everything a run leaves on disk, written so that a kill at any moment loses nothing but time."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from safetensors.torch import save
from torch import Tensor

from coterie.errors import RunError
from coterie.parameters import Layout
from coterie.snapshot import load_snapshot, save_snapshot, saved, write_atomically

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes on one folder go unnoticed there
    fcntl = None  # type: ignore[assignment]


_held: WeakSet[IO[str]] = WeakSet()


def _let_go_in_child() -> None:
    """A forked worker must not keep its parent's folders locked; closing its copy leaves the parent's lock alone."""
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


@saved
@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to go on after `round` as if nothing had happened."""

    round: int
    state: Any
    client_states: dict[str, dict[str, Tensor]]
    bytes_down: int
    bytes_up: int
    seconds: float


class RunFolder:
    """One run's folder, held by a lock for as long as this object is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._history: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Claim a new or empty folder; one that holds anything else is refused."""
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: a file of that name exists: choose another --out")
        if folder.has("config.json"):
            folder._refuse_existing(config)
        folder._refuse_foreign()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunError(f"{path}: cannot make the folder ({problem.strerror}): choose another --out") from problem
        folder._acquire()
        if folder.has("config.json"):  # another process was faster
            folder.close()
            folder._refuse_existing(config)
        folder._tidy()
        folder.write_json("config.json", config)
        folder.write_json("environment.json", environment())
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run's folder to go on with it."""
        folder = cls(path)
        if not folder.has("config.json"):
            raise RunError(f"{path}: not a run folder (no config.json in it): begin one with 'coterie run'")
        folder._acquire()
        folder._tidy()
        return folder

    def _tidy(self) -> None:
        """Remove what a killed run was in the middle of writing."""
        for left_over in self.path.rglob(".*.tmp"):
            left_over.unlink()

    def _refuse_foreign(self) -> None:
        """Refuse a folder with anything in it but what a run leaves that was killed before it wrote its config."""
        if self.path.is_dir():
            strange = [p for p in self.path.iterdir() if p.name != ".lock" and not p.match(".config.json.*.tmp")]
            if strange:
                raise RunError(f"{self.path}: the folder is not empty and is not a run's: choose another --out")

    def _refuse_existing(self, config: Mapping[str, Any]) -> None:
        if self.config() != dict(config):
            raise RunError(f"{self.path}: holds a run with another config: choose another --out")
        self._acquire()  # says so if it is being used right now
        self.close()
        if self.has("summary.json"):
            raise RunError(f"{self.path}: this run is already complete: choose another --out to run it again")
        raise RunError(
            f"{self.path}: this run was begun and not finished: continue it with 'coterie resume {self.path}'"
        )

    def _acquire(self) -> None:
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held until close)
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise RunError(f"{self.path}: in use by another run: wait for it, or choose another --out") from None
        _held.add(self._lock)

    def has(self, name: str) -> bool:
        """Is there a file of that name?"""
        return (self.path / name).exists()

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file atomically."""
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(self.path / name, (text + "\n").encode())

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run; a damaged one is a RunError that names it."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RunError(f"{path}: cannot be read ({problem})") from problem

    def config(self) -> dict[str, Any]:
        """The config as used."""
        config: dict[str, Any] = self.read_json("config.json")
        if not isinstance(config, dict):
            raise RunError(f"{self.path / 'config.json'}: damaged, expected a table of options")
        return config

    def append_history(self, record: Mapping[str, Any]) -> None:
        """Add one round's line to the history."""
        if self._history is None:
            self._history = open(self.path / "history.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (held open)
        self._history.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._history.flush()

    def history(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The rounds on record, up to a round; a line cut off by a crash is left out."""
        path = self.path / "history.jsonl"
        records: list[dict[str, Any]] = []
        if not path.exists():
            return records
        # A crash may cut a line inside a character, and a line may hold any separator but a newline.
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                break
            if up_to is not None and record["round"] > up_to:
                break
            records.append(record)
        return records

    def rewind_history(self, to: int) -> list[dict[str, Any]]:
        """Forget the rounds after `to`: they are about to be done again."""
        records = self.history(to)
        if [record.get("round") for record in records] != list(range(1, to + 1)):
            raise RunError(
                f"{self.path / 'history.jsonl'}: damaged, it does not hold rounds 1 to {to} of the checkpoint: "
                "restore it, or begin again with another --out"
            )
        lines = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        write_atomically(self.path / "history.jsonl", lines.encode())
        return records

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, atomically; the history it stands on reaches the disk first."""
        if self._history is not None:
            os.fsync(self._history.fileno())
        save_snapshot(checkpoint, self.path / "checkpoint.safetensors")

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None when the run was killed before its first."""
        if not self.has("checkpoint.safetensors"):
            return None
        loaded = load_snapshot(self.path / "checkpoint.safetensors")
        if not isinstance(loaded, Checkpoint):
            raise RunError(f"{self.path / 'checkpoint.safetensors'}: not a checkpoint of a run")
        return loaded

    def save_models(self, models: Sequence[Tensor], layout: Layout) -> None:
        """One safetensors file a cluster, with the tensors named as in the module's state_dict."""
        target = self.path / "models"
        target.mkdir(exist_ok=True)
        for i, model in enumerate(models):
            tensors = {name: tensor.clone().contiguous() for name, tensor in layout.unflatten(model).items()}
            write_atomically(target / f"cluster-{i}.safetensors", save(tensors))

    def close(self) -> None:
        """Let go of the folder."""
        for file in (self._history, self._lock):
            if file is not None:
                file.close()
        self._history = self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment() -> dict[str, Any]:
    """What the run ran on: versions and processors, nothing that names a person or a machine."""
    packages = {}
    for name in ("coterie", "torch", "numpy", "scipy", "scikit-learn", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed as a package"
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "byteorder": sys.byteorder,
        "packages": packages,
    }
