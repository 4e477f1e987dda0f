"""One call around a method of pymongo: what begins it, what ends it, however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience_instrumentation import calls

from .interceptor import Interceptor

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call


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

    def succeeded(self, call: Call, result: Any) -> Any:
        self.end(call)
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
        if call.reporting or call.client is None:
            # It was left already, or half-way.
            calls.leave(call)
            call.reporting = False
            return error
        return self.end(call, error)

    def undo(self, call: Any, around: Call | None, error: BaseException) -> None:
        calls.undo(call, around, error)
