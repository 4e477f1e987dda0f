"""The subclass that runs in place of the driver's retry loop, for every operation of every client.

The first attempt is the driver's own. Once it has failed, the engine's executor decides, and makes
the next ones. What is no part of a call yet, such as a commit or a method that was bound before
``instrument()``, gets a call of its own that keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import exception
from typing import Any

from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.interceptor import CallInterceptor, Subclass
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.telemetry.decisions import UNREPORTED

from .attempts import Attempts

Run = Callable[..., Any]
"""A method of the loop."""


def subclass(runtime: Runtime, asynchronous: bool) -> Subclass:
    run, get_server = (_async_run, _async_get_server) if asynchronous else (_run, _get_server)
    own_call = OwnCall(runtime)

    def derive(drivers: Any) -> type:
        name = driver.retry_loop.run_name(drivers)
        drivers_run = getattr(drivers, name)

        def entered(loop: Any) -> Any:
            if _inside(loop):
                return ours(loop)
            loop.leave_to_driver()
            return drivers_run(loop)

        ours = run(
            runtime, drivers_run, own_call.around(entered, runtime.enabled_flag, asynchronous)
        )
        more = {"runtime": runtime, "drivers_run": drivers_run, name: ours}
        if runtime.admits:
            select = driver.selection.SELECT
            more[select] = get_server(runtime, getattr(drivers, select))
        return driver.retry_loop.subclass(drivers, Attempts, ("call",), more)

    return Subclass(derive)


class OwnCall(CallInterceptor):
    """For a loop that is no part of a call yet."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:  # noqa: ARG002 - none
        loop = given[0]
        around = calls.found()
        if around is not None and around.reporting:
            self.runtime.warn_once(UNREPORTED)
            driver.next_attempt.retry_once_at_most(loop)
            return None
        client = driver.retry_loop.client(loop)
        name, target = driver.retry_loop.operation_name(loop), driver.retry_loop.namespace(loop)
        call = Call(client, name, target)
        call.session = driver.retry_loop.session(loop)
        call.public, call.unknown_concern = False, True
        self.runtime.begin(call, span=False)
        return call


def _inside(loop: Any) -> bool:
    """Whether the loop is part of a call, and may be ours."""
    call = calls.current()
    return (
        call is not None
        and call.client is driver.retry_loop.client(loop)
        and loop.runtime.enabled_flag.acts()
    )


def _run(runtime: Runtime, drivers: Run, outside: Run) -> Run:
    """``outside``: what runs a loop that is no part of a call yet."""
    enabled_flag, found, executor = runtime.enabled_flag, calls.found, runtime.executor

    def run(self: Attempts) -> Any:
        failed: Exception | None = None
        call = found()
        if call is None or call.ended or not enabled_flag.on or call.client is not self._client:
            return outside(self)
        self.call = call
        try:
            if not self.begin():
                return drivers(self)
            try:
                result = self._read() if self._is_read else self.first_write()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.lost_race(failed):
                    raise failed
                result = executor.run(self, failed)
            self.note_completed()
            self.release(None)
            return result  # noqa: TRY300 - the driver's own errors, and ours, release it alike
        except BaseException as error:
            self.release(error)
            raise
        finally:
            del failed

    return run


def _async_run(runtime: Runtime, drivers: Run, outside: Run) -> Run:
    enabled_flag, found, executor = runtime.enabled_flag, calls.found, runtime.async_executor

    async def run(self: Attempts) -> Any:
        failed: Exception | None = None
        call = found()
        if (
            call is None
            or call.ended
            or not enabled_flag.on
            or call.client is not self._client
            # The cleanup in a coroutine that is being closed is the driver's alone.
            or (exception() is not None and not enabled_flag.acts())
        ):
            return await outside(self)
        self.call = call
        try:
            if not self.begin():
                return await drivers(self)
            try:
                result = await (self._read() if self._is_read else self.first_write())
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.lost_race(failed):
                    raise failed
                result = await executor.run(self, failed)
            self.note_completed()
            self.release(None)
            return result  # noqa: TRY300 - the driver's own errors, and ours, release it alike
        except BaseException as error:
            self.release(error)
            raise
        finally:
            del failed

    return run


def _get_server(runtime: Runtime, drivers: Run) -> Run:
    """What the driver's selection ends with is what counts: where there is one address only or the
    operation is bound to one, the selector is never called."""

    def get_server(loop: Any) -> Any:
        server = drivers(loop)
        if loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server


def _async_get_server(runtime: Runtime, drivers: Run) -> Run:
    async def get_server(loop: Any) -> Any:
        server = await drivers(loop)
        if loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server
