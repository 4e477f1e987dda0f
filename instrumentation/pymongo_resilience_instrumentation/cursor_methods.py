"""Cursors and change streams, which outlive the operation and the block that created them.

They take their policy and timeout along. This module handles their batches, ``to_list`` and
``close``, and the steps and resumption of change streams. Nothing here runs once per document.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import ConnectionFailure

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.option_types import ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY, shorter
from pymongo_resilience.timeout_source import TimeoutSource
from pymongo_resilience_instrumentation import driver, in_progress, public_operations
from pymongo_resilience_instrumentation.bound_policies import (
    ATTRIBUTE,
    attach_policy,
    policy_of,
    policy_of_cursor,
)
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.interceptor import (
    ContextInterceptor,
    Entered,
    Function,
    Interceptor,
    OperationInterceptor,
    Wrapper,
    outside_of_operations,
)
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, Limits
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import WRITES
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.precedence import keep, kept_by, transaction_of

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient
    from pymongo_resilience_instrumentation.driver.protocols import ChangeStream, Cursor, FindCursor

T = TypeVar("T")


class CursorInit(Interceptor):
    """Wraps a cursor's ``__init__``, to remember the policy around it.

    Wrapping ``find`` and the like would not be enough, because those methods may be bound before
    they are wrapped.
    """

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        # A cursor that pymongo creates inside of an operation is used up there, under the
        # operation's policy.
        return outside_of_operations(super().wrapper(flag, asynchronous))

    def succeeded(self, entered: Entered, result: T) -> T:
        cursor = entered.instance
        attach_policy(blocks.current().over(policy_of(cursor.collection)), cursor)
        return result


class CursorClone(Interceptor):
    """Wraps the methods that copy a cursor: the copy gets the policy of the original."""

    def succeeded(self, entered: Entered, copied: FindCursor) -> FindCursor:
        policy = policy_of_cursor(entered.instance)
        if policy_of_cursor(copied) is not policy:
            # Also if the original has none, because the copy may be made inside a block.
            setattr(copied, ATTRIBUTE, policy)
        return copied


def batch_wrapper(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """Return a wrapper of ``_run_operation``, which fetches batches.

    Batches that pymongo reads for another operation are not operations themselves.
    """
    fetch = CursorBatch(runtime, asynchronous).wrapper(runtime.enabled_flag, asynchronous)
    current_operation = in_progress.current_or_ended

    def wrapper(
        original: Function, client: AnyClient, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        operation = current_operation()
        if operation is not None and operation.call.client is client and operation.reads_inside:
            return original(*args, **kwargs)
        return fetch(original, client, args, kwargs)

    return wrapper


class CursorBatch(OperationInterceptor):
    """One batch of a cursor: the first one, or a getMore."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        super().__init__(runtime)
        self.asynchronous = asynchronous
        self.plug_in(runtime.senders.get(driver.cursors.RUN_OPERATION, ()))

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        client, query, method = driver.cursors.run_operation_arguments(args, kwargs)
        cursor = getattr(method, "__self__", None)
        # A string, or a member of an enum in newer versions of pymongo.
        name = str(getattr(query.name, "value", query.name))
        runtime = self.runtime
        if runtime.nested(client) and not _reads_for_the_application(name):
            return None
        call = Call(
            client,
            name,
            (query.db, query.coll),
            session=query.session,
            block_policy=blocks.current(),
            bound_policy=EMPTY_POLICY if cursor is None else policy_of_cursor(cursor),
            cursor_class=type(cursor) if name == "getMore" else None,
        )
        operation = Operation(call)
        operation.note_server(driver.cursors.pinned_address(query))
        runtime.begin(operation)
        try:
            if cursor is not None and operation.limits.transaction is None:
                _apply(runtime, operation, cursor, first=call.cursor_class is None)
            if runtime.before_batch is not None and cursor is not None:
                runtime.before_batch(operation, query, method)
        except BaseException as error:
            # The operation has begun, so it must end, although pymongo was not called.
            runtime.end(operation, error=error)
            raise
        return operation

    def failed(
        self,
        operation: Operation | None,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> BaseException | None:
        final_error = super().failed(operation, error, args, kwargs)
        if isinstance(error, ConnectionFailure) and self.runtime.owns_retries:
            _kill_later(self.runtime, args, kwargs)
        return final_error


def _reads_for_the_application(name: str) -> bool:
    """Return True if a cursor inside a write belongs to the application, as in
    ``insert_many(find())``.

    Only a client's bulk write has a cursor of its own, over its results.
    """
    operation = in_progress.current()
    if operation is None or operation.name not in WRITES:
        return False
    return name != "getMore" or operation.name != "bulkWrite"


def _apply(runtime: Runtime, operation: Operation, cursor: Cursor, *, first: bool) -> None:
    kept = kept_by(cursor)
    if first and (kept is None or kept.in_use):
        # Also for a cursor that was rewound, because its life begins again.
        precedence.limit_cursor(runtime.timeouts, operation.call, operation.limits, cursor)
        keep(cursor, operation.limits.cursor)
    else:
        precedence.limit_batch(operation.limits, kept)


def _kill_later(runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make the background task kill the cursor of a getMore without an answer.

    pymongo 4.17 to 4.20 considers it closed after any connection error, but it is still open on the
    server.
    """
    client, query, _ = driver.cursors.run_operation_arguments(args, kwargs)
    address: Any = args[3] if len(args) > 3 else kwargs.get("address")  # noqa: PLR2004
    # A cursor with its own connection has ended together with the connection.
    if query.cursor_id and query.conn_mgr is None:
        cursor_address = driver.cursors.cursor_address(query, address)
        runtime.clients.of(client).kill_later(query.cursor_id, cursor_address)


def to_list(runtime: Runtime, asynchronous: bool) -> ContextInterceptor:
    """Return an interceptor that gives all batches of one ``to_list`` a common timeout.

    That also applies to timeouts per batch, unless they come from the configuration.
    """

    def begin(cursor: Cursor) -> AbstractContextManager[None]:
        # An exhausted cursor sends nothing more.
        if cursor.cursor_id == 0 or driver.csot.active_timeout() is not None:
            return NO_DEADLINE
        transaction = transaction_of(cursor.session or driver.sessions.BOUND[asynchronous].get())
        if transaction is not None:
            # In a with_transaction, only its timeout applies. pymongo would apply the client's
            # timeoutMS.
            return transaction.timeout.resume(transaction.source)
        return _for_all(runtime, cursor)

    return ContextInterceptor(begin)


def _for_all(runtime: Runtime, cursor: Cursor) -> AbstractContextManager[None]:
    kept = kept_by(cursor)
    if cursor.cursor_id is None:
        coll = driver.cursors.collection_of_find(cursor)
        call = Call(
            coll.database.client,
            "find",
            (coll.database.name, coll.name),
            block_policy=blocks.current(),
            bound_policy=policy_of_cursor(cursor),
        )
        limits = Limits()
        runtime.timeouts.set_timeout(call, limits)
        kept = precedence.cursor_timeout(runtime.timeouts, call, limits, cursor)
        if kept is not None:
            # The first command of this ``to_list`` uses what was decided here.
            kept.in_use = False
            keep(cursor, kept)
    if kept is None:
        return NO_DEADLINE
    in_block = blocks.current().timeout_ms is not None
    if kept.source.is_configuration and kept.mode == ITERATION and not in_block:
        # Remove the client's timeoutMS as well, because the rule takes precedence over it.
        driver.cursors.set_timeout_of_each_call(cursor, None)
        return NO_DEADLINE
    timeout = kept.for_a_batch()
    if timeout is None:
        return NO_DEADLINE
    return timeout.resume(TimeoutSource.BLOCK if in_block else kept.source)


def close(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """Return a wrapper for ``close()`` of a cursor or change stream, which gets the whole timeout
    again.

    Source: Client Side Operations Timeout, "Cursor close() methods refresh timeoutMS". A timeout
    around it takes precedence. If an operation closes the cursor, as each find_one does, it uses
    the operation's time.
    """
    refreshed = ContextInterceptor(_refreshed).wrapper(runtime.enabled_flag, asynchronous)
    return outside_of_operations(refreshed)


def _refreshed(closed: Cursor | ChangeStream) -> AbstractContextManager[None]:
    kept = kept_by(closed)
    # A cursor that was never opened, or is exhausted, sends no killCursors. A change stream has no
    # such attribute.
    if kept is None or not getattr(closed, "cursor_id", True):
        return NO_DEADLINE
    if blocks.current().timeout_ms is not None or driver.csot.active_timeout() is not None:
        return NO_DEADLINE
    timeout = driver.csot.Timeout.from_now(kept.to_close)
    return timeout.resume(kept.source)


def next_of_stream(runtime: Runtime) -> ContextInterceptor:
    """Return an interceptor that gives ``next`` of a change stream a single timeout inside a block.

    A block of ``override`` or ``pymongo.timeout`` can only shorten the stream's own timeout.
    """

    def begin(stream: ChangeStream) -> AbstractContextManager[None]:
        outer, active = blocks.current().timeout_ms, driver.csot.active_timeout()
        if outer is None and (active is None or not runtime.owns_retries):
            # Without a block, pymongo itself applies the stream's timeout. With
            # ``strategy=driver``, it also applies ``pymongo.timeout``.
            return NO_DEADLINE
        own = driver.cursors.timeout_of_each_next(stream)
        seconds = shorter((outer or 0) / 1000, own or 0)
        # The active timeout may end earlier than both; then nothing must be activated.
        longer = active is not None and shorter(seconds, active) == active
        return NO_DEADLINE if longer else driver.csot.ActiveTimeout(seconds)

    return ContextInterceptor(begin)


class StreamResume(OperationInterceptor):
    """Wraps the aggregate of a change stream.

    It is part of ``watch`` the first time, and an operation of its own when the stream resumes,
    under the policy that the stream carries.
    """

    runtime: Runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Operation | None:
        stream = args[0]
        client = driver.cursors.client_of_stream(stream)
        if self.runtime.nested(client):
            return None
        target = public_operations.namespace_of(driver.cursors.target_of_stream(stream))
        call = Call(
            client,
            "aggregate",
            target,
            block_policy=blocks.current(),
            bound_policy=policy_of_cursor(stream),
        )
        operation = Operation(call)
        self.runtime.begin(operation)
        least = client.options.server_selection_timeout
        precedence.limit_resume(operation.limits, kept_by(stream), least)
        return operation

    def succeeded(self, operation: Operation, cursor: Cursor) -> Cursor:
        try:
            attach_policy(operation.call.bound_policy, cursor)
            kept = operation.limits.stream
            if kept is not None and kept.seconds is not None:
                # The resume has created a new cursor, which continues the stream's timeout.
                keep(cursor, kept)
        finally:
            self.runtime.end(operation, cursor)
        return cursor
