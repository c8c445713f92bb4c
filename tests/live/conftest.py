"""A live page's server on a free port, in a thread of the test, and made-up run folders to look at."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import Serve, Write, lines


@contextlib.contextmanager
def _serve(root: Path, token: str | None = None, port: int = 0) -> Iterator[str]:
    import uvicorn

    from coterie.live.hub import Hub
    from coterie.live.library import Library
    from coterie.live.server import make_app

    hub = Hub(Library(root))
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(make_app(hub, token), log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        hub.closing = True
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def serve() -> Serve:
    """`with serve(folder, token=None, port=0) as address`."""
    pytest.importorskip("starlette", reason="needs coterie[web]")
    pytest.importorskip("uvicorn", reason="needs coterie[web]")
    return _serve


@pytest.fixture
def write_run() -> Write:
    """`write_run(path, records, clients=None, **config)` makes a run folder; with clients it is a finished one."""

    def write(
        path: Path, records: list[dict[str, Any]], clients: list[dict[str, Any]] | None = None, **config: Any
    ) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        values = {"method": "cfl", "scenario": "toy", "model": "mlp", "seed": 0, "rounds": len(records)} | config
        (path / "config.json").write_text(json.dumps(values))
        (path / "history.jsonl").write_bytes(lines(records))
        if clients is not None:
            (path / "clients.json").write_text(json.dumps(clients))
            summary = {
                "accuracy": {"mean": 0.9, "worst10": 0.7},
                "loss": {"mean": 0.1},
                "ari": 1.0,
                "bytes": {"up": 5_000_000, "down": 5_000_000},
                "seconds": 12.0,
                "clients": len(clients),
            }
            (path / "summary.json").write_text(json.dumps(summary))
        return path

    return write
