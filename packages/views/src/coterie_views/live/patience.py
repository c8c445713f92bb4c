"""Slow clients are cut: those that take for ever to ask, and those that do not read what they are sent."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

ASK_SECONDS = 10.0
"""Time for the first line and the headers of a connection's first request."""
READ_SECONDS = 30.0
"""Time for a browser to take one piece of an answer."""

MOST_HEADER_BYTES = 2**14
"""A request's address and its headers; longer ones are refused."""


class ImpatientProtocol(H11Protocol):
    """Uvicorn's HTTP, which by itself waits for ever for a request that was begun."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the request."""
        super().connection_made(transport)
        self.loop.call_later(ASK_SECONDS, self._cut_if_nothing_was_asked)

    def _cut_if_nothing_was_asked(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class Patience:
    """Middleware that refuses requests that are too long, and gives an answer up when its reader does not take it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, each piece of an answer within its time."""

        async def within_time(message: Message) -> None:
            await asyncio.wait_for(send(message), READ_SECONDS)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size = len(scope["raw_path"] + scope["query_string"]) + sum(len(k) + len(v) for k, v in scope["headers"])
        app = PlainTextResponse("coterie: the request is too long\n", 431) if size > MOST_HEADER_BYTES else self.app
        await app(scope, receive, within_time)
