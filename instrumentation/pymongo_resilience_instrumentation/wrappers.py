"""What runs in place of pymongo's methods; while the library is switched off, nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pymongo.errors import InvalidOperation

from pymongo_resilience.binding import policy_of
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation import (
    calls,
    client_options,
    cursor_makers,
    driver,
    new_clients,
    operations,
    sessions,
    tracing,
)
from pymongo_resilience_instrumentation.attempts import Attempts, GaveUp
from pymongo_resilience_instrumentation.selection_wrappers import counted

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.operations import PublicOperation, Target
    from pymongo_resilience_instrumentation.runtime import Runtime

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
Begin = Callable[[Any, tuple[Any, ...], dict[str, Any]], "Call | None"]
After = Callable[["Call", Any], None]

logger = logging.getLogger("pymongo_resilience")


def public(
    runtime: Runtime, operation: PublicOperation, asynchronous: bool, session_at: int | None
) -> Wrapper:
    """A method of the public API: one call, one operation span, one deadline.

    ``session_at``: where among its positional arguments its session is.
    """

    def begin(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        client = operation.client(instance)
        nested = runtime.nested(client)
        if nested and operation.name not in operations.CHANGES:
            return None
        target = operation.target(instance, args, kwargs)
        if nested and not _leaves_the_namespace(operation.name, target):
            return None
        only_reads = operation.only_reads is not None and operation.only_reads(args, kwargs)
        concern = getattr(instance, "write_concern", None)
        acknowledged = concern is None or concern.acknowledged
        call = runtime.begin(
            client,
            operation.name,
            target,
            acknowledged=acknowledged,
            bound=policy_of(instance),
            session=sessions.session_of_call(args, kwargs, session_at, asynchronous),
        )
        call.only_reads = only_reads
        if call.timeout is not None and (kwargs or (concern and not concern.is_server_default)):
            runtime.deprecated.of_method(call, kwargs, concern)
        if operation.gives is not None:
            try:
                cursor_makers.prepare(runtime, operation.gives, call, args, kwargs)
            except BaseException as error:
                runtime.end(call, error)
                raise
        return call

    after = cursor_makers.after(runtime, operation.gives)
    return call_around(runtime, begin, asynchronous, after)


def _leaves_the_namespace(operation: str, target: Target) -> bool:
    """The driver never writes elsewhere inside of a call, nor does it change collections inside of
    reads and writes: it is the application that does, from a listener or from what it inserts, and
    what holds for the call's namespace does not hold there.
    """
    call = calls.current()
    if call is None:
        return False
    if operation in operations.DEFINITIONS and call.operation in operations.DEFINITIONS:
        return False
    return (call.database, call.collection) != target


def call_around(
    runtime: Runtime, begin: Begin, asynchronous: bool, after: After | None = None
) -> Wrapper:
    """Outermost wins: what a call calls in turn on its own client is no call of its own.

    ``begin`` raises ConfigurationError for what the application gave; ``after`` sees the result.
    """

    def enter(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if not runtime.switch.on:
            return None
        try:
            return begin(instance, args, kwargs)
        except (ConfigurationError, InvalidOperation):
            # What the library refuses is no fault of its own.
            raise
        except Exception:
            logger.exception("a fault of pymongo-resilience before %s", begin.__qualname__)
            return None

    def see(call: Call, result: Any) -> None:
        try:
            if after is not None:
                after(call, result)
        except Exception:
            logger.exception("a fault of pymongo-resilience after %s", begin.__qualname__)

    def sync_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = enter(instance, args, kwargs)
        if call is None:
            return wrapped(*args, **kwargs)
        try:
            with call.deadline:
                result = wrapped(*args, **kwargs)
            if after is not None:
                see(call, result)
        except BaseException as error:
            _end(runtime.end, call, error)
            raise
        runtime.end(call, None)
        return result

    async def async_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = enter(instance, args, kwargs)
        if call is None:
            return await wrapped(*args, **kwargs)
        try:
            with call.deadline:
                result = await wrapped(*args, **kwargs)
            if after is not None:
                see(call, result)
        except BaseException as error:
            _end(runtime.end, call, error)
            raise
        runtime.end(call, None)
        return result

    return async_wrapper if asynchronous else sync_wrapper


def constructor(runtime: Runtime, *, hides_listeners: bool) -> Wrapper:
    """A client's ``__init__``: it gets our listeners beside its own, and gives us our options."""

    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # Also while it is switched off: an application that gives the option has to start.
        (args, kwargs), adaptive = client_options.take(args, kwargs)
        kwargs, said_of_tracing = tracing.take(kwargs)
        given = kwargs.get("event_listeners")
        selector = client_options.server_selector(kwargs)
        # What is no sequence, None included, is the driver's to refuse.
        refused = not isinstance(kwargs.get("event_listeners", ()), Sequence)
        if refused or not runtime.switch.on:
            return wrapped(*args, **kwargs)
        client_options.refuse_negative_timeout(args, kwargs)
        try:
            kwargs["event_listeners"] = new_clients.equip(
                runtime, client, given or (), adaptive, said_of_tracing
            )
            new_clients.select_for(runtime, client, selector, kwargs)
        except Exception:
            logger.exception("a fault of pymongo-resilience before a client was made")
        wrapped(*args, **kwargs)
        try:
            runtime.deprecated.meet(client)
            if hides_listeners:
                driver.show_listeners(client, given)
                driver.show_selector(client, *selector)
        except Exception:
            logger.exception("a fault of pymongo-resilience after a client was made")
        return None

    return wrapper


