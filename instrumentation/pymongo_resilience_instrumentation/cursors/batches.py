"""What runs in place of the methods of cursors and change streams; none of it once per document."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pymongo.errors import NetworkTimeout, WaitQueueTimeoutError

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import attach_policy, policy_of_cursor, shorter
from pymongo_resilience_instrumentation import calls, driver, operations
from pymongo_resilience_instrumentation.calls import NO_DEADLINE, Call
from pymongo_resilience_instrumentation.interceptor import (
    CallInterceptor,
    Function,
    Within,
    Wrapper,
)
from pymongo_resilience_instrumentation.operations import WRITES
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts import cursor_timeouts
from pymongo_resilience_instrumentation.timeouts.cursor_timeouts import keep, kept_by
from pymongo_resilience_instrumentation.timeouts.precedence import transaction_of


def batch(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """A client's ``_run_operation``. What a call reads inside is no call of its own."""
    fetch = Batch(runtime, asynchronous).wrapper(runtime.enabled_flag, asynchronous)
    found = calls.found

    def wrapper(original: Function, client: Any, args: Any, kwargs: Any) -> Any:
        call = found()
        if call is not None and call.client is client and call.reads_inside:
            return original(*args, **kwargs)
        return fetch(original, client, args, kwargs)

    return wrapper


class Batch(CallInterceptor):
    """One batch of a cursor: the first, or a getMore."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        super().__init__(runtime)
        self.asynchronous = asynchronous
        self.plug_in(runtime.senders.get(driver.cursors.RUN_OPERATION, ()))

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        client, operation, method = driver.cursors.run_operation_arguments(given, kwargs)
        cursor = getattr(method, "__self__", None)
        name = str(getattr(operation.name, "value", operation.name))
        runtime = self.runtime
        if runtime.nested(client) and not _reads_for_the_application(name):
            return None
        call = Call(client, name, (operation.db, operation.coll))
        if name == "getMore":
            call.batch_of = type(cursor)
        if cursor is not None:
            call.bound = policy_of_cursor(cursor)
        call.session = operation.session
        runtime.begin(call)
        call.server = driver.cursors.pinned_address(operation)
        try:
            if cursor is not None and call.transaction is None:
                _apply(runtime, call, cursor, first=call.batch_of is None)
            if call.timeout is not None and driver.csot.max_time(operation) is not None:
                runtime.deprecated.warn(call.client, maxTimeMS=driver.csot.max_time(operation))
            if runtime.before_batch is not None and cursor is not None:
                runtime.before_batch(call, operation, method)
        except BaseException as error:
            runtime.end(call, error=error)
            raise
        return call

    def failed(
        self, call: Call | None, error: BaseException, given: tuple[Any, ...], kwargs: Any
    ) -> BaseException | None:
        instead = super().failed(call, error, given, kwargs)
        if isinstance(instead, (NetworkTimeout, WaitQueueTimeoutError)):
            _kill_later(given, kwargs)
        return instead


def _reads_for_the_application(name: str) -> bool:
    """Inside of a write, a cursor is what the application writes from: ``insert_many(find())``.

    Only a client's bulk write has a cursor of its own, over its results.
    """
    call = calls.current()
    if call is None or call.operation not in WRITES:
        return False
    return name != "getMore" or call.operation != "bulkWrite"


def _apply(runtime: Runtime, call: Call, cursor: Any, *, first: bool) -> None:
    kept = kept_by(cursor)
    if first and (kept is None or kept.in_use):
        # Again for a cursor that was rewound: its life begins again.
        call.cursor = cursor_timeouts.timeout_of(runtime.timeouts, call, cursor)
        keep(cursor, call.cursor)
        return
    call.cursor = kept
    if kept is None:
        return
    kept.in_use = True
    in_force = kept.for_a_batch()
    if in_force is not None:
        call.timeout, call.deadline = in_force


def _kill_later(given: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A getMore that timed out leaves its cursor open, and pymongo counts it as closed after any
    error of a connection (4.17 to 4.20): have the background task kill it."""
    with shielded("after a timeout of a cursor"):
        client, operation, _ = driver.cursors.run_operation_arguments(given, kwargs)
        address = given[3] if len(given) > 3 else kwargs.get("address")  # noqa: PLR2004
        if operation.cursor_id and operation.conn_mgr is None:
            cursor_address = driver.cursors.cursor_address(operation, address)
            driver.clients.kill_later(client, operation.cursor_id, cursor_address)


