"""What runs in place of the driver's retry loop.

Most loops are light: they run as they are, and what it takes to repeat an attempt is made once one
has failed. With breakers or counts, and under a timeout, it is made before.
"""

from __future__ import annotations

from sys import exception
from typing import TYPE_CHECKING, Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import BEGINNING, NO_DEADLINE
from pymongo_resilience_instrumentation.failures.errors_raised import end_with, raise_alone
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.timeouts import wait_times

from . import deprioritized
from .attempts import GaveUp
from .loop_calls import enter_loop, leave_loop

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

    from .attempts import Attempts


def run(runtime: Runtime, asynchronous: bool) -> Method:
    """The driver's loop around the attempts. It is entered once: that allocates the txnNumber."""
    return Method(_Async(runtime).around if asynchronous else _Sync(runtime).around)


class _Run:
    def __init__(self, runtime: Runtime) -> None:
        self.enabled_flag = runtime.enabled_flag
        self.budgets = runtime.budgets
        self.leave = leave_loop
        self._runtime = runtime

    def enter(self, loop: Any) -> Attempts | None:
        """None for a loop that is none of ours."""
        if not self.enabled_flag.acts():
            return None
        around = calls.found()
        if around is not None and around.reporting:
            self._runtime.unreported.note()
            driver.repetition.retry_once_at_most(loop)
            return None
        try:
            return enter_loop(self._runtime, loop)
        except InvalidOperation:
            raise
        except Exception:
            calls.unwind(around)
            logger.exception("internal error in pymongo-resilience before the driver's loop")
            return None


class _Sync(_Run):
    def around(self, original: Function) -> Function:
        enabled_flag, budgets = self.enabled_flag, self.budgets
        found, client_of, avoided = calls.found, driver.retry_loop.client, deprioritized.avoided

        def run(loop: Any) -> Any:
            call = found()
            if (
                call is None
                or call.ended
                or not (call.light and enabled_flag.on)
                or avoided()
                or call.client is not client_of(loop)
            ):
                return self.prepared(original, loop)
            call.terminal_detector = None
            around, call.loop = call.loop, loop
            try:
                result = original(loop)
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                _interrupted(call, loop, raised)
                raise
            else:
                if call.waits:
                    wait_times.over(call, None)
                if not call.ended:
                    call.selected = driver.retry_loop.server(loop)
                if budgets.incomplete and call.light:
                    budgets.succeeded(call.client)
                return result
            finally:
                call.loop = around
            return raise_alone(error)

        return run

    def prepared(self, original: Function, loop: Any) -> Any:
        work, around = BEGINNING, calls.found()
        try:
            try:
                work = self.enter(loop)
                if work is None:
                    return original(loop)
                with work.call.deadline if work.owns_call else NO_DEADLINE:
                    result = original(loop)
                self.leave(work, None)
                return result  # noqa: TRY300 - a signal handler's may strike here, too
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                if work is not None and work is not BEGINNING:
                    end_with(self.leave, work, raised)
                raise
            end_with(self.leave, work, error)
            return raise_alone(error)
        except BaseException as raised:
            undo(work, around, raised)
            raise


class _Async(_Run):
    def around(self, original: Function) -> Function:
        enabled_flag, budgets = self.enabled_flag, self.budgets
        found, client_of, avoided = calls.found, driver.retry_loop.client, deprioritized.avoided

        async def run(loop: Any) -> Any:
            call = found()
            if (
                call is None
                or call.ended
                or not (call.light and enabled_flag.on)
                or (exception() is not None and not enabled_flag.acts())
                or avoided()
                or call.client is not client_of(loop)
            ):
                return await self.prepared(original, loop)
            call.terminal_detector = None
            around, call.loop = call.loop, loop
            try:
                result = await original(loop)
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                _interrupted(call, loop, raised)
                raise
            else:
                if call.waits:
                    wait_times.over(call, None)
                if not call.ended:
                    call.selected = driver.retry_loop.server(loop)
                if budgets.incomplete and call.light:
                    budgets.succeeded(call.client)
                return result
            finally:
                call.loop = around
            return raise_alone(error)

        return run

    async def prepared(self, original: Function, loop: Any) -> Any:
        work, around = BEGINNING, calls.found()
        try:
            try:
                work = self.enter(loop)
                if work is None:
                    return await original(loop)
                with work.call.deadline if work.owns_call else NO_DEADLINE:
                    result = await original(loop)
                self.leave(work, None)
                return result  # noqa: TRY300 - a signal handler's may strike here, too
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                if work is not None and work is not BEGINNING:
                    end_with(self.leave, work, raised)
                raise
            end_with(self.leave, work, error)
            return raise_alone(error)
        except BaseException as raised:
            undo(work, around, raised)
            raise


def undo(work: Any, around: Call | None, error: BaseException) -> None:
    """As ``calls.undo``, for the work of a loop."""
    if work is BEGINNING:
        calls.undo(work, around, error)
    elif work is not None:
        work.release(error)
        if work.owns_call:
            calls.undo(work.call, around, error)


def _interrupted(call: Call, loop: Any, error: BaseException) -> None:
    if call.waits:
        wait_times.over(call, None if driver.retry_loop.reached_connection(error) else error)
    if not call.ended:
        call.selected = driver.retry_loop.server(loop)