def run(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """The driver's loop around the attempts. It is entered once: that allocates the txnNumber."""

    def enter(loop: Any) -> Attempts | None:
        if not runtime.switch.on:
            return None
        try:
            return runtime.enter_loop(loop)
        except InvalidOperation:
            raise
        except Exception:
            logger.exception("a fault of pymongo-resilience before the driver's loop")
            return None

    def sync_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = enter(loop)
        if work is None:
            return wrapped(*args, **kwargs)
        try:
            with work.deadline:
                result = wrapped(*args, **kwargs)
        except GaveUp as end:
            error = end.error
        except BaseException as raised:
            _end(runtime.leave_loop, work, raised)
            raise
        else:
            runtime.leave_loop(work, None)
            return result
        _end(runtime.leave_loop, work, error)
        return _raise(error)

    async def async_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = enter(loop)
        if work is None:
            return await wrapped(*args, **kwargs)
        try:
            with work.deadline:
                result = await wrapped(*args, **kwargs)
        except GaveUp as end:
            error = end.error
        except BaseException as raised:
            _end(runtime.leave_loop, work, raised)
            raise
        else:
            runtime.leave_loop(work, None)
            return result
        _end(runtime.leave_loop, work, error)
        return _raise(error)

    return async_wrapper if asynchronous else sync_wrapper


def _end(leave: Callable[[Any, Any], Any], what: Call | Attempts, error: BaseException) -> None:
    """Leave what ended with ``error``; raises, where the application is to get another one."""
    ends_with = leave(what, error)
    try:
        if ends_with is not error:
            _raise(ends_with)
    finally:
        # As below: a frame that holds the error it raised keeps both alive.
        del ends_with, error


def _raise(error: Exception) -> NoReturn:
    # An exception that the application is handling right now is not the context of this one.
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        # The traceback holds this frame: without this, frame and error keep each other alive.
        del error


def attempt(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """The loop's ``_read`` and ``_write``: one attempt each, repeated by the executor."""
    executor: Any = runtime.async_executor if asynchronous else runtime.executor

    def wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = driver.func(loop)
        if type(work) is not Attempts:
            return wrapped(*args, **kwargs)
        work.send = wrapped
        if work.count is not None:
            work.send = counted(wrapped, work.count, asynchronous)
        return executor.run(work)

    return wrapper


def connection_error(runtime: Runtime) -> Wrapper:
    """A topology's ``handle_error``. The async one is called here and awaited by the caller, so
    that nothing can be cancelled in between."""

    def wrapper(
        wrapped: Callable[..., Any], _topology: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            error = driver.handled_error(args, kwargs)
            if runtime.switch.on and not isinstance(error, Exception):
                driver.fail_interrupted_commands(error)
        except Exception:
            logger.exception("a fault of pymongo-resilience after an interruption")
        return wrapped(*args, **kwargs)

    return wrapper
