"""The live page's server: JSON answers, one stream of news and three files; nothing can be written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coterie.errors import ConfigError
from coterie_views.live.guard import Guard, is_loopback
from coterie_views.live.hub import Hub
from coterie_views.live.library import Library
from coterie_views.live.patience import MOST_HEADER_BYTES, ImpatientProtocol, Patience
from coterie_views.live.watched import MOST_ROWS

STATIC = Path(__file__).with_name("static")
MOST_CONNECTIONS = 256
"""Connections at once; further ones are asked to come back later."""


class JSON(Response):
    """A JSON answer in plain ASCII: half a surrogate pair in the data must not break it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_app(hub: Hub, token: str | None = None, cookie: str = "coterie-token") -> Starlette:
    """The application: `/`, `/static`, `/api/runs`, `/api/run`, `/api/clients`, `/api/course` and `/api/events`."""

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def runs(request: Request) -> Response:
        return JSON(await hub.briefs())

    async def run(request: Request) -> Response:
        epoch, start = _number(request, "epoch"), _number(request, "from")
        return await _of_run(hub, request, lambda found: found.detail(epoch, start or 0))

    async def clients(request: Request) -> Response:
        start, most = _number(request, "from") or 0, _number(request, "most")
        return await _of_run(hub, request, lambda found: found.clients(start, MOST_ROWS if most is None else most))

    async def course(request: Request) -> Response:
        return await _of_run(hub, request, lambda found: found.course())

    async def events(request: Request) -> Response:
        return StreamingResponse(hub.stream(), media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watcher = asyncio.create_task(hub.watch())
        yield
        hub.close()
        watcher.cancel()

    routes = [
        Route("/", page),
        Route("/api/runs", runs),
        Route("/api/run", run),
        Route("/api/clients", clients),
        Route("/api/course", course),
        Route("/api/events", events),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    middleware = [
        Middleware(Patience),
        Middleware(Guard, token=token, cookie=cookie),
        Middleware(GZipMiddleware, minimum_size=4000),
    ]
    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


async def _of_run(hub: Hub, request: Request, ask: Callable[[Any], dict[str, Any]]) -> Response:
    """What `ask` says of the run named in the request; names are looked up, never used as paths."""
    if not hub.subscribers:  # without subscribers there was no look at the files lately
        await hub.refresh()
    found = hub.library.runs.get(request.query_params.get("id", ""))
    if found is None:
        return JSON({"error": "no such run"}, 404)
    async with hub.lock:
        return JSON(await asyncio.to_thread(ask, found))


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


class _Server(uvicorn.Server):
    """Uvicorn that ends the streams before it waits for them."""

    hub: Hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(self.hub.close)
        super().handle_exit(sig, frame)


def make_server_config(app: Starlette) -> uvicorn.Config:
    """How the server is run: with bounds on what a request may be and how long it may take."""
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        log_level="warning",
        timeout_graceful_shutdown=2,
        server_header=False,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        limit_concurrency=MOST_CONNECTIONS,
    )


def serve(directory: Path, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the runs under a folder until interrupted; `announce` gets the address to open, token included."""
    hub = Hub(Library(directory))
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    config = make_server_config(make_app(hub, token, f"coterie-token-{port}"))
    server = _Server(config)
    server.hub = hub
    announce(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""))
    with listener:
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as problem:
        raise ConfigError(
            f"cannot listen on {host}, port {port} ({problem}): choose another --host or --port"
        ) from None
