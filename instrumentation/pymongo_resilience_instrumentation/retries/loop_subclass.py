"""The subclass that runs in place of the driver's retry loop, for every operation of every client.

The first attempt is the driver's own. Once it has failed, the engine's executor decides, and makes
the next ones. What is no part of an operation yet, such as a commit or a method that was bound
before ``instrument()``, gets an operation of its own that keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo_resilience.internal_errors import internal_error_types
from pymongo_resilience.policies import blocks
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts, PymongoLoop
from pymongo_resilience_instrumentation.interceptor import OperationInterceptor, Subclass
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.runtime import Runtime

from .retry_loop import RetryLoop, is_internal, left_to_pymongo, log_after_release, release

Run = Callable[..., Any]
"""A method of the loop."""
UNREPORTED = (
    "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
    "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
    "further cases are not logged"
)


def subclass(runtime: Runtime, asynchronous: bool) -> Subclass:
    """Return what derives the class that takes the place of pymongo's loop."""
    run, get_server = (_async_run, _async_get_server) if asynchronous else (_run, _get_server)
    select, own_operation = driver.selection.SELECT, LoopOperation(runtime)

    def derive(base: type) -> type:
        name = driver.attempts.run_name(base)
        run_of_pymongo = getattr(base, name)

        def entered(attempts: DriverAttempts) -> Any:
            """Run a loop that may have been given an operation of its own."""
            try:
                is_within = runtime.enabled_flag.on and attempts.client is _client_in_progress()
            except internal_error_types() as error:
                return run_of_pymongo(left_to_pymongo(None, attempts.loop, base, error))
            if is_within:
                return ours(attempts.loop)
            return run_of_pymongo(driver.attempts.pymongo_alone(attempts.loop, base))

        outside = own_operation.wrap(entered, runtime.enabled_flag, asynchronous)
        ours = run(runtime, base, run_of_pymongo, outside)
        replaced = {name: ours, select: get_server(runtime, getattr(base, select))}
        return driver.attempts.subclass(base, replaced)

    return Subclass(derive)


