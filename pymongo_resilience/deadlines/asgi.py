"""ASGI: FastAPI, Starlette, Django, Litestar, Quart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from pymongo_resilience.deadlines.limits import EXPIRED_TEXT, RequestLimits, report_expired
from pymongo_resilience.deadlines.request import Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
BEGINS_BODY = frozenset({
    "http.response.body", "http.response.pathsend", "http.response.zerocopysend",
})  # fmt: skip
BODY = EXPIRED_TEXT.encode() + b"\n"
HEADERS = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", str(len(BODY)).encode()),
]


class ASGIMiddleware:
    """``app = ASGIMiddleware(app, header="x-request-timeout-ms", max_ms=30_000)``.

    All operations of a request end by the time that its header gives, until the first part of the
    response's body is sent: what streams after that, and background tasks, have none of it. A
    request that arrives expired is answered with 504. WebSockets are left alone.

    Args:
        app: An ASGI application.
        header: The name of the header: milliseconds, or gRPC's format if it is ``grpc-timeout``.
        max_ms: Milliseconds that a request may have at most; unset, as long as the header says.
        default_ms: Milliseconds of a request without the header; unset, it has no deadline.

    Raises:
        ConfigurationError: One of the arguments is not legal.

    Thread- and task-safe.
    """

    def __init__(
        self, app: App, *, header: str, max_ms: int | None = None, default_ms: int | None = None
    ) -> None:
        self.app = app
        self._limits = RequestLimits(header=header, max_ms=max_ms, default_ms=default_ms)
        self._name = self._limits.header.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI has it."""
        seconds = None
        if scope["type"] == "http":
            seconds = self._limits.seconds_of_header(_value(scope["headers"], self._name))
        if seconds is None:
            await self.app(scope, receive, send)
        elif seconds <= 0:
            report_expired("asgi")
            await send({"type": "http.response.start", "status": 504, "headers": HEADERS})
            await send({"type": "http.response.body", "body": BODY})
        else:
            block = Request(seconds).step()

            async def send_on(message: Message) -> None:
                if message["type"] in BEGINS_BODY:
                    block.ended = True
                await send(message)

            with block:
                await self.app(scope, receive, send_on)


def _value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return a header's value; several values are joined, and so make no sense."""
    values = [value for each, value in headers if each == name]
    return b",".join(values).decode("latin-1").strip() if values else None
