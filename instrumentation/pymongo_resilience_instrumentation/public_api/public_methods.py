"""What runs in place of pymongo's public methods: an operation begins and ends here."""

from __future__ import annotations

import inspect
from typing import Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies.policy import Bound, policy_of
from pymongo_resilience_instrumentation import cursor_methods, driver, in_progress
from pymongo_resilience_instrumentation.interceptor import OperationInterceptor, is_async
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import (
    CHANGES,
    DEFINITIONS,
    WRITES,
    PublicOperation,
    Target,
    only_reads,
)
from pymongo_resilience_instrumentation.retries.retry_loop import ReadOnly
from pymongo_resilience_instrumentation.runtime import Runtime


class PublicMethod(OperationInterceptor):
    """A method of the public API: one operation, one operation span, one deadline."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, owner: type, entry: PublicOperation) -> None:
        super().__init__(runtime)
        self.owner = owner
        self.entry = entry
        self.found: Any = vars(owner).get(entry.method)
        """The attribute of the class, perhaps another library's wrapper."""
        self.asynchronous = is_async(self.found)
        code = getattr(inspect.unwrap(self.found), "__code__", None) if self.found else None
        names = code.co_varnames[1 : code.co_argcount] if code else ()
        self._session_at = names.index("session") if "session" in names else None
        """Where among the positional arguments the session is."""
        self._after = cursor_methods.after(runtime, entry.gives)
        if self._after is not None:
            self.succeeded = self._gave
        self.plug_in(runtime.senders.get(entry.method, ()))

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        runtime, entry, instance, args = self.runtime, self.entry, given[0], given[1:]
        client, name = entry.client(instance), entry.name
        if entry.target is None:
            target = driver.clients.names_of_collection(instance)
        else:
            target = entry.target(instance, args, kwargs)
        if (
            in_progress.found() is not None
            and runtime.nested(client)
            and not (name in CHANGES and _is_the_applications(name, target))
        ):
            return None
        operation = Operation(client, name, target, entry.method)
        operation.instance = instance
        if isinstance(instance, Bound):
            operation.bound = policy_of(instance)
        if entry.method == "cursor_command":
            operation.read_only = ReadOnly() if only_reads(args, kwargs) else None
        session, at = kwargs.get("session"), self._session_at
        if session is None and at is not None and len(args) > at:
            session = args[at]
        if session is None:
            session = driver.sessions.BOUND[self.asynchronous].get()
        operation.session = session
        runtime.begin(operation)
        if self._after is not None:
            try:
                cursor_methods.prepare(runtime, entry.gives, operation, args, kwargs)
            except BaseException as error:
                runtime.end(operation, error=error)
                raise
        return operation

    def _gave(self, operation: Operation, made: Any) -> Any:
        """After a method that gives a cursor or a change stream."""
        with shielded(f"after {operation.name}"):
            if self._after is not None:
                self._after(operation, made)
        return self.runtime.end(operation, made)


def _is_the_applications(name: str, target: Target) -> bool:
    """The driver never writes inside of an operation, nor changes other collections inside of one:
    the application does, from a listener or from what it inserts."""
    operation = in_progress.current()
    if operation is None:
        return False
    if {name, operation.name} <= DEFINITIONS:
        return False
    return name in WRITES or operation.target != target