def to_list(runtime: Runtime, asynchronous: bool) -> Within:
    """All batches of one ``to_list`` have one timeout, also by iteration."""

    def begin(cursor: Any) -> AbstractContextManager[None]:
        if cursor.cursor_id == 0 or driver.csot.timeout_in_force() is not None:
            return NO_DEADLINE
        transaction = transaction_of(cursor.session or driver.sessions.BOUND[asynchronous].get())
        if transaction is not None:
            # All that holds there; what the driver would put around is a client's timeoutMS.
            return transaction.timeout.resume()
        return _for_all(runtime, cursor)

    return Within(begin)


def _for_all(runtime: Runtime, cursor: Any) -> AbstractContextManager[None]:
    kept = kept_by(cursor)
    if cursor.cursor_id is None:
        coll = cursor.collection
        call = Call(coll.database.client, "find", (coll.database.name, coll.name))
        call.bound = policy_of_cursor(cursor)
        call.timeout, _ = runtime.timeouts.of_call(call)
        kept = cursor_timeouts.timeout_of(runtime.timeouts, call, cursor)
        if kept is not None:
            kept.in_use = False
            keep(cursor, kept)
    in_force = None if kept is None else kept.for_a_batch()
    return NO_DEADLINE if in_force is None else in_force[1]


def close(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """A cursor's or change stream's ``close()`` has the whole time again that its operation had.

    CSOT, "Cursor close() methods refresh timeoutMS". A timeout around it wins, and what a call
    closes by itself is within that call's own time.
    """
    refreshed = Within(_refreshed).wrapper(runtime.enabled_flag, asynchronous)
    found = calls.found

    def wrapper(original: Function, closed: Any, args: Any, kwargs: Any) -> Any:
        call = found()
        if call is not None and not call.ended:
            return original(*args, **kwargs)
        return refreshed(original, closed, args, kwargs)

    return wrapper


def _refreshed(closed: Any) -> AbstractContextManager[None]:
    kept = kept_by(closed)
    if kept is None or not getattr(closed, "cursor_id", True):
        return NO_DEADLINE
    if blocks.current().timeout_ms is not None or driver.csot.timeout_in_force() is not None:
        return NO_DEADLINE
    return driver.csot.Timeout.from_now(kept.to_close).resume()


def next_of_stream(stream: Any) -> AbstractContextManager[None]:
    """A change stream's ``next`` in a block, of ``override`` or of ``pymongo.timeout``: one timeout
    for all that it sends, which the block can only shorten.

    Without one the driver does it, with the timeout that the stream was given.
    """
    around, in_force = blocks.current().timeout_ms, driver.csot.timeout_in_force()
    if around is None and in_force is None:
        return NO_DEADLINE
    own = driver.cursors.timeout_of_each_next(stream)
    seconds = shorter((around or 0) / 1000, own or 0)
    longer = in_force is not None and shorter(seconds, in_force) == in_force
    return NO_DEADLINE if longer else driver.csot.InForce(seconds)


class Resume(CallInterceptor):
    """The aggregate of a change stream: nested in ``watch`` the first time, a call of its own when
    it resumes, under the policy that the stream carries."""

    runtime: Runtime

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Call | None:
        stream = given[0]
        client = driver.cursors.client_of_stream(stream)
        if self.runtime.nested(client):
            return None
        target = operations.namespace_of(driver.cursors.target_of_stream(stream))
        call = Call(client, "aggregate", target)
        call.bound = policy_of_cursor(stream)
        self.runtime.begin(call)
        call.stream = kept_by(stream)
        return call

    def succeeded(self, call: Call, cursor: Any) -> Any:
        with shielded(f"after {call.operation}"):
            attach_policy(call.bound, cursor)
            if call.stream is not None and call.stream.seconds is not None:
                keep(cursor, call.stream)
        return self.runtime.end(call, cursor)
