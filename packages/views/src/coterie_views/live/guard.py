"""Who may look: on this machine anybody under its own name, from elsewhere only who knows the token."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Is this a name or address that only this machine can reach?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that answers strangers itself and adds the security headers to every answer.

    Without a token the page is on loopback, and the request must name it so: a web page elsewhere that resolves its own
    name to this machine gets nothing. The token comes as `?token=`, as `X-Coterie-Token`, as a bearer, or in the cookie
    that a visit with `?token=` leaves.
    """

    def __init__(self, app: ASGIApp, token: str | None, cookie: str = "coterie-token") -> None:
        self.app = app
        self.token = token
        self.cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        extra = dict(HEADERS)
        app: ASGIApp = self.app
        if self.token is None:
            if not is_loopback(_host(connection)):
                app = PlainTextResponse("coterie: this page answers on this machine only\n", 403)
        elif not self._knows_token(connection):
            app = PlainTextResponse("coterie: open the address that 'coterie serve' printed, token included\n", 401)
        elif "token" in connection.query_params:
            extra["Set-Cookie"] = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                pairs = [(name.lower().encode(), value.encode()) for name, value in extra.items()]
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        await app(scope, receive, with_headers)

    def _knows_token(self, connection: HTTPConnection) -> bool:
        offered = (
            connection.query_params.get("token"),
            connection.headers.get("x-coterie-token"),
            connection.headers.get("authorization", "").removeprefix("Bearer "),
            connection.cookies.get(self.cookie),
        )
        assert self.token is not None
        expected = self.token.encode()
        return any(hmac.compare_digest(given.encode(), expected) for given in offered if given)


def _host(connection: HTTPConnection) -> str:
    try:
        return urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""
