"""Wraps pymongo's public methods, where operations begin and end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.option_types import ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.bound_policies import Bound, attach_policy, policy_of
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.interceptor import (
    OperationInterceptor,
    is_async,
    named_features,
)
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import (
    CHANGES,
    DEFINITIONS,
    WRITES,
    PublicOperation,
    Target,
    only_reads,
)
from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts import precedence

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import ChangeStream, Cursor

WATCH = ("pipeline", "full_document", "resume_after", "max_await_time_ms")
"""The first parameters of every ``watch``."""


class PublicMethod(OperationInterceptor):
    """Wraps a method of the public API: one operation, one span, one deadline."""

    runtime: Runtime
    prepare: Callable[[Operation, tuple[Any, ...], dict[str, Any]], None] | None = None
    """Called when the operation has begun. Raises ConfigurationError for invalid arguments."""

    def __init__(self, runtime: Runtime, owner: type, entry: PublicOperation) -> None:
        super().__init__(runtime)
        self.owner = owner
        self.entry = entry
        self.found: Any = vars(owner).get(entry.method)
        """The attribute of the class, possibly another library's wrapper."""
        self.asynchronous = is_async(self.found)
        code = getattr(inspect.unwrap(self.found), "__code__", None) if self.found else None
        names = code.co_varnames[1 : code.co_argcount] if code else ()
        self._session_at = names.index("session") if "session" in names else None
        """The position of the session among the positional arguments."""
        self._bound_session = driver.sessions.BOUND[self.asynchronous]
        self._without_session = len(names) if self._session_at is None else self._session_at
        """How many positional arguments none of which is the session."""
        self._may_be_common = (
            entry.target is None and self.prepare is None and runtime.timeouts.are_common
        )
        self.plug_in(runtime.senders.get(entry.method, ()))

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        instance: Any = args[0]
        kind = type(instance)
        if (
            self._may_be_common
            and in_progress.current_or_ended() is None
            and blocks.innermost() is None
            and self._bound_session.get() is None
            and "session" not in kwargs
            # The instance is one more argument.
            and len(args) <= self._without_session + 1
            # An instance of a subclass may carry a policy; see ``Bound``.
            and kind is self.owner
        ):
            # Most calls are like this, so nothing else is looked up for them.
            entry, runtime = self.entry, self.runtime
            names = driver.clients.names_of_collection
            target = names(instance) if runtime.telemetry.records else None
            return runtime.begin_common(
                Call(instance.database.client, entry.name, target, entry.method, instance)
            )
        return self._enter_any(instance, args[1:], kwargs)

    def _enter_any(
        self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operation | None:
        """Begin an operation that may have a session or a policy, or be part of another one."""
        runtime, entry = self.runtime, self.entry
        client, name = entry.client(instance), entry.name
        if entry.target is None:
            target = driver.clients.names_of_collection(instance)
        else:
            target = entry.target(instance, args, kwargs)
        if (
            in_progress.current_or_ended() is not None
            and runtime.nested(client)
            and not (name in CHANGES and _is_called_by_application(name, target))
        ):
            return None
        # The session may be passed by position or keyword, or be bound with ``session.bind()``.
        session, at = kwargs.get("session"), self._session_at
        if session is None and at is not None and len(args) > at:
            session = args[at]
        if session is None:
            session = self._bound_session.get()
        call = Call(
            client,
            name,
            target,
            entry.method,
            instance,
            session,
            EMPTY_POLICY if blocks.innermost() is None else blocks.current(),
            policy_of(instance) if isinstance(instance, Bound) else EMPTY_POLICY,
        )
        reads = entry.method == "cursor_command" and only_reads(args, kwargs)
        operation = Operation(call, hooks=LoopHooks() if reads else None)
        runtime.begin(operation)
        if self.prepare is not None:
            try:
                self.prepare(operation, args, kwargs)
            except BaseException as error:
                # The operation has begun, so it must end, although pymongo was not called.
                runtime.end(operation, error=error)
                raise
        return operation

    def requested_features(self, args: tuple[Any, ...], entered: Operation | None) -> str:
        instance = args[0] if args else None
        if entered is not None:
            return named_features(entered.policy(self.runtime.rules))
        # A nested call is part of an operation, whose own interceptor has checked the features.
        if in_progress.current() is not None or not isinstance(instance, self.owner):
            return ""
        bound = policy_of(instance) if isinstance(instance, Bound) else EMPTY_POLICY
        policy = blocks.current().over(bound)
        try:
            target = self.entry.target
            names = driver.clients.names_of_collection(instance) if target is None else ("", None)
            policy = policy.over(self.runtime.rules.policy_of(*names))
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience while looking for a rule")
        return named_features(policy)


class CursorMethod(PublicMethod):
    """Wraps a method that returns a cursor, which takes its policy and timeout along."""

    def prepare(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        writes = precedence.write_stage(args, kwargs)
        timeouts, call, limits = self.runtime.timeouts, operation.call, operation.limits
        precedence.limit_cursor(timeouts, call, limits, writes=writes)

    def succeeded(self, operation: Operation, cursor: Cursor) -> Cursor:
        try:
            outer, bound = blocks.current(), operation.call.bound_policy
            kept = operation.limits.cursor
            if not (bound is EMPTY_POLICY is outer and kept is None):
                attach_policy(outer.over(bound), cursor)
                precedence.keep(cursor, kept)
        finally:
            self.runtime.end(operation, cursor)
        return cursor


class WatchMethod(PublicMethod):
    """Wraps a method that returns a change stream.

    Its timeout always applies to each batch, because ``watch`` has no timeoutMode (Client Side
    Operations Timeout, "Change Streams").
    """

    def prepare(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = dict(zip(WATCH, args, strict=False), **kwargs)
        precedence.check_max_await(operation.limits, arguments.get("max_await_time_ms"))

    def succeeded(self, operation: Operation, stream: ChangeStream) -> ChangeStream:
        try:
            inner = driver.cursors.cursor_of_stream(stream)
            for each in (stream, inner):
                attach_policy(blocks.current().over(operation.call.bound_policy), each)
            limits = operation.limits
            seconds, source = limits.own_timeout, limits.own_source
            configured = source.is_configuration
            if self.runtime.owns_retries or seconds is not None:
                # A timeout from the configuration does not limit the wait for new changes.
                driver.cursors.set_timeout_of_each_call(stream, None if configured else seconds)
            timeout, _ = limits.to_keep()
            if timeout is not None:
                # A timeout from the configuration applies to each command, one that the application
                # set to each ``next``.
                each_batch = seconds if configured else None
                kept = precedence.CursorTimeout(
                    each_batch,
                    ITERATION,
                    driver.csot.now(),
                    timeout,
                    precedence.wait_for_news(inner),
                    source=source,
                )
                precedence.keep(stream, kept)
                if configured:
                    precedence.keep(inner, kept)
        finally:
            self.runtime.end(operation, stream)
        return stream


def public_method(runtime: Runtime, owner: type, entry: PublicOperation) -> PublicMethod:
    kinds = {"cursor": CursorMethod, "change stream": WatchMethod}
    gives = entry.gives if runtime.timeouts.csot_available else None
    return kinds.get(gives or "", PublicMethod)(runtime, owner, entry)


def _is_called_by_application(name: str, target: Target) -> bool:
    """Return True if an operation inside another one was called by the application."""
    operation = in_progress.current()
    if operation is None:
        return False
    # pymongo implements some definitions by others: ``create_index`` calls ``create_indexes``.
    if {name, operation.name} <= DEFINITIONS:
        return False
    # pymongo itself never writes inside an operation, nor uses other collections. The application
    # does, for example from a listener or from the iterable that it inserts.
    return name in WRITES or operation.call.target != target
