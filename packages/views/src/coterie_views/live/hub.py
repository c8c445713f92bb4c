"""One watcher for all browsers: each subscriber keeps only the names of what it has not been sent yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from coterie_views.live.library import Library

PERIOD = 0.5
KEEP_ALIVE = 15.0


class Subscriber:
    """A browser's unread news. Names are a set: a slow browser gets the latest state once, not a backlog."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.gone: set[str] = set()
        self.news = asyncio.Event()


class Hub:
    """Watches a library for as long as there are subscribers, and sends each what changed."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.lock = asyncio.Lock()
        self.closing = False
        self.subscribers: set[Subscriber] = set()

    async def watch(self) -> None:
        """Poll until the server ends."""
        while not self.closing:
            if self.subscribers:
                with contextlib.suppress(Exception):  # a folder removed in mid-look; the next look finds it gone
                    await self.refresh()
            await asyncio.sleep(PERIOD)

    async def refresh(self) -> None:
        """Look at the files once, in a thread, and pass the news on."""
        async with self.lock:
            changed, gone = await asyncio.to_thread(self.library.poll)
        for subscriber in self.subscribers:
            subscriber.changed = (subscriber.changed | set(changed)) - set(gone)
            subscriber.gone = (subscriber.gone | set(gone)) - set(changed)
            if changed or gone:
                subscriber.news.set()

    def close(self) -> None:
        """End all streams: without this the server would wait for its browsers to go away."""
        self.closing = True
        for subscriber in self.subscribers:
            subscriber.news.set()

    async def briefs(self) -> list[dict[str, Any]]:
        """The list of runs, freshly looked at."""
        await self.refresh()
        return [run.brief() for run in self.library.runs.values()]

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events: `runs` once (the whole list), then `run` and `gone` as things happen."""
        own = Subscriber()
        self.subscribers.add(own)
        try:
            yield message("runs", await self.briefs())
            own.changed.clear()
            while not self.closing:
                try:
                    await asyncio.wait_for(own.news.wait(), KEEP_ALIVE)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                own.news.clear()
                changed, gone, own.changed, own.gone = own.changed, own.gone, set(), set()
                for name in sorted(changed & set(self.library.runs)):
                    yield message("run", self.library.runs[name].brief())
                for name in sorted(gone):
                    yield message("gone", name)
        finally:
            self.subscribers.discard(own)


def message(event: str, content: Any) -> str:
    """One server-sent event; JSON in ASCII has no line breaks, whatever the data holds."""
    return f"event: {event}\ndata: {json.dumps(content, allow_nan=False)}\n\n"
