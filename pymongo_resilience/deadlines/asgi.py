"""Request deadlines for ASGI: FastAPI, Starlette, Django, Litestar, Quart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from pymongo_resilience.deadlines.limits import EXPIRED_BODY, RequestLimits, report_expired
from pymongo_resilience.deadlines.request import Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
# Not ``http.response.start``: frameworks send it before they create the first part of a streamed
# body, which may still need the database.
BEGINS_BODY = frozenset({
    "http.response.body", "http.response.pathsend", "http.response.zerocopysend",
})  # fmt: skip
HEADERS = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", str(len(EXPIRED_BODY)).encode()),
]


class ASGIMiddleware:
    """ASGI middleware that ends the operations of a request when its caller stops waiting.

    Use it as ``app = ASGIMiddleware(app, header="x-request-timeout-ms", max_ms=30_000)``.

    The deadline applies until the first part of the response's body is sent. It does not apply to
    what streams after that, or to background tasks. A request whose time is over when it arrives is
    answered with the status 504. WebSockets are not changed. Thread- and task-safe.

    Args:
        app: An ASGI application.
        header: The name of the header that contains the timeout, in milliseconds, or in gRPC's
            format if the name is ``grpc-timeout``.
        max_ms: The maximum for a request, in milliseconds. Without it, the header alone decides.
        default_ms: The timeout of a request without the header, in milliseconds. Without it, such a
            request has no deadline.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self, app: App, *, header: str, max_ms: int | None = None, default_ms: int | None = None
    ) -> None:
        self.app = app
        self._limits = RequestLimits(header=header, max_ms=max_ms, default_ms=default_ms)
        # ASGI servers pass header names in lowercase (ASGI specification, "HTTP Connection Scope").
        # RequestLimits stores the name like that.
        self._name = self._limits.header.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI specification, "Applications")."""
        seconds = None
        if scope["type"] == "http":
            seconds = self._limits.default
            headers, name = scope["headers"], self._name
            # Most requests have no such header, so this loop calls no function.
            for each in headers:
                if each[0] == name:
                    seconds = self._limits.seconds_of_header(_value(headers, name))
                    break
        if seconds is None:
            await self.app(scope, receive, send)
        elif seconds <= 0:
            report_expired("asgi")
            await send({"type": "http.response.start", "status": 504, "headers": HEADERS})
            await send({"type": "http.response.body", "body": EXPIRED_BODY})
        else:
            block = Request(seconds).step()

            async def send_on(message: Message) -> None:
                # Only mark the block as ended: it belongs to the context in which it was entered.
                if message["type"] in BEGINS_BODY:
                    block.ended = True
                await send(message)

            with block:
                await self.app(scope, receive, send_on)


def _value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return the value of a header. Several values are joined, which makes them invalid."""
    return b",".join(value for each, value in headers if each == name).decode("latin-1").strip()
