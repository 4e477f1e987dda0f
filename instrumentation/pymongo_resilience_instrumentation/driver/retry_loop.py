"""pymongo's retry loop, ``_ClientConnectionRetryable``, and the subclass that takes its place.

Measured on 4.17 to 4.20: a client looks the class up in its module for each operation. Its ``run``
allocates the txnNumber once, its ``_read`` and ``_write`` are one attempt each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from pymongo.errors import ClientBulkWriteException, NotPrimaryError, WriteConcernError
from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.rules.failure import RETRYABLE_WRITE, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation.addresses import address_text

from .clients import classes

LOOP = "_ClientConnectionRetryable"
KILL_CURSORS, END_SESSIONS = "killCursors", "endSessions"
NO_LIMIT = -1
"""What pymongo has for no maximum staleness."""
EXECUTE_BATCH = "_execute_batch"
"""A bulk's method that sends one command, and returns its reply and what was sent."""


def bulk_classes() -> Iterator[tuple[type, bool]]:
    """The driver's bulks, of collections and clients, each with whether it is async."""
    for module, name in (("bulk", "_*Bulk"), ("client_bulk", "_*ClientBulk")):
        yield from zip(classes(module, name), (False, True), strict=True)


class DriverLoop:
    """What a subclass of the driver's loop has. ``first_write`` and ``again`` return a coroutine in
    async clients."""

    driver_func: Callable[..., Any]
    """What the driver calls with a connection."""
    was_retryable: bool | None
    """Whether the first attempt is a retryable write, or a read that may be repeated; None where
    all further attempts pass ``checked``."""
    connection: Any
    """The last attempt's, once it has one: a command may have been sent."""
    _bulk: Any
    _client: Any
    _is_read: bool
    _last_error: Exception | None
    _read: Callable[[], Any]
    _retryable: bool
    _server: Any
    _session: Any
    _write: Callable[[], Any]

    def first_write(self) -> Any:
        """The first attempt of a write, with what the driver's ``run`` does before it, once."""
        session = self._session
        if self._retryable and session is not None and not session.in_transaction:
            session._start_retryable_write()
            if self._bulk:
                self._bulk.started_retryable_write = True
        return self._write()

    def send(self, *args: Any) -> Any:
        """The driver calls it with the attempt's connection, in place of ``driver_func``."""
        if self._retryable is not self.was_retryable:
            return self.checked(*args)
        self.connection = args[2] if self._is_read else args[1]
        return self.driver_func(*args)

    def again(self) -> Any:
        self.connection = None
        return self._read() if self._is_read else self._write()

    def check_repeated(self) -> None:
        """After the first failure: further attempts of a write that is to have a transaction number
        pass ``checked``. The end of a transaction has the transaction's."""
        if self.was_retryable and not self._is_read and not in_transaction(self):
            self.was_retryable = None

    def note_completed(self) -> None:
        """After an attempt that succeeded in a transaction, as the driver's ``run`` does it."""
        self._session._transaction.has_completed_command = True

    def leave_to_driver(self, error: Exception | None = None) -> None:
        """Its own ``run`` is to do it all; with an ``error`` as if its own attempt had just raised
        that. The transaction number is the one that was allocated."""
        self.was_retryable = self._retryable
        if error is None:
            return

        def raise_it() -> Any:
            del vars(self)[attempt]
            self._retryable = bool(self.was_retryable)
            raise error

        attempt = "_read" if self._is_read else "_write"
        self._last_error, self._retryable = error, False
        vars(self)[attempt] = raise_it

    def checked(self, *args: Any) -> Any:
        """In place of what the driver calls with a connection, where a write may lack its
        transaction number."""
        raise NotImplementedError


RUN = "run"
_RUN_IN_SPAN = "_run"


def run_name(drivers: type) -> str:
    """The method that makes the attempts. A driver that records spans itself has one inside of
    ``run``, which its span is around (the branch of PYTHON-5947)."""
    return _RUN_IN_SPAN if hasattr(drivers, _RUN_IN_SPAN) else RUN


def subclass(
    base: type, methods: type[DriverLoop], slots: tuple[str, ...], more: dict[str, Any]
) -> type:
    """A subclass of the driver's loop, whose attempts pass ``send``.

    ``slots``: what every operation sets.
    """
    names = ("was_retryable", "connection", "driver_func", *slots)
    with_slots: Any = type(LOOP, (base,), {"__slots__": names, "__module__": base.__module__})
    func = property(attrgetter("send"), with_slots.driver_func.__set__)
    # Another library's may have been derived from one of ours, which is switched off.
    bases = (with_slots,) if issubclass(base, methods) else (methods, with_slots)
    return type(LOOP, bases, {"__module__": base.__module__, "_func": func, **more})


