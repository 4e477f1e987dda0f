"""What runs in place of pymongo's methods; while the library is switched off, nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import MethodType
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
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.methods import Method
from pymongo_resilience_instrumentation.selection_wrappers import counted

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.methods import Function
    from pymongo_resilience_instrumentation.operations import PublicOperation, Target
    from pymongo_resilience_instrumentation.runtime import Runtime

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
Begin = Callable[[Any, tuple[Any, ...], dict[str, Any]], "Call | None"]
After = Callable[["Call", Any], None]

logger = logging.getLogger("pymongo_resilience")


def public(
    runtime: Runtime, operation: PublicOperation, asynchronous: bool, session_at: int | None
) -> Method:
    """A method of the public API: one call, one operation span, one deadline.

    ``session_at``: where among its positional arguments its session is.
    """

    name, client_of, target_of = operation.name, operation.client, operation.target
    changes = name in operations.CHANGES

    def begin(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        client = client_of(instance)
        nested = calls.found() is not None and runtime.nested(client)
        if nested and not changes:
            return None
        target = target_of(instance, args, kwargs)
        if nested and not _leaves_the_namespace(name, target):
            return None
        only_reads = operation.only_reads is not None and operation.only_reads(args, kwargs)
        concern = getattr(instance, "write_concern", None)
        acknowledged = concern is None or concern.acknowledged
        call = runtime.begin(
            client,
            name,
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
) -> Method:
    """Outermost wins: what a call calls in turn on its own client is no call of its own.

    ``begin`` raises ConfigurationError for what the application gave; ``after`` sees the result.
    """
    switch, end = runtime.switch, runtime.end

    def enter(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        try:
            return begin(instance, args, kwargs)
        except (ConfigurationError, InvalidOperation):
            # What the library refuses is no fault of its own.
            raise
        except Exception:
            logger.exception("a fault of pymongo-resilience before %s", begin.__qualname__)
            return None

    def see(after: After, call: Call, result: Any) -> None:
        try:
            after(call, result)
        except Exception:
            logger.exception("a fault of pymongo-resilience after %s", begin.__qualname__)

    def of_sync(original: Function) -> Function:
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            call = enter(instance, args, kwargs) if switch.on else None
            if call is None:
                return original(instance, *args, **kwargs)
            try:
                if call.deadline is NO_DEADLINE:
                    result = original(instance, *args, **kwargs)
                else:
                    with call.deadline:
                        result = original(instance, *args, **kwargs)
                if after is not None:
                    see(after, call, result)
            except BaseException as error:
                _end(end, call, error)
                raise
            end(call, None)
            return result

        return method

    def of_async(original: Function) -> Function:
        async def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            call = enter(instance, args, kwargs) if switch.on else None
            if call is None:
                return await original(instance, *args, **kwargs)
            try:
                if call.deadline is NO_DEADLINE:
                    result = await original(instance, *args, **kwargs)
                else:
                    with call.deadline:
                        result = await original(instance, *args, **kwargs)
                if after is not None:
                    see(after, call, result)
            except BaseException as error:
                _end(end, call, error)
                raise
            end(call, None)
            return result

        return method

    return Method(of_async if asynchronous else of_sync)


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


def run(runtime: Runtime, asynchronous: bool) -> Method:
    """The driver's loop around the attempts. It is entered once: that allocates the txnNumber."""
    switch, leave = runtime.switch, runtime.leave_loop

    def enter(loop: Any) -> Attempts | None:
        try:
            return runtime.enter_loop(loop)
        except InvalidOperation:
            raise
        except Exception:
            logger.exception("a fault of pymongo-resilience before the driver's loop")
            return None

    def of_sync(original: Function) -> Function:
        def method(loop: Any, *args: Any, **kwargs: Any) -> Any:
            work = enter(loop) if switch.on else None
            if work is None:
                return original(loop, *args, **kwargs)
            try:
                if work.owns_call:
                    with work.call.deadline:
                        result = original(loop, *args, **kwargs)
                else:
                    result = original(loop, *args, **kwargs)
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                _end(leave, work, raised)
                raise
            else:
                leave(work, None)
                return result
            _end(leave, work, error)
            return _raise(error)

        return method

    def of_async(original: Function) -> Function:
        async def method(loop: Any, *args: Any, **kwargs: Any) -> Any:
            work = enter(loop) if switch.on else None
            if work is None:
                return await original(loop, *args, **kwargs)
            try:
                if work.owns_call:
                    with work.call.deadline:
                        result = await original(loop, *args, **kwargs)
                else:
                    result = await original(loop, *args, **kwargs)
            except GaveUp as gave_up:
                error = gave_up.error
            except BaseException as raised:
                _end(leave, work, raised)
                raise
            else:
                leave(work, None)
                return result
            _end(leave, work, error)
            return _raise(error)

        return method

    return Method(of_async if asynchronous else of_sync)


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


def attempt(runtime: Runtime, asynchronous: bool) -> Method:
    """The loop's ``_read`` and ``_write``: one attempt each, repeated by the executor."""
    executor: Any = runtime.async_executor if asynchronous else runtime.executor

    def around(original: Function) -> Function:
        def method(loop: Any) -> Any:
            work = driver.func(loop)
            if type(work) is not Attempts:
                return original(loop)
            send = MethodType(original, loop)
            work.send = send if work.count is None else counted(send, work.count, asynchronous)
            return executor.run(work)

        return method

    return Method(around)


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
