"""What runs in place of pymongo's public methods: an operation begins and ends here."""

from __future__ import annotations

import inspect
from typing import Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies.policy import Bound, policy_of
from pymongo_resilience_instrumentation import calls, cursor_methods, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.interceptor import CallInterceptor, is_async
from pymongo_resilience_instrumentation.operations import (
    CHANGES,
    DEFINITIONS,
    WRITES,
    PublicOperation,
    Target,
    only_reads,
)
from pymongo_resilience_instrumentation.runtime import Runtime


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
        code = getattr(inspect.unwrap(self.found), "__code__", None) if self.found else None
        names = code.co_varnames[1 : code.co_argcount] if code else ()
        self._session_at = names.index("session") if "session" in names else None
        """Where among the positional arguments the session is."""
        self._after = cursor_methods.after(runtime, operation.gives)
        if self._after is not None:
            self.succeeded = self._gave
        self.plug_in(runtime.senders.get(operation.method, ()))

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        runtime, operation, instance, args = self.runtime, self.operation, given[0], given[1:]
        client, name = operation.client(instance), operation.name
        if operation.target is None:
            target = driver.clients.names_of_collection(instance)
        else:
            target = operation.target(instance, args, kwargs)
        if (
            calls.found() is not None
            and runtime.nested(client)
            and not (name in CHANGES and _is_the_applications(name, target))
        ):
            return None
        call = Call(client, name, target, operation.method)
        call.instance = instance
        if isinstance(instance, Bound):
            call.bound = policy_of(instance)
        if operation.method == "cursor_command":
            call.only_reads = only_reads(args, kwargs)
        session, at = kwargs.get("session"), self._session_at
        if session is None and at is not None and len(args) > at:
            session = args[at]
        if session is None:
            session = driver.sessions.BOUND[self.asynchronous].get()
        call.session = session
        runtime.begin(call)
        if self._after is not None:
            try:
                cursor_methods.prepare(runtime, operation.gives, call, args, kwargs)
            except BaseException as error:
                runtime.end(call, error=error)
                raise
        return call

    def _gave(self, call: Call, made: Any) -> Any:
        """After a method that gives a cursor or a change stream."""
        with shielded(f"after {call.operation}"):
            if self._after is not None:
                self._after(call, made)
        return self.runtime.end(call, made)


def _is_the_applications(operation: str, target: Target) -> bool:
    """The driver never writes inside of a call, nor changes other collections inside of one: the
    application does, from a listener or from what it inserts."""
    call = calls.current()
    if call is None:
        return False
    if {operation, call.operation} <= DEFINITIONS:
        return False
    return operation in WRITES or call.target != target
