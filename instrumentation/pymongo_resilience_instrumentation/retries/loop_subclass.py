"""The subclass that replaces pymongo's retry loop for every operation of every client.

pymongo looks up its loop as a global of its module for each operation, so replacing that global
affects existing clients as well. pymongo's code makes the first attempt. If it fails, the engine's
executor decides about the next ones and makes them from inside ``run``, after pymongo has taken the
transaction number, so that all attempts share it. Commands outside of an operation, such as a
method that was bound before ``instrument()``, get an operation that enforces their deadline.
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

from .after_failure import is_internal
from .loop_steps import (
    admit,
    after_first_failure,
    begin_run,
    end_run,
    end_with_error,
    left_to_pymongo,
    limit_selection,
    log_after_run,
)

Run = Callable[..., Any]
"""A method of the loop."""
UNREPORTED = (
    "a listener, hook, log handler or exporter uses MongoDB while it handles the telemetry of an "
    "operation. Its commands run with pymongo alone, without retries and telemetry of this "
    "library, so that they cannot cause endless recursion. Further cases are not logged"
)


def subclass(runtime: Runtime, asynchronous: bool) -> Subclass:
    """Return a factory for the class that replaces pymongo's loop."""
    run, get_server = (_async_run, _async_get_server) if asynchronous else (_run, _get_server)
    select, own_operation = driver.selection.SELECT, LoopOperation(runtime)

    def derive(base: type) -> type:
        # A pymongo that records spans itself has another method for the attempts.
        name = driver.attempts.run_name(base)
        run_of_pymongo = getattr(base, name)

        def entered(loop: PymongoLoop) -> Any:
            """Run a loop that may have been given its own operation."""
            try:
                client = DriverAttempts(loop).client
                is_within = runtime.enabled_flag.on and client is _client_in_progress()
            except internal_error_types() as error:
                return run_of_pymongo(left_to_pymongo(None, loop, base, error))
            if is_within:
                return ours(loop)
            return run_of_pymongo(driver.attempts.pymongo_alone(loop, base))

        outside = own_operation.wrap(entered, runtime.enabled_flag, asynchronous)
        ours = run(runtime, base, run_of_pymongo, outside)
        replaced = {name: ours, select: get_server(runtime, getattr(base, select))}
        return driver.attempts.subclass(base, replaced)

    return Subclass(derive)


