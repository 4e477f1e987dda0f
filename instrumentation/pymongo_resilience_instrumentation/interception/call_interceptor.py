"""One call around a method of pymongo: what begins it, what ends it, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .interceptor import Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo_resilience_instrumentation.calls import Call


Sender = Callable[[Any], "Send | None"]
"""From a CallInterceptor to what sends its calls in place of the original, if anything."""
Send = Callable[..., Any]
"""Called with the call, the original and its arguments; returns the result, or an awaitable."""


def _chained(outer: Send, inner: Send) -> Send:
    def send(call: Call, original: Any, *given: Any, **kwargs: Any) -> Any:
        return outer(call, partial(inner, call, original), *given, **kwargs)

    return send


class Lifecycle(Protocol):
    """What begins and ends calls: the Runtime."""

    def end(self, call: Call, error: BaseException | None = None) -> BaseException | None: ...


class CallInterceptor(Interceptor):
    """``enter`` returns a Call. Outermost wins: what a call calls in turn on its own client is no
    call of its own."""

    runtime: Any
    """A Lifecycle, and more where a class that derives from this says so."""

    def __init__(self, runtime: Lifecycle) -> None:
        self.runtime = runtime
        self.end = runtime.end

    def plug_in(self, senders: Iterable[Sender]) -> None:
        """What features put around the original, the first of them outermost."""
        for make in reversed([*senders]):
            send = make(self)
            if send is not None:
                self.send = send if self.send is None else _chained(send, self.send)

    def succeeded(self, call: Call, result: Any) -> Any:
        error = self.end(call)
        if error is not None:
            # A signal handler's, which struck in a listener: the driver would keep it to itself.
            raise error
        return result

    def failed(
        self,
        call: Call | None,
        error: BaseException,
        given: tuple[Any, ...],  # noqa: ARG002 - for others, as below
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> BaseException | None:
        if call is None:
            return error
        if call.client is None:
            # It was left already.
            return error
        return self.end(call, error)
