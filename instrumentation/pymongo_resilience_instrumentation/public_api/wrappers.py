"""What runs in place of pymongo's public methods: an operation begins and ends here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.binding import policy_of
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.cursors import creation as cursor_makers
from pymongo_resilience_instrumentation.interception import plain_calls
from pymongo_resilience_instrumentation.operations.changes import CHANGES, DEFINITIONS, WRITES
from pymongo_resilience_instrumentation.transactions import sessions

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Method
    from pymongo_resilience_instrumentation.operations.public import PublicOperation, Target
    from pymongo_resilience_instrumentation.runtime import Runtime

from pymongo_resilience_instrumentation.interception.call_around import call_around

MOST_ARGUMENTS = 100


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
    has_spans = runtime.operation_spans is not None
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
            if has_spans:
                runtime.start_span(call)
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