client = attrgetter("_client")
server = attrgetter("_server")
"""The one that is selected; None before."""
session = attrgetter("_session")
is_retryable = attrgetter("_retryable")
"""Whether the attempt to be made is a retryable write, or a read that may be repeated."""


def operation_name(loop: Any) -> str:
    """The command's name, where it is not the application's word; the driver keeps a str or an enum
    that is one."""
    if loop._is_run_command:
        return "runCommand"
    return str(getattr(loop._operation, "value", loop._operation))


def namespace(loop: Any) -> tuple[str, str | None]:
    """Database and collection of a collection's bulk write; of anything else nothing is known."""
    collection = getattr(loop._bulk, "collection", None)
    return ("", None) if collection is None else (collection.database.name, collection.name)


def in_transaction(loop: Any) -> bool:
    return loop._session is not None and bool(loop._session.in_transaction)


def kind(loop: Any) -> Kind:
    """What the operation is to the retry rules.

    The driver's read flag alone proves nothing: command runners, aggregates with a write stage
    and getMore use its read path too, and other attributes distinguish them.
    """
    name = operation_name(loop)
    if name in ("commitTransaction", "abortTransaction"):
        return Kind.TRANSACTION_END
    if name in (KILL_CURSORS, END_SESSIONS):
        return Kind.CLEANUP
    if loop._is_run_command:
        return Kind.COMMAND
    if not loop._is_read:
        return Kind.WRITE
    if name == "getMore":
        return Kind.GET_MORE
    if loop._is_aggregate_write:
        return Kind.AGGREGATE_WRITE
    if loop._retryable or not loop._client.options.retry_reads or in_transaction(loop):
        return Kind.READ
    return Kind.AGGREGATE_WRITE if name == "aggregate" else Kind.COMMAND


def retries_enabled(loop: Any, what: Kind) -> bool:
    """retryReads, retryWrites, or both for a command runner and endSessions."""
    options = loop._client.options
    if what in (Kind.COMMAND, Kind.CLEANUP) and operation_name(loop) != KILL_CURSORS:
        return bool(options.retry_reads and options.retry_writes)
    reads = what in (Kind.READ, Kind.GET_MORE, Kind.CLEANUP)
    return bool(options.retry_reads if reads else options.retry_writes)


_PREFERRED = frozenset({PrimaryPreferred().mode, SecondaryPreferred().mode})


def prefers_members(loop: Any) -> bool:
    """Whether it reads with primaryPreferred or secondaryPreferred. A write has no mode."""
    return getattr(loop._server_selector, "mode", None) in _PREFERRED


server_selection_timeout = attrgetter("_client.options.server_selection_timeout")
"""Seconds."""


def carries_txn_number(loop: Any) -> bool:
    """Whether the attempt just made was a retryable write: the loop takes that back on a server
    that does not support it."""
    return bool(loop._retryable) and not loop._is_read and not in_transaction(loop)


def server_address(loop: Any) -> str | None:
    """``"host:port"`` of the selected server, if one was selected."""
    return None if loop._server is None else address_text(loop._server.description.address)


def supports_txn_number(loop: Any, connection: Any) -> bool:
    """Whether the selected server takes a retryable write on this connection.

    As the driver decides it, but for a connection to a standalone, which the server's description
    may not show yet.
    """
    return bool(
        loop._session
        and loop._server.description.retryable_writes_supported
        and connection.supports_sessions
        and not connection.is_standalone
    )


def lost_its_txn_number(loop: Any, connection: Any) -> bool:
    """The server turned Unknown, or secondary, between selection and sending: the driver would
    now send a retryable write as one that is not.

    A standalone server knows no retryable writes at all; and a direct connection is to that one
    server, secondary or not.
    """
    if loop._is_read or in_transaction(loop) or not connection.supports_sessions:
        return False
    if topology_type(loop) != "Single":
        return True
    return not connection.is_standalone and loop._server.description.server_type_name == "Unknown"


def set_retryable(loop: Any, retryable: bool) -> None:
    """Whether the attempt to be made is a retryable write."""
    loop._retryable = retryable


def bulk_progress(loop: Any) -> tuple[Any, int] | None:
    """Where a bulk stands: its run, and the first operation of it that is still to be done.

    None for what is no bulk, and for a bulk that has not begun.
    """
    bulk = loop._bulk
    run = getattr(bulk, "current_run", bulk)
    return None if run is None else (run, run.idx_offset)


def topology_type(loop: Any) -> str:
    return str(loop._client.topology_description.topology_type_name)


class _ErrorContext(NamedTuple):
    """What the driver's topology reads of an error."""

    error: Exception
    max_wire_version: int
    sock_generation: int
    completed_handshake: bool
    service_id: Any


