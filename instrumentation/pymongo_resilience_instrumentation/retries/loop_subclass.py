"""The subclass that runs in place of the driver's retry loop, for every operation of every client.

The first attempt is the driver's own. Once it has failed, the engine's executor decides, and makes
the next ones. What is no part of an operation yet, such as a commit or a method that was bound
before ``instrument()``, gets an operation of its own that keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.interceptor import OperationInterceptor, Subclass
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.runtime import Runtime

from .retry_loop import RetryLoop

Run = Callable[..., Any]
"""A method of the loop."""
UNREPORTED = (
    "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
    "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
    "further cases are not logged"
)


def subclass(runtime: Runtime, asynchronous: bool) -> Subclass:
    run, get_server = (_async_run, _async_get_server) if asynchronous else (_run, _get_server)
    own_operation = LoopOperation(runtime)

    def derive(drivers: Any) -> type:
        name = driver.retry_loop.run_name(drivers)
        drivers_run = getattr(drivers, name)

        def entered(loop: Any) -> Any:
            if _operation_of(loop) is not None and loop.runtime.enabled_flag.on:
                return ours(loop)
            loop.leave_to_driver()
            return drivers_run(loop)

        ours = run(
            runtime, drivers_run, own_operation.around(entered, runtime.enabled_flag, asynchronous)
        )
        select = driver.selection.SELECT
        more = {"runtime": runtime, "drivers_run": drivers_run, name: ours}
        more[select] = get_server(runtime, getattr(drivers, select))
        return driver.retry_loop.subclass(drivers, RetryLoop, ("operation",), more)

    return Subclass(derive)


class LoopOperation(OperationInterceptor):
    """For a loop that is no part of an operation yet."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:  # noqa: ARG002 - none
        loop = given[0]
        around = in_progress.found()
        if around is not None and around.reporting:
            self.runtime.warn_once(UNREPORTED)
            loop.retry_once_at_most()
            return None
        operation = Operation(loop.client, loop.command_name(), loop.namespace())
        operation.session = loop.session
        operation.public, operation.unknown_concern = False, True
        self.runtime.begin(operation, span=False)
        return operation


def _operation_of(loop: Any) -> Operation | None:
    """The one that the loop is part of."""
    operation = in_progress.found()
    if operation is None or operation.ended or operation.client is not loop.client:
        return None
    return operation


def _run(runtime: Runtime, drivers: Run, outside: Run) -> Run:
    """``outside``: what runs a loop that is no part of an operation yet."""
    enabled_flag, executor = runtime.enabled_flag, runtime.executor

    def run(self: RetryLoop) -> Any:
        failed: Exception | None = None
        operation = _operation_of(self)
        if operation is None or not enabled_flag.on:
            return outside(self)
        self.operation, operation.history.loop = operation, self
        try:
            if not self.begin():
                return drivers(self)
            try:
                result = self.first_attempt()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.gives_up(failed):
                    raise failed
                result = executor.run(self, failed)
            if self.read_only is not None and (rest := self.read_only.unfinished(self)) is not None:
                rest()
            if (session := self.session) is not None and session.in_transaction:
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
    enabled_flag, executor = runtime.enabled_flag, runtime.async_executor

    async def run(self: RetryLoop) -> Any:
        failed: Exception | None = None
        operation = _operation_of(self)
        if operation is None or not enabled_flag.on:
            return await outside(self)
        self.operation, operation.history.loop = operation, self
        try:
            if not self.begin():
                return await drivers(self)
            try:
                result = await self.first_attempt()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.gives_up(failed):
                    raise failed
                result = await executor.run(self, failed)
            if self.read_only is not None and (rest := self.read_only.unfinished(self)) is not None:
                await rest()
            if (session := self.session) is not None and session.in_transaction:
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
        with loop.limit_selection():
            server = drivers(loop)
        if runtime.admits and loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server


def _async_get_server(runtime: Runtime, drivers: Run) -> Run:
    async def get_server(loop: Any) -> Any:
        with loop.limit_selection():
            server = await drivers(loop)
        if runtime.admits and loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server
