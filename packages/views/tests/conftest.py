"""A browser, a live page's server on a free port, in a thread of the test, and made-up run folders to look at."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from browsing import CHROMIUM, FLAGS
from coterie.runs.folder import RunFolder
from coterie.runs.records import ClientRecord, RoundRecord, to_json
from coterie.runs.rows import write_rows
from made_runs import Serve, Write, summary_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a file."""
    api = pytest.importorskip("playwright.sync_api", reason="needs coterie[dev] for playwright")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def _serve(root: Path, token: str | None = None, port: int = 0) -> Iterator[str]:
    import uvicorn

    from coterie_views.live.hub import Hub
    from coterie_views.live.library import Library
    from coterie_views.live.server import make_app, make_server_config

    hub = Hub(Library(root))
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(make_server_config(make_app(hub, token)))
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

    def write(path: Path, records: list[RoundRecord], clients: list[ClientRecord] | None = None, **config: Any) -> Path:
        values = {"method": "cfl", "scenario": "toy", "model": "mlp", "seed": 0, "rounds": len(records)} | config
        with RunFolder.create(path, values) as folder:
            folder.rewind_history(0)
            for one in records:
                folder.append_history(one)
            if clients is not None:
                write_rows(folder.path / "clients.json", clients)
                folder.write_json("summary.json", to_json(summary_of(clients, len(records))))
        return path

    return write
