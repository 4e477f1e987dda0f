"""The subclass that runs in place of the driver's retry loop, for every operation of every client.

The first attempt is the driver's own. Once it has failed, the engine's executor decides, and makes
the next ones. What is no part of an operation yet, such as a commit or a method that was bound
before ``instrument()``, gets an operation of its own that keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo_resilience.internal_errors import faults
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.interceptor import OperationInterceptor, Subclass
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.runtime import Runtime

from .retry_loop import RetryLoop, is_internal, log_after

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
            if _operation_of(loop) is not None and runtime.enabled_flag.on:
                return ours(loop)
            return drivers_run(loop.driver_alone(drivers))

        outside = own_operation.around(entered, runtime.enabled_flag, asynchronous)
        ours = run(runtime, drivers, drivers_run, outside)
        select = driver.selection.SELECT
        more = {"runtime": runtime, name: ours}
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


def _run(runtime: Runtime, base: type, drivers: Run, outside: Run) -> Run:
    """``drivers``: the method ``run`` of pymongo's class ``base``; ``outside``: what runs a loop
    that is no part of an operation yet."""
    enabled_flag, executor = runtime.enabled_flag, runtime.executor
    in_flight = runtime.in_flight

    def run(self: RetryLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: Any = None
        try:
            operation = _operation_of(self)
            if operation is not None and enabled_flag.on:
                self.begin(operation)
            else:
                operation = None
        except faults() as error:
            alone = self.left_to_driver(base, error)
        if alone is not None:
            return drivers(alone)
        if operation is None:
            return outside(self)
        try:
            try:
                result = self.first_attempt()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    if self.failed_before_sending(failed):
                        alone = self.left_to_driver(base, failed)
                    elif self.gives_up(failed):
                        raise failed
                    else:
                        result = executor.run(self, failed)
                except Exception as error:
                    if not is_internal(error):
                        raise
                    alone = self.left_to_driver(base, error, failed)
            if alone is not None:
                return drivers(alone)
            if self.read_only is not None and (rest := self.read_only.unfinished(self)) is not None:
                rest()
        except BaseException as error:
            try:
                self.release(error)
            except faults() as fault:
                log_after(fault)
            raise
        finally:
            in_flight.pop(id(self), None)
            del failed, alone
        try:
            self.release(None)
        except faults() as fault:
            log_after(fault)
        return result

    return run


def _async_run(runtime: Runtime, base: type, drivers: Run, outside: Run) -> Run:
    enabled_flag, executor = runtime.enabled_flag, runtime.async_executor
    in_flight = runtime.in_flight

    async def run(self: RetryLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: Any = None
        try:
            operation = _operation_of(self)
            if operation is not None and enabled_flag.on:
                self.begin(operation)
            else:
                operation = None
        except faults() as error:
            alone = self.left_to_driver(base, error)
        if alone is not None:
            return await drivers(alone)
        if operation is None:
            return await outside(self)
        try:
            try:
                result = await self.first_attempt()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    if self.failed_before_sending(failed):
                        alone = self.left_to_driver(base, failed)
                    elif self.gives_up(failed):
                        raise failed
                    else:
                        result = await executor.run(self, failed)
                except Exception as error:
                    if not is_internal(error):
                        raise
                    alone = self.left_to_driver(base, error, failed)
            if alone is not None:
                return await drivers(alone)
            if self.read_only is not None and (rest := self.read_only.unfinished(self)) is not None:
                await rest()
        except BaseException as error:
            try:
                self.release(error)
            except faults() as fault:
                log_after(fault)
            raise
        finally:
            in_flight.pop(id(self), None)
            del failed, alone
        try:
            self.release(None)
        except faults() as fault:
            log_after(fault)
        return result

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
