"""What runs in place of pymongo's methods; while the library is switched off, nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import exception
from typing import TYPE_CHECKING, Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.binding import policy_of
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.faults import from_outside, logger
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import BEGINNING, NO_DEADLINE, Call
from pymongo_resilience_instrumentation.clients import (
    options as client_options,
    setup as new_clients,
)
from pymongo_resilience_instrumentation.cursors import creation as cursor_makers
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.failures.errors_raised import end_with
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.operations.changes import CHANGES, DEFINITIONS, WRITES
from pymongo_resilience_instrumentation.telemetry import listeners, tracing
from pymongo_resilience_instrumentation.transactions import sessions

from . import plain_calls

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.operations.public import PublicOperation, Target
    from pymongo_resilience_instrumentation.runtime import Runtime

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
Begin = Callable[[tuple[Any, ...], dict[str, Any]], "Call | None"]
"""From what a method is given, beginning with its instance: a tuple that is only handed on takes
less than half of what it takes to put one together."""
After = Callable[["Call", Any], None]

FAULT_BEFORE = "internal error in pymongo-resilience before %s"
MOST_ARGUMENTS = 100
_GIVEN = "_pymongo_resilience_given"
REFUSED = (ConfigurationError, InvalidOperation)
"""What the library refuses is no fault of its own."""


def public(
    runtime: Runtime,
    owner: type,
    operation: PublicOperation,
    asynchronous: bool,
    session_at: int | None,
) -> Method:
    """A method of the public API: one call, one operation span, one deadline.

    ``session_at``: where among its positional arguments its session is.
    """

    name, client_of = operation.name, operation.client
    only_reads, gives = operation.only_reads, operation.gives
    changes = name in CHANGES
    bound_session = driver.sessions.bound_session_of(asynchronous)
    before_session = MOST_ARGUMENTS if session_at is None else 1 + session_at
    tells = runtime.operation_spans is not None
    none_holds, enter_plain = plain_calls.none_holds(runtime), plain_calls.enter(runtime)
    plain = only_reads is None and (gives is None or not runtime.rules.any)

    def begin(given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        instance = given[0]
        client = client_of(instance)
        call = Call(client, name, None, (operation, given, kwargs))
        if (
            plain
            and type(instance) is owner
            and bound_session() is None
            and len(given) <= before_session
            and "session" not in kwargs
            and none_holds(client)
        ):
            enter_plain(call)
            if tells:
                runtime.draw(call)
            return call
        nested = runtime.nested(client)
        if nested and not (changes and _is_the_applications(name, call.target)):
            return None
        args = given[1:]
        call.bound = policy_of(instance)
        if only_reads is not None:
            call.only_reads = only_reads(args, kwargs)
        runtime.begin(call, sessions.session_of_call(args, kwargs, session_at, asynchronous))
        if call.timeout is not None:
            runtime.deprecated.of_method(call, kwargs, getattr(instance, "write_concern", None))
        if gives is not None:
            try:
                cursor_makers.prepare(runtime, gives, call, args, kwargs)
            except BaseException as error:
                runtime.end(call, error)
                raise
        return call

    after = cursor_makers.after(runtime, operation.gives)
    return call_around(runtime, begin, asynchronous, after)


def _is_the_applications(operation: str, target: Target) -> bool:
    """The driver never writes inside of a call, nor does it change other collections inside of one:
    it is the application that does, from a listener or from what it inserts, and neither the policy
    that the call's object carries nor what holds for its namespace holds there.
    """
    call = calls.current()
    if call is None:
        return False
    if operation in DEFINITIONS and call.operation in DEFINITIONS:
        return False
    return operation in WRITES or (call.database, call.collection) != target


def call_around(  # noqa: PLR0915 - one method, as a coroutine function and as a plain one
    runtime: Runtime, begin: Begin, asynchronous: bool, after: After | None = None
) -> Method:
    """Outermost wins: what a call calls in turn on its own client is no call of its own.

    ``begin`` raises ConfigurationError for what the application gave; ``after`` sees the result.
    An exception of a signal handler may strike at any line: what undoes a call is run again where
    it has struck in there.
    """
    switch, end, end_well, found = runtime.switch, runtime.end, runtime.end_well, calls.found

    def is_for_the_caller(error: BaseException, around: Call | None) -> bool:
        """Of an error of ``begin``; a fault of ours is logged."""
        calls.unwind(around)
        # What the library refuses is no fault of its own.
        if isinstance(error, REFUSED) or from_outside(error):
            return True
        logger.error(FAULT_BEFORE, begin.__qualname__, exc_info=error)
        return False

    def over(call: Call, error: BaseException) -> None:
        call.deadline.__exit__(None, error, None)
        if call.reporting or call.client is None:
            # It was left already, or half-way.
            calls.leave(call)
        else:
            end_with(end, call, error)

    def of_sync(original: Function) -> Function:
        def method(*given: Any, **kwargs: Any) -> Any:
            if not (switch.on and (exception() is None or switch.acts())):
                return original(*given, **kwargs)
            call, around = BEGINNING, found()
            try:
                try:
                    call = begin(given, kwargs)
                    if call is None:
                        return original(*given, **kwargs)
                    if call.deadline is NO_DEADLINE:
                        result = original(*given, **kwargs)
                    else:
                        with call.deadline:
                            result = original(*given, **kwargs)
                    if after is not None:
                        _see(after, call, result)
                    if call.struck is not None:
                        raise call.struck
                    end_well(call)
                    return result  # noqa: TRY300 - a signal handler's may strike here, too
                except BaseException as error:
                    if call is None:
                        raise
                    if call is not BEGINNING:
                        over(call, error)
                        raise
                    if is_for_the_caller(error, around):
                        raise
            except BaseException as error:
                calls.undo(call, around, error)
                raise
            return original(*given, **kwargs)

        return method

    def of_async(original: Function) -> Function:
        async def method(*given: Any, **kwargs: Any) -> Any:
            if not (switch.on and (exception() is None or switch.acts())):
                return await original(*given, **kwargs)
            call, around = BEGINNING, found()
            try:
                try:
                    call = begin(given, kwargs)
                    if call is None:
                        return await original(*given, **kwargs)
                    if call.deadline is NO_DEADLINE:
                        result = await original(*given, **kwargs)
                    else:
                        with call.deadline:
                            result = await original(*given, **kwargs)
                    if after is not None:
                        _see(after, call, result)
                    if call.struck is not None:
                        raise call.struck
                    end_well(call)
                    return result  # noqa: TRY300 - a signal handler's may strike here, too
                except BaseException as error:
                    if call is None:
                        raise
                    if call is not BEGINNING:
                        over(call, error)
                        raise
                    if is_for_the_caller(error, around):
                        raise
            except BaseException as error:
                calls.undo(call, around, error)
                raise
            return await original(*given, **kwargs)

        return method

    return Method(of_async if asynchronous else of_sync)


def _see(after: After, call: Call, result: Any) -> None:
    try:
        after(call, result)
    except Exception:
        logger.exception("internal error in pymongo-resilience after %s", call.operation)


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
            logger.exception("internal error in pymongo-resilience before a client was made")
        wrapped(*args, **kwargs)
        try:
            runtime.deprecated.meet(client)
            listeners.tell_without_events(client, dispensable=runtime.judges)
            if hides_listeners:
                vars(client)[_GIVEN] = given, selector
                _show_given(client)
        except Exception:
            logger.exception("internal error in pymongo-resilience after a client was made")
        return None

    return wrapper


def resolved(asynchronous: bool) -> Wrapper:
    """A client makes its options anew from what an SRV record says: what is ours is in them."""

    def show(client: Any) -> None:
        try:
            _show_given(client)
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience after an SRV record was resolved"
            )

    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        show(client)
        return result

    async def async_wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = await wrapped(*args, **kwargs)
        show(client)
        return result

    return async_wrapper if asynchronous else wrapper


def _show_given(client: Any) -> None:
    """Among the client's options, what the application gave in place of what is ours."""
    if _GIVEN in vars(client):
        given, selector = vars(client)[_GIVEN]
        driver.clients.show_listeners(client, given, listeners.OurListener)
        driver.selection.show_selector(client, *selector)


def connection_error(runtime: Runtime) -> Wrapper:
    """A topology's ``handle_error``. The async one is called here and awaited by the caller, so
    that nothing can be cancelled in between."""

    def wrapper(
        wrapped: Callable[..., Any], _topology: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            error = driver.interruptions.handled_error(args, kwargs)
            if runtime.switch.on and not isinstance(error, Exception):
                unfinished = closes_a_coroutine(error)
                for report in driver.interruptions.interrupted_commands(error):
                    defer(report) if unfinished else report()
        except Exception:
            logger.exception("internal error in pymongo-resilience after an interruption")
        return wrapped(*args, **kwargs)

    return wrapper
