"""What runs in place of pymongo's public methods: an operation begins and ends here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.binding import policy_of
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.cursors import cursor_creation
from pymongo_resilience_instrumentation.interception.call_interceptor import CallInterceptor
from pymongo_resilience_instrumentation.operations.write_operations import (
    CHANGES,
    DEFINITIONS,
    WRITES,
)
from pymongo_resilience_instrumentation.transactions import call_sessions

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.operations.public_operations import (
        PublicOperation,
        Target,
    )
    from pymongo_resilience_instrumentation.runtime import Runtime

MOST_ARGUMENTS = 100
NEVER_LATE = frozenset({
    "bulk_write", "insert_many",  # its error, which the driver makes later, names the server
    "delete_many", "update_many",  # it may be sent as another write
    "watch",  # what it gives is prepared
})  # fmt: skip


class PublicMethod(CallInterceptor):
    """A method of the public API: one call, one operation span, one deadline."""

    runtime: Runtime

    def __init__(
        self,
        runtime: Runtime,
        owner: type,
        operation: PublicOperation,
        asynchronous: bool,
        session_at: int | None,
    ) -> None:
        """``session_at``: where among its positional arguments its session is."""
        super().__init__(runtime)
        self._owner = owner
        self._operation = operation
        self._asynchronous = asynchronous
        self._session_at = session_at
        self._bound_session = driver.sessions.bound_session_of(asynchronous)
        self._before_session = MOST_ARGUMENTS if session_at is None else 1 + session_at
        self._may_begin_fast = operation.only_reads is None and (
            operation.gives is None or not runtime.rules.any
        )
        named = "Collection" in owner.__name__ and runtime.shows_calls
        self._names = driver.clients.names_of_collection if named else None
        """Of telemetry's: looked up here, it costs a call less."""
        self._after = cursor_creation.after(runtime, operation.gives)
        self.begins_late = (
            runtime.begins_late
            and self._may_begin_fast
            and self.send is None
            and operation.method not in NEVER_LATE
        )

    def no_policy_applies(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        instance = given[0]
        return (
            blocks.innermost() is None
            and type(instance) is self._owner
            and self._bound_session() is None
            and len(given) <= self._before_session
            and kwargs.get("session") is None
            and self.has_no_timeout(self._operation.client(instance))
        )

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        instance, operation = given[0], self._operation
        target = None if self._names is None else self._names(instance)
        call = Call(operation.client(instance), operation.name, target, (operation, given, kwargs))
        if (
            self._may_begin_fast
            and type(instance) is self._owner
            and self._bound_session() is None
            and len(given) <= self._before_session
            and "session" not in kwargs
            and self.begin_fast(call, None)
        ):
            return call
        return self._begin(call, instance, given[1:], kwargs)

    def _begin(
        self, call: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        runtime, name, only_reads = self.runtime, call.operation, self._operation.only_reads
        if runtime.nested(call.client) and not (
            name in CHANGES and _is_the_applications(name, call.target)
        ):
            return None
        call.bound = policy_of(instance)
        if only_reads is not None:
            call.only_reads = only_reads(args, kwargs)
        session = call_sessions.session_of_call(args, kwargs, self._session_at, self._asynchronous)
        runtime.begin(call, session)
        if call.timeout is not None:
            runtime.deprecated.of_method(call, kwargs, getattr(instance, "write_concern", None))
        if self._after is not None:
            try:
                cursor_creation.prepare(runtime, self._operation.gives, call, args, kwargs)
            except BaseException as error:
                runtime.end(call, error)
                raise
        return call


class CursorMaker(PublicMethod):
    """One that gives a cursor or a change stream."""

    def succeeded(self, call: Call, result: Any) -> Any:
        try:
            if self._after is not None:
                self._after(call, result)
        except Exception:
            logger.exception("internal error in pymongo-resilience after %s", call.operation)
        return super().succeeded(call, result)


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