def needed_release(loop: Any, failure: Failure) -> Callable[[], Any] | None:
    """The driver's own method to call after a failed attempt, a coroutine function in async
    clients; None where there is nothing to do.

    The topology's, to take a server for unknown until it is checked, where one of a write's
    statements says that it is no primary: there the driver ignores it, and the next attempt would
    go to the same server. Not of what a router relays, which is not the router's state. Or the
    session's, to leave its server after a failed write, as in the driver's loop.
    """
    in_statement = failure.executed and not isinstance(failure.error, WriteConcernError)
    if (
        failure.reason is RetryReason.NOT_PRIMARY
        and in_statement
        and topology_type(loop) != "Sharded"
    ):
        connection, error = loop.connection, NotPrimaryError("", {"code": failure.code})
        context = _ErrorContext(
            error, connection.max_wire_version, connection.generation, True, connection.service_id
        )
        topology = loop._client._topology
        return partial(topology.handle_error, loop._server.description.address, context)
    method: Callable[[], Any] | None = None
    if failure.retryable_overload or RETRYABLE_WRITE in failure.labels:
        is_write = not loop._is_read and loop._session is not None
        method = loop._session._unpin if is_write and not stays_pinned(loop, failure) else None
    return method


def stays_pinned(loop: Any, failure: Failure) -> bool:
    """Whether a retry must go to the router that the transaction was begun through.

    No other one knows it. An end that was not plainly rejected may go to another: it takes a
    recovery token along (Transactions, "When to unpin").
    """
    if not in_transaction(loop):
        return False
    transaction = loop._session._transaction
    if kind(loop) is not Kind.TRANSACTION_END:
        return bool(transaction.sharded and transaction.has_completed_command)
    return (
        transaction.pinned_address is not None
        and failure.retryable_overload
        and failure.stage is Stage.ANSWERED
    )


def pin_again(loop: Any) -> None:
    """The driver unpins for any error with the label TransientTransactionError, which it gives to
    each connection that cannot be made."""
    transaction = loop._session._transaction
    if transaction.pinned_address is None:
        transaction.pinned_address = loop._server.description.address


def retry_once_at_most(loop: Any) -> None:
    """Limit a loop that pymongo runs by itself, under a deadline of another operation's: it would
    repeat without a pause until that is over."""
    if hasattr(loop, "_max_retries"):
        loop._max_retries = 1


def prepare_retry(loop: Any, failure: Failure) -> None:
    """Bring the loop's state to what its own code has before it repeats an attempt."""
    # Without it, the loop raises the last error again where it does not count the attempt as
    # retryable itself, inside of the checkout: which clears the pool, for everybody.
    loop._always_retryable = True
    if loop.progress is not None:
        # pymongo 4.20 marks a bulk as retrying that has not begun its first run, then never asks
        # for the next run: the rest of a mixed bulk would be lost.
        loop._bulk.retrying = True
        _forget_in_result(failure.error)
    if failure.overloaded and not failure.executed and in_transaction(loop):
        _rejected_in_transaction(loop, failure)


def _rejected_in_transaction(loop: Any, failure: Failure) -> None:
    """Nothing was executed: the transaction has still to begin, or its end to be tried.

    The driver's own loop forgets all attempts to commit, those whose reply was lost as well, which
    must be followed by one with a majority; and it sends an end that would begin a transaction.
    """
    transaction = loop._session._transaction
    if kind(loop) is not Kind.TRANSACTION_END:
        if not transaction.has_completed_command:
            transaction.set_starting()
    elif failure.stage is Stage.ANSWERED:
        transaction.attempt -= 1


def _forget_in_result(error: Exception) -> None:
    """Take the error of the failed attempt out of the result of a client's bulk write.

    pymongo 4.17 to 4.20 put it there unless the write carried a txnNumber and the error is one of
    those that their own loop retries, and raise it at the end, although a retry succeeded.
    """
    if not isinstance(error, ClientBulkWriteException):
        return
    result: Any = error.details
    # The error itself may still be raised: it keeps what it says.
    error._OperationFailure__details = {  # type: ignore[attr-defined]  # a private name
        name: copy.copy(value) if isinstance(value, (dict, list)) else value
        for name, value in result.items()
    }
    result["error"] = None


def deprioritize(loop: Any, server: Any) -> None:
    """The loop's next selection avoids the server, where there is another.

    Not where that could read what is too old: pymongo 4.20 measures a maximum staleness against
    the primary, or else the newest member, of those that it does not avoid.
    """
    if server is None:
        return
    if getattr(loop._server_selector, "max_staleness", NO_LIMIT) != NO_LIMIT:
        has_primary = topology_type(loop) == "ReplicaSetWithPrimary"
        if not has_primary or server.description.is_writable:
            return
    loop._deprioritized_servers = [*(loop._deprioritized_servers or ()), server]
