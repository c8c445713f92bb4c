"""Results of many small jobs, each kept in a file of its own as soon as it is computed: a study that resumes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from coterie.engines import available_cores, begin_child
from coterie.errors import RunError
from coterie.runs import write_atomically


class Cells:
    """A folder of results by key. What is there is not computed again.

    Args:
        folder: where the files are.
        workers: processes that compute at once, or "auto" for one per core.
        log: is called with a line of text for every step.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int | Literal["auto"] = "auto",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.workers, self.log = folder, workers, log
        self.computed = 0
        """Cells that were computed, not reused."""
        self._pool: ProcessPoolExecutor | None = None
        self._held = False

    def __enter__(self) -> Cells:
        """Keep the processes from one call of `many` to the next, until the block ends."""
        self._held = True
        return self

    def __exit__(self, *problem: object) -> None:
        self._held = False
        self._end()

    def one(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `compute`, from the folder where an earlier attempt has computed it already."""
        kept = self.kept(key)
        if kept is None:
            self.log(f"{key}: running")
            return self._keep(key, compute())
        self.log(f"{key}: reused")
        return kept

    def many(self, jobs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """The results of many jobs by key, several at once on the cores, each in a process of its own.

        The jobs must be picklable: functions of a module with `functools.partial`. They are begun in their order.
        """
        found = {key: kept for key in jobs if (kept := self.kept(key)) is not None}
        left = {key: job for key, job in jobs.items() if key not in found}
        if found:
            self.log(f"{len(found)} of {len(jobs)} are kept from before")
        if not left:
            return found
        try:
            for key, result in self._computed(left):
                found[key] = result
                self.log(f"{key}: done, {len(found)} of {len(jobs)}")
        finally:
            if not self._held:
                self._end()
        return found

    def _computed(self, jobs: Mapping[str, Callable[[], dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The results as they come, each kept; where a job fails, those that were begun end and are kept too."""
        pool = self._processes()
        waiting: dict[Future[dict[str, Any]], str] = {pool.submit(job): key for key, job in jobs.items()}
        try:
            for future in as_completed(list(waiting)):
                result = future.result()
                yield waiting[future], self._keep(waiting.pop(future), result)
        except Exception:
            # All that waits is cancelled first, and only then is what was begun waited for.
            begun = [future for future in waiting if not future.cancel()]
            for future in begun:
                if future.exception() is None:
                    self._keep(waiting[future], future.result())
            raise

    def _processes(self) -> ProcessPoolExecutor:
        """The processes that compute, started when they are first needed."""
        if self._pool is None:
            count = available_cores() if self.workers == "auto" else int(self.workers)
            self._pool = ProcessPoolExecutor(max(1, count), mp_context=get_context("spawn"), initializer=begin_child)
        return self._pool

    def _end(self) -> None:
        """End the processes; what waits is not begun."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def kept(self, key: str) -> dict[str, Any] | None:
        """The result in the folder, or None."""
        path = self.folder / cell_file(key)
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except ValueError as problem:
            raise RunError(f"{path}: damaged ({problem}): delete it and run again") from problem
        return found

    def _keep(self, key: str, result: dict[str, Any]) -> dict[str, Any]:
        path = self.folder / cell_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(result).encode())
        self.computed += 1
        return result


def cell_file(key: str) -> str:
    """A file name for the key; where characters are replaced, a hash keeps two keys apart."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", key)
    mark = "" if name == key else "-" + hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    return f"{name}{mark}.json"
