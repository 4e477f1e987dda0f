"""The waits of an operation for a server: seen where it has to wait, and nowhere else.

A selection that finds its server at once is not measured: that would cost every operation as much
as all the rest of its metrics.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pymongo.errors import ServerSelectionTimeoutError

from pymongo_resilience_instrumentation import calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper

SELECTED = "selected"
TIMED_OUT = "timed_out"
INTERRUPTED = "interrupted"

logger = logging.getLogger("pymongo_resilience")


class SelectionWait:
    """One selection that had to wait, once or again and again until a server was there."""

    __slots__ = ("ended_ns", "outcome", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ended_ns = 0
        """Since the epoch."""
        self.outcome: str | None = None
        """None while it is not over."""

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.ended_ns = time.time_ns()

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, ServerSelectionTimeoutError):
            self.outcome = TIMED_OUT
        elif error is None or isinstance(error, Exception):
            self.outcome = SELECTED
        else:
            self.outcome = INTERRUPTED


def over(call: Call, error: BaseException | None) -> None:
    """Its attempt is over, so its wait for a server is; ``error`` is None for one that came to send
    something."""
    try:
        if call.selection_waits and call.selection_waits[-1].outcome is None:
            call.selection_waits[-1].end(error)
    except Exception:
        logger.exception("a fault of pymongo-resilience after a wait for a server")


def _in_progress(runtime: Runtime) -> SelectionWait | None:
    try:
        call = calls.current() if runtime.switch.on else None
        if call is None:
            return None
        if not call.selection_waits or call.selection_waits[-1].outcome is not None:
            call.selection_waits = [*call.selection_waits, SelectionWait()]
        return call.selection_waits[-1]
    except Exception:
        logger.exception("a fault of pymongo-resilience before a wait for a server")
        return None


def _waited(selection: SelectionWait, began: float) -> None:
    try:
        selection.add(time.perf_counter() - began)
    except Exception:
        logger.exception("a fault of pymongo-resilience after a wait for a server")


def seen(runtime: Runtime, wait: Wrapper, asynchronous: bool) -> Wrapper:
    """Around ``wait``, which runs in place of the driver's wait for a server. The sync one runs
    under the topology's lock."""

    def sync_wrapper(
        wrapped: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        selection = _in_progress(runtime)
        if selection is None:
            return wait(wrapped, module, args, kwargs)
        began = time.perf_counter()
        try:
            return wait(wrapped, module, args, kwargs)
        finally:
            _waited(selection, began)

    async def async_wrapper(
        wrapped: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        selection = _in_progress(runtime)
        if selection is None:
            return await wait(wrapped, module, args, kwargs)
        began = time.perf_counter()
        try:
            return await wait(wrapped, module, args, kwargs)
        finally:
            _waited(selection, began)

    return async_wrapper if asynchronous else sync_wrapper
