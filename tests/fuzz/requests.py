"""Requests to the live page, as bytes on a socket, while one of its folders is spoilt."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import coterie

from .folders import OPTIONS, spoil
from .harness import Finding, Trial
from .mutations import spoilt

PATHS = [
    "/",
    "/api/runs",
    "/api/run",
    "/api/clients",
    "/static/app.js",
    "/static/../server.py",
    "/static/%2e%2e/x",
    "//",
]
QUERIES = ["", "?id=good", "?id=tried", "?id=../x", "?id=good&from=-1", "?id=good&from=99999999999999999999", "?id=%00"]
QUERIES += ["?id=good&from=1&epoch=x", "?id=good&most=0", "?id=good&from=3&most=2", "?id=" + "a" * 9000, "?%ff=%fe"]
LIST = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HEADERS = ["", "", "X-A: b\r\n", "Content-Length: 5\r\n", f"Cookie: {'a' * 9000}\r\n", "Range: bytes=9-1\r\n"]
HOSTS = ["127.0.0.1", "localhost", "evil.example", "[::1]", "[", "127.0.0.1:99999999", ""]


class Requests:
    """A request of known parts, sometimes spoilt; the server must answer without an error of its own, and go on."""

    name = "requests"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """A server over a good run and one that is spoilt again and again."""
        import uvicorn

        from coterie_views.live.hub import Hub
        from coterie_views.live.library import Library
        from coterie_views.live.server import make_app, make_server_config

        runs = folder / "runs"
        coterie.run("ifca:k=2", **OPTIONS, out=runs / "good")
        hub = Hub(Library(runs))
        listener = socket.create_server(("127.0.0.1", 0))
        config = make_server_config(make_app(hub))
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it says so of every request that is none
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = listener.getsockname()[1]

        def trial(random: random.Random) -> str:
            if random.random() < 0.3:
                shutil.rmtree(runs / "tried", ignore_errors=True)
                shutil.copytree(runs / "good", runs / "tried")
                spoil(runs / "tried", runs / "good", random)
                hub.library._next_scan = 0.0
            asked = _request(random)
            answer = _ask(port, asked)
            if answer.startswith(b"HTTP/1.1 5"):
                raise Finding(f"{asked[:200]!r} is answered {answer[:80]!r}")
            if not _ask(port, LIST, 10).startswith(b"HTTP/1.1 200"):
                raise Finding(f"after {asked[:200]!r} the list of runs is not given")
            return "answered" if answer.startswith(b"HTTP/1.1 200") else "refused"

        try:
            yield trial
        finally:
            hub.closing = True
            server.should_exit = True
            thread.join()
            listener.close()


def _request(random: random.Random) -> bytes:
    method = random.choice(["GET"] * 8 + ["HEAD", "POST", "DELETE", "OPTIONS"])
    host = random.choice(["localhost"] * 6 + HOSTS)
    headers = random.choice(
        ["", "", "X-A: b\r\n", "Content-Length: 5\r\n", "Cookie: " + "a" * 9000 + "\r\n", "Range: bytes=9-1\r\n"]
    )
    line = f"{method} {random.choice(PATHS)}{random.choice(QUERIES)} HTTP/1.1\r\n"
    whole = f"{line}Host: {host}\r\n{headers}Connection: close\r\n\r\n".encode("latin1")
    return spoilt(whole, random) if random.random() < 0.3 else whole


def _ask(port: int, asked: bytes, patience: float = 0.2) -> bytes:
    """The first bytes of the answer; nothing where the server cut the connection or waits for more."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(patience)
        try:
            connection.sendall(asked)
            return connection.recv(4096)
        except (ConnectionError, TimeoutError):
            return b""