class LoopOperation(OperationInterceptor):
    """For a loop that is no part of an operation yet."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:  # noqa: ARG002 - none
        attempts: DriverAttempts = args[0]
        outer = in_progress.current_or_ended()
        if outer is not None and outer.in_foreign_call:
            self.runtime.warn_once(UNREPORTED)
            attempts.retry_once_at_most()
            return None
        call = Call(
            attempts.client,
            attempts.command_name(),
            attempts.namespace(),
            session=attempts.session,
            block_policy=blocks.current(),
            is_public=False,
            unknown_concern=True,
        )
        operation = Operation(call)
        self.runtime.begin(operation, span=False)
        return operation


def _run(runtime: Runtime, base: type, run_of_pymongo: Run, outside: Run) -> Run:
    """Return what runs in place of ``run_of_pymongo``, the method of pymongo's class ``base``.
    ``outside``: runs a loop that is no part of an operation yet."""
    enabled_flag, executor = runtime.enabled_flag, runtime.executor
    found, in_flight = in_progress.current_or_ended, runtime.in_flight

    def run(loop: PymongoLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: PymongoLoop | None = None
        retry_loop: RetryLoop | None = None
        operation = found()
        try:
            attempts = DriverAttempts(loop)
            if (
                operation is not None
                and not operation.ended
                and operation.client is attempts.client
                and enabled_flag.on
            ):
                retry_loop = RetryLoop(runtime, operation, attempts)
        except internal_error_types() as error:
            alone = left_to_pymongo(retry_loop, loop, base, error)
        if alone is not None:
            return run_of_pymongo(alone)
        if retry_loop is None:
            return outside(attempts)
        try:
            try:
                result = attempts.first()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    if retry_loop.failed_before_sending(failed):
                        alone = left_to_pymongo(retry_loop, loop, base, failed)
                    elif retry_loop.gives_up(failed):
                        raise failed
                    else:
                        result = executor.run(retry_loop, failed)
                except Exception as error:
                    if not is_internal(error):
                        raise
                    alone = left_to_pymongo(retry_loop, loop, base, error, failed)
            if alone is not None:
                return run_of_pymongo(alone)
            hooks = retry_loop.hooks
            if hooks is not None and (rest := hooks.unfinished(retry_loop)) is not None:
                rest()
        except BaseException as error:
            release(retry_loop, error)
            raise
        finally:
            in_flight.pop(id(retry_loop), None)
            # The two refer to each other.
            loop.owner, loop.send = None, loop.driver_func
            del failed, alone
        # Not by release(): a healthy operation makes no further call for it.
        try:
            retry_loop.release(None)
        except internal_error_types() as internal_error:
            log_after_release(internal_error)
        return result

    return run


def _async_run(runtime: Runtime, base: type, run_of_pymongo: Run, outside: Run) -> Run:
    enabled_flag, executor = runtime.enabled_flag, runtime.async_executor
    found, in_flight = in_progress.current_or_ended, runtime.in_flight

    async def run(loop: PymongoLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: PymongoLoop | None = None
        retry_loop: RetryLoop | None = None
        operation = found()
        try:
            attempts = DriverAttempts(loop)
            if (
                operation is not None
                and not operation.ended
                and operation.client is attempts.client
                and enabled_flag.on
            ):
                retry_loop = RetryLoop(runtime, operation, attempts)
        except internal_error_types() as error:
            alone = left_to_pymongo(retry_loop, loop, base, error)
        if alone is not None:
            return await run_of_pymongo(alone)
        if retry_loop is None:
            return await outside(attempts)
        try:
            try:
                result = await attempts.first()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    if retry_loop.failed_before_sending(failed):
                        alone = left_to_pymongo(retry_loop, loop, base, failed)
                    elif retry_loop.gives_up(failed):
                        raise failed
                    else:
                        result = await executor.run(retry_loop, failed)
                except Exception as error:
                    if not is_internal(error):
                        raise
                    alone = left_to_pymongo(retry_loop, loop, base, error, failed)
            if alone is not None:
                return await run_of_pymongo(alone)
            hooks = retry_loop.hooks
            if hooks is not None and (rest := hooks.unfinished(retry_loop)) is not None:
                await rest()
        except BaseException as error:
            release(retry_loop, error)
            raise
        finally:
            in_flight.pop(id(retry_loop), None)
            # The two refer to each other.
            loop.owner, loop.send = None, loop.driver_func
            del failed, alone
        # Not by release(): a healthy operation makes no further call for it.
        try:
            retry_loop.release(None)
        except internal_error_types() as internal_error:
            log_after_release(internal_error)
        return result

    return run


def _client_in_progress() -> Any:
    """The client of the operation that the caller's thread or task is in, if any."""
    operation = in_progress.current()
    return None if operation is None else operation.client


def _get_server(runtime: Runtime, select: Run) -> Run:
    """The selection of an attempt. What it ends with is what counts: with one address only, or if
    the operation is bound to one, pymongo never calls the selector."""

    def get_server(loop: PymongoLoop) -> Any:
        if loop.pending is not None:
            driver.attempts.raise_pending(loop)
        if (owner := loop.owner) is None:
            return select(loop)
        with owner.limit_selection():
            server = select(loop)
        if runtime.admits:
            owner.selected(server)
        return server

    return get_server


def _async_get_server(runtime: Runtime, select: Run) -> Run:
    async def get_server(loop: PymongoLoop) -> Any:
        if loop.pending is not None:
            driver.attempts.raise_pending(loop)
        if (owner := loop.owner) is None:
            return await select(loop)
        with owner.limit_selection():
            server = await select(loop)
        if runtime.admits:
            owner.selected(server)
        return server

    return get_server
