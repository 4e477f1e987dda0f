"""Where the driver records the spans of a client itself: what is known here goes onto its span.

The driver's loop knows the span of its operation, which is current around all attempts. It takes
the place of our own: decisions and waits are its events, and attempts, outcome and the rest its
attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.calls import Call

    from .operation_spans import OperationSpans

    Run = Callable[[Any], Any]


def shown(run: Run, spans: OperationSpans | None, *, asynchronous: bool) -> Run:
    """``run``: the attempts of a loop, inside of the driver's span."""
    if spans is None:
        return run

    def enter(loop: object) -> Call | None:
        call = calls.current()
        span = driver.retry_loop.native_span(loop)
        if call is None or span is None or call.span is not None:
            return None
        call.span = span
        return call

    def leave(call: Call | None, error: BaseException | None) -> None:
        if call is None:
            return
        try:
            with shielded("while adding to the driver's span"):
                spans.describe(call, error)
        finally:
            # It ends with the driver's operation, not with the call.
            call.span = None

    def sync_run(loop: object) -> Any:
        call = enter(loop)
        try:
            result = run(loop)
        except BaseException as error:
            leave(call, error)
            raise
        leave(call, None)
        return result

    async def async_run(loop: object) -> Any:
        call = enter(loop)
        try:
            result = await run(loop)
        except BaseException as error:
            leave(call, error)
            raise
        leave(call, None)
        return result

    return async_run if asynchronous else sync_run
