"""The run folder: everything a run leaves on disk, written so that a kill at any moment loses nothing but time."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from coterie.errors import RunError
from coterie.methods import Matrix
from coterie.runs.matrices import write_matrix
from coterie.runs.records import (
    FORMAT,
    ClientRecord,
    ExplanationRecord,
    RoundRecord,
    Summary,
    from_json,
    parse_json,
    to_json,
)
from coterie.runs.rows import CHECKSUM, DIGEST, canonical, read_rows, write_rows
from coterie.runs.store import Checkpoint, Store
from coterie.snapshot import load_snapshot, save_snapshot, save_tensors, write_atomically, writing

if TYPE_CHECKING:
    from coterie.runs.result import Result

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes on one folder go unnoticed there
    fcntl = None  # type: ignore[assignment]


_held: set[int] = set()
"""The open folders that this process holds a lock on."""


def _let_go_in_child() -> None:
    """A forked worker must not keep its parent's folders locked; closing its copy leaves the parent's lock alone."""
    for lock in _held:
        os.close(lock)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


ROWS_AT_ONCE = 10_000
"""Clients whose rows are read together."""
HISTORY, ENVIRONMENT = "history.jsonl", "environment.json"
SEAL = "seal"
"""Key of the summary that holds the digests of the history and the environment, by file."""
LATEST, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"


class RunFolder(Store):
    """One run's folder, held by a lock for as long as this object is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._history: IO[str] | None = None
        self._lines: list[str] = []
        self._check = ""
        self._identity = ""
        self._config: dict[str, Any] = {}

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
        except (OSError, ValueError) as problem:  # ValueError: a name with a zero byte
            why = getattr(problem, "strerror", problem)
            raise RunError(f"{path}: cannot make the folder ({why}): choose another --out") from problem
        folder._acquire()
        if folder.has("config.json"):  # another process was faster
            folder.close()
            folder._refuse_existing(config)
        try:
            folder._tidy()
            folder.write_json("config.json", {"format": FORMAT, **config})
            folder.write_json(ENVIRONMENT, environment())
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run's folder to resume it."""
        folder = cls(path)
        if not folder.has("config.json"):
            raise RunError(f"{path}: not a run folder (no config.json in it): begin one with 'coterie run'")
        folder._acquire()
        try:
            folder._tidy()
            folder._check_environment()
        except BaseException:
            folder.close()
            raise
        return folder

    def _check_environment(self) -> None:
        """RunError for a damaged one; where the run was killed before it was written, or it was removed, write it."""
        if self.has(ENVIRONMENT):
            self.read_json(ENVIRONMENT)
        elif not self.has("summary.json"):
            self.write_json(ENVIRONMENT, environment())

    def _check_seal(self, sealed: Mapping[str, str]) -> None:
        """RunError where the history or the environment is not as it was when the run ended."""
        for name, digest in sealed.items():
            if self._digest(name) != digest:
                raise RunError(f"{self.path / name}: damaged since the run ended: restore it from a copy, or run again")

    def _digest(self, name: str) -> str:
        return hashlib.blake2b(self._content(name), digest_size=DIGEST).hexdigest()

    def _content(self, name: str) -> bytes:
        path = self.path / name
        if not path.is_file():  # a pipe would be read for ever
            raise RunError(f"{path}: cannot be read (missing, or not a regular file): restore it from a copy")
        try:
            return path.read_bytes()
        except OSError as problem:
            raise RunError(f"{path}: cannot be read ({problem.strerror}): restore it from a copy") from problem

    def _tidy(self) -> None:
        """Remove what a killed run was in the middle of writing."""
        for left_over in self.path.rglob(".*.tmp"):
            with writing(left_over):
                left_over.unlink()

    def _refuse_foreign(self) -> None:
        """Refuse a folder with anything in it but what a run leaves that was killed before it wrote its config."""
        if self.path.is_dir():
            strange = [p for p in self.path.iterdir() if not p.match(".config.json.*.tmp")]
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
        """Lock the folder itself: a lock file could be removed and made again while another process holds it."""
        if fcntl is None:
            return
        try:
            lock = os.open(self.path, os.O_RDONLY)
        except OSError as problem:
            raise RunError(f"{self.path}: cannot open the folder ({problem.strerror})") from problem
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise RunError(f"{self.path}: in use by another run: wait for it, or choose another --out") from None
        self._lock = lock
        _held.add(lock)

    def has(self, name: str) -> bool:
        """Is there a file of that name?"""
        return (self.path / name).exists()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file with a checksum of its content, atomically."""
        stated = {CHECKSUM: checksum(content), **content}
        text = json.dumps(stated, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(self.path / name, (text + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run; a damaged one is a RunError that names it."""
        path = self.path / name
        try:
            found = parse_json(self._content(name))
        except ValueError as problem:
            raise RunError(f"{path}: cannot be read ({problem})") from problem
        if not isinstance(found, dict):
            raise RunError(f"{path}: damaged, expected a table")
        if found.pop(CHECKSUM, None) != checksum(found):
            raise RunError(f"{path}: damaged, its content does not fit its checksum: restore it from a copy")
        return found

    def config(self) -> dict[str, Any]:
        """The config as used; RunError for a folder of another format."""
        config = self.read_json("config.json")
        if (stated := config.pop("format", 1)) != FORMAT:
            raise RunError(
                f"{self.path}: the folder has format {stated!r}, this version reads {FORMAT}: use the version "
                "that made it, or run again"
            )
        return config

    def identity(self) -> str:
        """A hash of the config, which names the method, the seed and a fingerprint of the data."""
        if not self._identity:
            self._config = self.config()
            self._identity = checksum(self._config)
        return self._identity

    def _restore_config(self) -> None:
        """Write the config again if it was removed meanwhile: without it the folder is no run's."""
        self.identity()
        if not self.has("config.json"):
            self.write_json("config.json", {"format": FORMAT, **self._config})

    def append_history(self, record: RoundRecord) -> None:
        """Add one round's line to the history; a file that was removed meanwhile is rewritten."""
        self._check, line = _line(self._check or self.identity(), record)
        self._lines.append(line)
        path = self.path / HISTORY
        with writing(path):
            if self._history is not None and not _still_there(self._history, path):
                self._history.close()
                self._history = None
                write_atomically(path, "".join(self._lines[:-1]).encode())
            if self._history is None:
                self._history = open(path, "a", encoding="utf-8")  # noqa: SIM115 (held open)
            self._history.write(line)
            self._history.flush()

    def history(self, up_to: int | None = None) -> list[RoundRecord]:
        """The rounds on record, up to a round; a last line cut off by a crash is left out.

        Every line holds a hash of itself and of all before it: a change, a gap or a line of another run is found.
        """
        records = self._records(up_to) if self.has(HISTORY) else []
        self.summary()  # names a history that is not the one that a finished run ended with
        return records

    def _records(self, up_to: int | None) -> list[RoundRecord]:
        path = self.path / HISTORY
        records: list[RoundRecord] = []
        check = self.identity()
        content = self._content(HISTORY)
        # A crash may cut a line inside a character, and a line may hold any separator but a newline. What follows
        # the last newline is cut off, or is being written right now.
        for number, line in enumerate(content.split(b"\n")[:-1][:up_to], 1):
            where = f"{path}, line {number}"
            try:
                value = parse_json(line)
            except ValueError as problem:
                raise RunError(f"{where}: damaged ({problem}): restore the file from a copy") from None
            stated = value.pop(CHECKSUM, None) if isinstance(value, dict) else None
            record = from_json(RoundRecord, value, where)
            # Of what stands there: an older version's record lacks what this one has added since.
            check = checksum([check, value])
            if stated != check:
                raise RunError(f"{where}: damaged, or lines before it are missing: restore the file from a copy")
            records.append(record)
        return records

    def rewind_history(self, to: int) -> list[RoundRecord]:
        """Forget the rounds after `to`: they are about to be done again."""
        records = self.history(to)
        if [record.round for record in records] != list(range(1, to + 1)):
            raise RunError(
                f"{self.path / 'history.jsonl'}: damaged, it does not hold rounds 1 to {to} of the checkpoint: "
                "restore it, or begin again with another --out"
            )
        self._rewrite_history(records)
        return records

    def amend_history(self, record: RoundRecord) -> None:
        self._rewrite_history([*self.history(record.round - 1), record])

    def _rewrite_history(self, records: Iterable[RoundRecord]) -> None:
        check, lines = self.identity(), []
        for record in records:
            check, line = _line(check, record)
            lines.append(line)
        if self._history is not None:
            self._history.close()
            self._history = None
        write_atomically(self.path / HISTORY, "".join(lines).encode())
        self._check, self._lines = check, lines

    def write_matrix(self, matrix: Matrix, t: int) -> None:
        write_matrix(matrix, self.path / "matrices", t)

    def reopen(self) -> None:
        """Remove the summary, which marks a finished run, and what was said of its clusters."""
        for path in (self.path / "summary.json", self.path / "explanation.json"):
            with writing(path):
                path.unlink(missing_ok=True)

    def summary(self) -> Summary | None:
        """The summary of a finished run, or None; RunError where its history or environment was changed since."""
        if not self.has("summary.json"):
            return None
        content = self.read_json("summary.json")
        self._check_seal(content.pop(SEAL, {}))
        return from_json(Summary, content, str(self.path / "summary.json"))

    def clients(self) -> list[ClientRecord]:
        """The clients' records of a finished run, or none."""
        return list(self.each_client())

    def each_client(self) -> Iterator[ClientRecord]:
        """The same one by one, so that very many need never be held together; damage may show at the end only."""
        path = self.path / "clients.json"
        return (row for _, row in client_rows(path)) if self.has(path.name) else iter(())

    def write_explanation(self, record: ExplanationRecord) -> None:
        """Keep why the clusters differ, for the report."""
        self.write_json("explanation.json", to_json(record))

    def explanation(self) -> ExplanationRecord | None:
        """Why the clusters differ, or None where that was not asked for."""
        name = "explanation.json"
        return from_json(ExplanationRecord, self.read_json(name), str(self.path / name)) if self.has(name) else None

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, atomically, and keep the one before. The history reaches the disk first."""
        if self._history is not None:
            with writing(self.path / HISTORY):
                os.fsync(self._history.fileno())
        self._restore_config()
        save_snapshot(checkpoint, self.path / LATEST, self.identity(), previous=self.path / PREVIOUS)

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint that is whole, or None when the run was killed before its first."""
        problems = []
        for name in (LATEST, PREVIOUS):
            if not self.has(name):
                continue
            try:
                loaded = load_snapshot(self.path / name, self.identity())
            except RunError as problem:
                problems.append(str(problem))
                continue
            if not isinstance(loaded, Checkpoint):
                problems.append(f"{self.path / name}: not a checkpoint of a run")
                continue
            if problems:
                warnings.warn(f"{problems[0]}; using the checkpoint before it, of round {loaded.round}", stacklevel=2)
            return loaded
        if problems:
            raise RunError("; ".join(problems))
        return None

    def save_result(self, result: Result) -> None:
        """Keep the models, the clients' records and, last, the summary, which makes the run a finished one.

        A model's tensors are named as in the module's state_dict; private layers are one vector per client.
        """
        target = self.path / "models"
        with writing(target):
            target.mkdir(exist_ok=True)
        for name, model in result.files.items():
            tensors = {key: value.clone() for key, value in result.layout.unflatten(model).items()}
            save_tensors(tensors, target / f"{name}.safetensors")
        if result.private:
            about = {"layers": json.dumps(result.private_layers)}
            tensors = {client: vector.clone() for client, vector in result.private.items()}
            save_tensors(tensors, target / "private.safetensors", about)
        self._restore_config()
        self._check_environment()
        write_rows(self.path / "clients.json", result.clients)
        seal = {name: self._digest(name) for name in (HISTORY, ENVIRONMENT)}
        self.write_json("summary.json", {SEAL: seal, **to_json(result.summary)})

    def close(self) -> None:
        """Let go of the folder."""
        if self._history is not None:
            with suppress(OSError):  # a line that found no room was reported when it was written
                self._history.close()
            self._history = None
        if self._lock is not None:
            _held.discard(self._lock)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def client_rows(path: Path) -> Iterator[tuple[int, ClientRecord]]:
    """The records in a `clients.json` one by one, each with the place of its line in bytes."""
    rows = read_rows(path)
    while some := list(islice(rows, ROWS_AT_ONCE)):
        records = from_json(list[ClientRecord], [row.value for row in some], str(path))
        yield from zip((row.place for row in some), records, strict=True)


def checksum(content: Any) -> str:
    """A hash of JSON content, whatever its spaces and the order of its keys."""
    return hashlib.blake2b(canonical(content).encode(), digest_size=DIGEST).hexdigest()


def _line(check: str, record: RoundRecord) -> tuple[str, str]:
    """The check of a record that follows one with another check, and the record's line."""
    content = to_json(record)
    check = checksum([check, content])
    return check, json.dumps({**content, CHECKSUM: check}, ensure_ascii=False, allow_nan=False) + "\n"


def _still_there(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.fstat(file.fileno()).st_ino == os.stat(path).st_ino
    except OSError:
        return False


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
