"""One run folder as the page sees it: what it is, how far it has come, and what changed since the last look."""

from __future__ import annotations

import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.runs.folder import RunFolder, checksum
from coterie.runs.records import Summary, parse_json, to_json
from coterie_views.live.files import Stamp, is_elsewhere, open_plain, stamp_of
from coterie_views.live.pages import MOST_SHOWN, ClientPages, mixture_row
from coterie_views.live.tail import HistoryTail, thinned
from coterie_views.verdict import verdict_of

FILES = ("config.json", "history.jsonl", "summary.json", "clients.json")
PATIENCE = 15.0
"""Seconds without a sign of life after which a run is called stopped, where its lock cannot be seen."""
MOST_CONFIG_BYTES = 2**20
MOST_POINTS = 400
"""Rounds of a run in a picture of many."""
OF_A_SEED = frozenset({"seed", "federation", "checksum"})
"""Keys of a config that differ between the seeds of one setting."""
MOST_ROWS = 10_000
"""Clients in one answer; of very many clients there is one answer only."""
CONFIG_KEYS = ("method", "scenario", "data", "model", "rounds", "seed", "participation", "lr", "epochs", "batch_size")


class WatchedRun:
    """A run folder that is only ever read."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.tail = HistoryTail(path / "history.jsonl")
        self.config: dict[str, Any] = {}
        self.setting = ""
        """The same for runs that differ in their seed alone."""
        self.begun = 0.0
        """When its config was written, in seconds since 1970."""
        self.summary: Summary | None = None
        self.clients_version = 0
        self.status = "stopped"
        self.problems: dict[str, str] = {}
        """What is wrong with the folder, by file; a run with any is shown as damaged."""
        self._seen: dict[str, Stamp | None] = {}
        self._was_locked = False
        self._pages: tuple[int, ClientPages | None] = (-1, None)
        self._judged: tuple[int, str] = (-1, "")

    def poll(self, locks: frozenset[int] | None) -> bool:
        """Look again; did anything change that a page shows? `locks` are the inodes of locked files, if known.

        Whatever is in the folder, this raises nothing: one bad folder is one bad card.
        """
        before = dict(self.problems)
        try:
            changed = self._look(locks)
            self.problems.pop("folder", None)
        except Exception as problem:
            changed = False
            self.problems["folder"] = f"{type(problem).__name__}: {problem}"
            self.status = "damaged"
        return changed or before != self.problems

    def _look(self, locks: frozenset[int] | None) -> bool:
        stamps = {name: stamp_of(self.path / name) for name in FILES}
        changed = {name for name in FILES if stamps[name] != self._seen.get(name)}
        self._seen = stamps
        self._read(changed)
        for name in FILES:
            if is_elsewhere(self.path / name):
                self._note(name, f"{name} is a link or no regular file, and is not read")
        status = self._status(locks)
        moved = status != self.status
        self.status = status
        return bool(changed) or moved

    def _read(self, changed: set[str]) -> None:
        """Read the files that changed, and those that must be read with them."""
        if "config.json" in changed:
            self._read_config()
        if "clients.json" in changed:
            self._note("clients.json", "")
        if changed & {"summary.json", "history.jsonl"}:
            self.summary = self._read_summary()
        if changed & {"config.json", "history.jsonl"}:
            self.tail.poll()
            self._note("history.jsonl", self.tail.damaged)
        if changed - {"config.json"}:
            self.clients_version += 1

    def _read_config(self) -> None:
        found = read_config(self.path)
        self._note("config.json", "" if found else "config.json cannot be read")
        self.config = {key: _shown(value) for key, value in (found or {}).items()}
        self.setting = checksum({key: value for key, value in self.config.items() if key not in OF_A_SEED})
        stamp = self._seen["config.json"]
        self.begun = stamp[1] / 1e9 if stamp else 0.0
        self.tail.restart()

    def _note(self, name: str, problem: str) -> None:
        self.problems.pop(name, None)
        if problem:
            self.problems[name] = problem

    def _read_summary(self) -> Summary | None:
        self._note("summary.json", "")
        if self._seen["summary.json"] is None:
            return None
        try:
            return RunFolder(self.path).summary()
        except RunError as problem:
            self._note("summary.json", str(problem).removeprefix(f"{self.path}/"))
            return None

    def _status(self, locks: frozenset[int] | None) -> str:
        if self.problems:
            return "damaged"
        if self.summary is not None:
            return "finished"
        lock = stamp_of(self.path)
        if locks is not None and lock is not None and lock[0] in locks:
            self._was_locked = True
            return "running"
        if self._was_locked and locks is not None:
            return "stopped"
        return "running" if self._signs_of_life() else "stopped"

    def _signs_of_life(self) -> bool:
        """Whether a file changed not long ago, measured by the time that the last round took."""
        latest = max((stamp[1] for stamp in self._seen.values() if stamp), default=0) / 1e9
        spent = self.tail.records[-1]["seconds"] if self.tail.records else 0.0
        return time.time() - latest < max(PATIENCE, 4 * (spent or 0.0))

    def brief(self) -> dict[str, Any]:
        """The run's line in the list of runs."""
        last = self.tail.records[-1] if self.tail.records else {}
        known = (record["metrics"].get("accuracy") for record in reversed(self.tail.records))
        accuracy = next((value for value in known if value is not None), None)
        if self.summary is not None:
            accuracy = self.summary.accuracy.mean
        return {
            "id": self.name,
            "status": self.status,
            "problem": "; ".join(self.problems.values()) or None,
            "begun": self.begun,
            "setting": self.setting,
            **{key: self.config.get(key) for key in CONFIG_KEYS},
            "round": last.get("round", 0),
            "accuracy": accuracy,
            "loss": last.get("metrics", {}).get("loss"),
            "clusters": last.get("count"),
            "epoch": self.tail.epoch,
            "clients_version": self.clients_version,
        }

    def course(self) -> dict[str, Any]:
        """Every metric over the rounds, for a picture of many runs."""
        records = thinned(self.tail.records, MOST_POINTS)
        names = dict.fromkeys(name for record in records for name in record["metrics"])
        metrics = {name: [record["metrics"].get(name) for record in records] for name in names}
        return {"rounds": [record["round"] for record in records], "metrics": metrics}

    def detail(self, epoch: int | None, start: int) -> dict[str, Any]:
        """All there is to draw; of the history only what follows `start` rounds, if the page's epoch still holds."""
        same = epoch == self.tail.epoch and 0 <= start <= len(self.tail.records)
        first = start if same else 0
        summary = None
        if self.summary is not None:
            found = to_json(self.summary)
            summary = {key: found[key] for key in ("ari", "bytes", "seconds", "clients")} | found["metrics"]
        return self.brief() | {
            "from": first,
            "records": thinned(self.tail.records[first:]),
            "total": len(self.tail.records),
            "tree": self.tail.growth.table(),
            "summary": summary,
            "verdict": self._verdict(),
        }

    def _verdict(self) -> str:
        """Was it worth it, in a sentence, once the run is complete; of very many clients it is left to the report."""
        if self.summary is None or self.summary.clients > MOST_SHOWN:
            return ""
        if self._judged[0] != self.clients_version:
            try:
                text = verdict_of(self.summary, RunFolder(self.path).each_client(), self.path)
            except (OSError, ValueError, RunError):  # a file is damaged or gone: the page says so elsewhere
                text = ""
            self._judged = (self.clients_version, text)
        return self._judged[1]

    def clients(self, start: int = 0, most: int = MOST_ROWS) -> dict[str, Any]:
        """Clients' rows from `start` on: with metrics once the run is complete, before that their clusters only.

        Of more than MOST_SHOWN clients `available` is the number of one answer: the worst served, or any before the
        run is complete.
        """
        if self._pages[0] != self.clients_version:
            self._pages = (self.clients_version, self._final_pages())
        pages, most = self._pages[1], min(most, MOST_ROWS)
        total = len(self.tail.growth.cluster_of) if pages is None else pages.total
        available = total if total <= MOST_SHOWN else MOST_ROWS
        most = max(0, min(most, available - start))
        rows = self._page(pages, start, most)
        found = {"version": self.clients_version, "from": start, "total": total, "available": available, "rows": rows}
        return found | {"worst_first": pages is not None and pages.worst_first}

    def _page(self, pages: ClientPages | None, start: int, most: int) -> list[dict[str, Any]]:
        if pages is None:
            growth = self.tail.growth
            return [
                {"client": client, "cluster": cluster} | mixture_row(growth.mixtures.get(client, {}))
                for client, cluster in islice(growth.cluster_of.items(), start, start + most)
            ]
        try:
            return pages.page(start, most)
        except (OSError, ValueError, RunError):  # another file has taken its place: the next look finds it
            return []

    def _final_pages(self) -> ClientPages | None:
        if self.summary is None or self._seen["clients.json"] is None:
            return None
        try:
            return ClientPages(self.path)
        except RunError as problem:
            self._note("clients.json", str(problem).removeprefix(f"{self.path}/"))
            return None


def read_config(folder: Path) -> dict[str, Any] | None:
    """The table in a run's config; None where it cannot be read."""
    try:
        with open_plain(folder / "config.json") as file:
            content = parse_json(file.read(MOST_CONFIG_BYTES))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _shown(value: Any) -> Any:
    """A value of a config as the page shows it: plain text, numbers and truth values only."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float) else None
