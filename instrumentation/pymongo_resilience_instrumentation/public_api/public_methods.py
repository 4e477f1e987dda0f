"""What runs in place of pymongo's public methods: an operation begins and ends here."""

from __future__ import annotations

from typing import Any

from pymongo_resilience import internal_errors
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.policies.policy import Bound, policy_of
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.cursors import cursor_creation
from pymongo_resilience_instrumentation.interception.interceptor import CallInterceptor, is_async
from pymongo_resilience_instrumentation.operations import (
    CHANGES,
    DEFINITIONS,
    WRITES,
    PublicOperation,
    Target,
)
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.transactions import session_methods


class PublicMethod(CallInterceptor):
    """A method of the public API: one call, one operation span, one deadline."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, owner: type, operation: PublicOperation) -> None:
        super().__init__(runtime)
        self.owner = owner
        self.operation = operation
        self.found: Any = vars(owner).get(operation.method)
        """The attribute of the class, perhaps another library's wrapper."""
        self.asynchronous = is_async(self.found)
        self.session_at = session_methods.position(self.found)
        self._after = cursor_creation.after(runtime, operation.gives)
        self.plug_in(runtime.senders.get(operation.method, ()))

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        runtime, operation, instance, args = self.runtime, self.operation, given[0], given[1:]
        call = Call(operation.client(instance), operation.name, None, (operation, given, kwargs))
        nested = calls.found() is not None and runtime.nested(call.client)
        if nested and not (
            operation.name in CHANGES and _is_the_applications(operation.name, call.target)
        ):
            return None
        if isinstance(instance, Bound):
            call.bound = policy_of(instance)
        if operation.only_reads is not None:
            call.only_reads = operation.only_reads(args, kwargs)
        session = session_methods.session_of_call(args, kwargs, self.session_at, self.asynchronous)
        runtime.begin(call, session)
        if kwargs and call.timeout is not None:
            runtime.deprecated.of_method(call, kwargs)
        if self._after is not None:
            try:
                cursor_creation.prepare(runtime, operation.gives, call, args, kwargs)
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
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience after %s", call.operation)
        return super().succeeded(call, result)


def _is_the_applications(operation: str, target: Target) -> bool:
    """The driver never writes inside of a call, nor changes other collections inside of one: the
    application does, from a listener or from what it inserts."""
    call = calls.current()
    if call is None:
        return False
    if {operation, call.operation} <= DEFINITIONS:
        return False
    return operation in WRITES or call.target != target