class LoopOperation(OperationInterceptor):
    """Creates an operation for a loop outside of one."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:  # noqa: ARG002 - none
        attempts = DriverAttempts(args[0])
        outer = in_progress.current_or_ended()
        if outer is not None and outer.in_foreign_call:
            # A log handler that writes to MongoDB would otherwise log its own inserts.
            self.runtime.warn_once(UNREPORTED)
            # Under another operation's deadline, pymongo 4.20 would retry until that deadline.
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
    """Return the method that replaces ``run_of_pymongo``, the method of pymongo's class ``base``.

    ``outside`` runs a loop that is not part of an operation yet.
    """
    executor, in_flight = runtime.executor, runtime.in_flight

    # Not split into functions: every healthy operation would pay for the calls.
    def run(loop: PymongoLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: PymongoLoop | None = None
        attempts: DriverAttempts | None = None
        try:
            attempts = begin_run(runtime, loop)
        except internal_error_types() as error:
            # First boundary against bugs of the library: nothing was sent yet, so pymongo runs
            # alone.
            alone = left_to_pymongo(None, loop, base, error)
        if alone is not None:
            return run_of_pymongo(alone)
        if attempts is None:
            return outside(loop)
        try:
            try:
                result = attempts.first()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    retries = after_first_failure(runtime, attempts, failed)
                    if retries is None:
                        raise failed
                    result = executor.run(retries, failed)
                except Exception as error:
                    # Second boundary: after a bug of the library, pymongo's own loop continues with
                    # the error at hand and the same transaction number.
                    if not is_internal(error):
                        raise
                    alone = left_to_pymongo(attempts, loop, base, error, failed)
            if alone is not None:
                return run_of_pymongo(alone)
            hooks = attempts.hooks
            if hooks is not None and (rest := hooks.unfinished(attempts)) is not None:
                rest()
        except BaseException as error:
            end_with_error(attempts, error)
            raise
        finally:
            in_flight.pop(id(attempts), None)
            # The two objects reference each other. Break the cycle, so that reference counting
            # frees them at once.
            loop.send = loop.driver_func
            del loop.attempts
            del failed, alone
        # Third boundary: pymongo has answered, so a bug here must not change the result. Not by
        # end_with_error(), which would be one more call for every healthy operation.
        try:
            end_run(attempts, None)
        except internal_error_types() as internal_error:
            log_after_run(internal_error)
        return result

    return run


# The same as ``_run``, with ``await``. The comments there apply here, too.
def _async_run(runtime: Runtime, base: type, run_of_pymongo: Run, outside: Run) -> Run:
    executor, in_flight = runtime.async_executor, runtime.in_flight

    async def run(loop: PymongoLoop) -> Any:  # noqa: PLR0912 - one boundary after the other
        failed: Exception | None = None
        alone: PymongoLoop | None = None
        attempts: DriverAttempts | None = None
        try:
            attempts = begin_run(runtime, loop)
        except internal_error_types() as error:
            alone = left_to_pymongo(None, loop, base, error)
        if alone is not None:
            return await run_of_pymongo(alone)
        if attempts is None:
            return await outside(loop)
        try:
            try:
                result = await attempts.first()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                try:
                    retries = after_first_failure(runtime, attempts, failed)
                    if retries is None:
                        raise failed
                    result = await executor.run(retries, failed)
                except Exception as error:
                    if not is_internal(error):
                        raise
                    alone = left_to_pymongo(attempts, loop, base, error, failed)
            if alone is not None:
                return await run_of_pymongo(alone)
            hooks = attempts.hooks
            if hooks is not None and (rest := hooks.unfinished(attempts)) is not None:
                await rest()
        except BaseException as error:
            end_with_error(attempts, error)
            raise
        finally:
            in_flight.pop(id(attempts), None)
            loop.send = loop.driver_func
            del loop.attempts
            del failed, alone
        try:
            end_run(attempts, None)
        except internal_error_types() as internal_error:
            log_after_run(internal_error)
        return result

    return run


def _client_in_progress() -> Any:
    """Return the client of the operation that the caller's thread or task is in, if any."""
    operation = in_progress.current()
    return None if operation is None else operation.client


def _get_server(runtime: Runtime, select: Run) -> Run:
    """Return the method that selects a server for an attempt and asks the server's circuit
    breaker.
    """

    def get_server(loop: PymongoLoop) -> Any:
        attempts = loop.attempts
        if attempts.pending is not None:
            attempts.raise_pending()
        limit = limit_selection(attempts)
        if limit is None:
            server = select(loop)
        else:
            with limit:
                server = select(loop)
        if attempts.retries is not None and attempts.retries.is_unanswered:
            attempts.retries.ask_for_life(server)
        if runtime.admits:
            # Ask the breaker here and not in a selector: pymongo calls no selector if there is only
            # one address, or if the operation is bound to a server.
            admit(attempts, server)
        return server

    return get_server


def _async_get_server(runtime: Runtime, select: Run) -> Run:
    async def get_server(loop: PymongoLoop) -> Any:
        attempts = loop.attempts
        if attempts.pending is not None:
            attempts.raise_pending()
        limit = limit_selection(attempts)
        if limit is None:
            server = await select(loop)
        else:
            with limit:
                server = await select(loop)
        if attempts.retries is not None and attempts.retries.is_unanswered:
            attempts.retries.ask_for_life(server)
        if runtime.admits:
            admit(attempts, server)
        return server

    return get_server
