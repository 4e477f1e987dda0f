"""One call around a method of pymongo: what begins it, what ends it, however it ends."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.trace import INVALID_SPAN

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.policies import blocks
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NEVER
from pymongo_resilience_instrumentation.deferred import pending, run_deferred

from .interceptor import Interceptor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.calls import Call

UNKNOWN = float("nan")


class Lifecycle(Protocol):
    """What begins and ends calls: the Runtime."""

    client_timeouts: dict[int, float | None]
    no_configured_timeout: bool
    operation_spans: Any
    operation_metrics: Any
    slow_seconds: float | None
    no_sdk: Callable[[], bool] | None

    @property
    def begins_late(self) -> bool: ...

    def start_span(self, call: Call, transaction: Any = None) -> None: ...

    def end(self, call: Call, error: BaseException | None = None) -> BaseException | None: ...


class CallInterceptor(Interceptor):
    """``enter`` returns a Call. Outermost wins: what a call calls in turn on its own client is no
    call of its own."""

    runtime: Any
    """A Lifecycle, and more where a class that derives from this says so."""

    def __init__(self, runtime: Lifecycle) -> None:
        self.runtime = runtime
        self.end = runtime.end
        self._spans, self._metrics = runtime.operation_spans, runtime.operation_metrics
        self._watches_slow = runtime.slow_seconds is not None
        self.begin_fast = _begin_fast(runtime)
        self.no_sdk = runtime.no_sdk

    def has_no_timeout(self, client: Any) -> bool:
        """Whether the client was given none; False where nothing is known of it yet."""
        return self.runtime.client_timeouts.get(id(client), UNKNOWN) is None

    def succeeded(self, call: Call, result: Any) -> Any:
        if call.struck is not None:
            raise call.struck
        if call.waits or call.command_spans or call.ends is not None or self._watches_slow:
            self.end(call)
            return result
        # As that does, of most calls.
        call.reporting = call.ended = True
        try:
            if self._metrics is not None and call.public:
                self._metrics.record(call, None, perf_counter() - call.started)
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience while recording %s", call.operation
            )
        try:
            if call.span is not None and call.span is not INVALID_SPAN:
                self._spans.end(call, None)
        except Exception:
            logger.exception("internal error in pymongo-resilience while ending %s", call.operation)
        calls.leave(call)
        call.reporting = False
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


def _begin_fast(runtime: Lifecycle) -> Callable[[Call, Any], bool]:
    """As ``Runtime.begin``, for most calls: the process, the block and the client set no policy and
    no timeout, and the caller has looked at its object and session. Else it returns False."""
    if not runtime.no_configured_timeout:
        return lambda _call, _transaction: False
    # On the way of every operation, so looked up once.
    found, around = calls.found, blocks.innermost
    timeout_in_force, deadline = driver.csot.TIMEOUT.get, driver.csot.DEADLINE.get
    own_timeouts = runtime.client_timeouts
    make_current, spans = calls.make_current, runtime.operation_spans
    # To read a variable that is not set takes as long as to read three that are, and the driver
    # reads this one sixteen times.
    set_timeout = driver.csot.TIMEOUT.set

    def begin(call: Call, transaction: Any) -> bool:
        if not (
            found() is None
            and around() is None
            and timeout_in_force() is None
            and deadline() == NEVER
            and own_timeouts.get(id(call.client), UNKNOWN) is None
        ):
            return False
        if pending:
            run_deferred()
        call.started = perf_counter()
        call.token = make_current(call)
        set_timeout(None)
        if spans is not None:
            spans.start(call, None if transaction is None else transaction.span)
        return True

    return begin
