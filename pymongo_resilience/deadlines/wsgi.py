"""WSGI: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from pymongo_resilience.deadlines.limits import EXPIRED_TEXT, RequestLimits, report_expired
from pymongo_resilience.deadlines.request import Request

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]
BODY = EXPIRED_TEXT.encode() + b"\n"


class WSGIMiddleware:
    """``app.wsgi_app = WSGIMiddleware(app.wsgi_app, header="x-request-timeout-ms")``.

    All operations of a request end by the time that its header gives, until the application has
    started its response: what streams after that has none of it. A request that arrives expired is
    answered with 504.

    Args:
        app: A WSGI application.
        header: The name of the header: milliseconds, or gRPC's format if it is ``grpc-timeout``.
        max_ms: Milliseconds that a request may have at most; unset, as long as the header says.
        default_ms: Milliseconds of a request without the header; unset, it has no deadline.

    Raises:
        ConfigurationError: One of the arguments is not legal.

    Thread-safe.
    """

    def __init__(
        self, app: App, *, header: str, max_ms: int | None = None, default_ms: int | None = None
    ) -> None:
        self.app = app
        self._limits = RequestLimits(header=header, max_ms=max_ms, default_ms=default_ms)
        self._key = "HTTP_" + self._limits.header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request, as WSGI has it."""
        value: str | None = environ.get(self._key)
        seconds = self._limits.seconds_of_header(None if value is None else value.strip())
        if seconds is None:
            return self.app(environ, start_response)
        if seconds <= 0:
            report_expired("wsgi")
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            headers.append(("Content-Length", str(len(BODY))))
            start_response("504 Gateway Timeout", headers)
            return [BODY]
        has_started = False

        def start(*arguments: Any) -> Any:
            nonlocal has_started
            has_started = True
            return start_response(*arguments)

        request = Request(seconds)
        with request.step():
            body = self.app(environ, start)
        # An application that is a generator function does nothing before its first step.
        return body if has_started else _Body(request, body)


class _Body:
    """The body of a response that has not started: its first part is made under the deadline."""

    def __init__(self, request: Request, body: Iterable[bytes]) -> None:
        self._request = request
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        with self._request.step():
            rest = iter(self._body)
            try:
                first = next(rest)
            except StopIteration:
                return iter(())
        return _after(first, rest)

    def close(self) -> None:
        close: Any = getattr(self._body, "close", None)
        if close is not None:
            close()


def _after(first: bytes, rest: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield first
    yield from rest
