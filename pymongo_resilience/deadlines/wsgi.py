"""Request deadlines for WSGI: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from pymongo_resilience.deadlines.limits import EXPIRED_BODY, RequestLimits, report_expired
from pymongo_resilience.deadlines.request import Request

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class WSGIMiddleware:
    """WSGI middleware that ends the operations of a request when its caller stops waiting.

    Use it as ``app.wsgi_app = WSGIMiddleware(app.wsgi_app, header="x-request-timeout-ms")``.

    The deadline applies until the application has started its response, but not to what streams
    after that. A request whose time is over when it arrives is answered with the status 504.
    Thread-safe.

    Args:
        app: A WSGI application.
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
        self._key = "HTTP_" + self._limits.header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request (PEP 3333)."""
        value: str | None = environ.get(self._key)
        if value is None:
            seconds = self._limits.default
        else:
            seconds = self._limits.seconds_of_header(value.strip())
        if seconds is None:
            return self.app(environ, start_response)
        if seconds <= 0:
            report_expired("wsgi")
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            headers.append(("Content-Length", str(len(EXPIRED_BODY))))
            start_response("504 Gateway Timeout", headers)
            return [EXPIRED_BODY]
        has_started = False

        def start(*arguments: Any) -> Any:
            nonlocal has_started
            has_started = True
            return start_response(*arguments)

        request = Request(seconds)
        with request.step():
            body = self.app(environ, start)
        # An application that is a generator function has not run yet. It runs when its first part
        # is read.
        return body if has_started else _Body(request, body)


class _Body:
    """The body of a response that has not started yet. Its first part is created under the
    deadline.
    """

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
        # The server calls this at the end of the request, and the application's iterable need not
        # have the method (PEP 3333).
        close: Any = getattr(self._body, "close", None)
        if close is not None:
            close()


def _after(first: bytes, rest: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield first
    yield from rest
