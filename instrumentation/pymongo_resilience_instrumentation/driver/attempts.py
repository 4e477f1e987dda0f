"""pymongo's retry loop, ``_ClientConnectionRetryable``, and the subclass that replaces it.

In pymongo 4.17 to 4.20, a client looks up the class in its module for each operation. Its ``run``
allocates the txnNumber once; ``_read`` and ``_write`` make one attempt each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pymongo.errors import (
    ClientBulkWriteException,
    NotPrimaryError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.rules.failure import RETRYABLE_WRITE, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation.addresses import Address, address_text

from . import csot
from .clients import classes
from .sessions import ABORT, note_router

if TYPE_CHECKING:
    from pymongo_resilience.breakers import Permit
    from pymongo_resilience_instrumentation.operation import Operation
    from pymongo_resilience_instrumentation.retries.after_failure import Retries
    from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
    from pymongo_resilience_instrumentation.retries.throttled_bulks import HeldBack
    from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits

    from .protocols import Connection, Server

LOOP = "_ClientConnectionRetryable"
KILL_CURSORS, END_SESSIONS = "killCursors", "endSessions"
NO_LIMIT = -1
"""pymongo's value for "no maximum staleness"."""
EXECUTE_BATCH = "_execute_batch"
"""A method of bulk writes that sends one command and returns the reply and what was sent."""


def bulk_classes() -> tuple[type, ...]:
    """Return pymongo's classes for bulk writes of collections and clients."""
    return classes("bulk", "_*Bulk") + classes("client_bulk", "_*ClientBulk")


_PREFERRED = frozenset({PrimaryPreferred().mode, SecondaryPreferred().mode})


class PymongoLoop(Protocol):
    """The private names of pymongo's loop that are used here."""

    _address: Address | None
    _always_retryable: bool
    _attempt_number: int
    _bulk: Any
    _client: Any
    _deprioritized_servers: list[Server] | None
    _func: Callable[..., Any]
    _is_aggregate_write: bool
    _is_read: bool
    _is_run_command: bool
    _last_error: Exception | None
    _operation: object
    _read_pref: Any
    _retryable: bool
    _retrying: bool
    _server: Any
    _server_selector: Any
    _session: Any

    def _read(self) -> Any: ...

    def _write(self) -> Any: ...

    # The attributes that the library's subclass adds.
    attempts: DriverAttempts
    """The attempts of the loop's run."""
    driver_func: Callable[..., Any]
    """The function that pymongo would call with a connection."""
    send: Callable[..., Any]
    """The function that pymongo calls instead."""


class TxnNumberLostError(PyMongoError):
    """A retryable write was not sent, because its server would not treat it as retryable.

    Raised inside of a checkout, where a network error would make pymongo clear its pool.
    """


class AttemptFacts(NamedTuple):
    """What pymongo's loop shows about a failed attempt. Immutable."""

    reached_connection: bool
    """The attempt got a connection. From then on, the command counts as sent."""
    carried_txn_number: bool
    server: str | None
    """``"host:port"``; None if no server was selected."""
    min_rtt: float
    """The server's minimum round-trip time in seconds; 0 if unknown."""


class Txn(Enum):
    """How the next attempt of a write is sent."""

    AS_DECIDED = "as pymongo decides"
    """Every first attempt, and every retry of anything except a retryable write."""
    CHECKED = "as the library decides"
    """A retry of a retryable write: ``TxnNumber.take`` decides whether it carries its number."""


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """How to make the attempt after a failed one."""

    txn: Txn
    avoid: Server | None = None
    """pymongo's object for the server to avoid, if there is another one."""


class DriverAttempts:
    """The attempts of one run of pymongo's retry loop.

    Only modules of ``driver`` use the private names of the loop.

    Belongs to one thread or task; other threads may read it. ``first`` and ``again`` return a
    coroutine in async clients. Attributes that a healthy operation does not need are class
    attributes until they are set, so that creating the object is cheap.
    """

    operation: Operation
    """The operation that the run belongs to. Set when the run begins."""
    client_limits: ClientLimits
    """The client's limits, which all its operations share. Set when the run begins."""
    connection: Connection | None = None
    """The connection of the last attempt, once it has one. From then on, a command may have been
    sent.
    """
    permit: Permit | None = None
    """The breaker's permit, until the outcome of the attempt is reported."""
    hooks: LoopHooks | None = None
    """The hooks of the operation, if this is its first run."""
    retries: Retries | None = None
    """Set from the first failure to the end of the run."""
    may_be_applied = False
    """True if an attempt without a transaction number was sent and may have been applied."""
    pending: Exception | None = None
    """An error that the next attempt fails with before a server is selected."""
    progress: tuple[Any, int] | None = None
    """The position of a bulk write after its last failure."""
    held_back: HeldBack | None = None
    """The throttled statements of a bulk write that pymongo sends next, if the rules allow it."""
    txn = Txn.AS_DECIDED

    def __init__(self, loop: PymongoLoop) -> None:
        self.loop = loop
        self.client = loop._client
        self.session = loop._session
        self._first_retryable = loop._retryable

    server = property(attrgetter("loop._server"))
    """pymongo's object for the selected server; None before."""
    server_selection_timeout = property(attrgetter("client.options.server_selection_timeout"))
    """Seconds."""

    def first(self) -> Any:
        """Make the first attempt, after the one-time steps of pymongo's ``run`` before a write."""
        loop = self.loop
        if loop._is_read:
            return loop._read()
        session = self.session
        if loop._retryable and session is not None and not session.in_transaction:
            # Allocate the transaction number that all attempts of this write use. ``run`` would
            # allocate a new one for each retry, and the server would apply the write again.
            session._start_retryable_write()
            if loop._bulk:
                loop._bulk.started_retryable_write = True
        return loop._write()

    def again(self, plan: RetryPlan) -> Any:
        """Make another attempt according to ``plan``."""
        # Until the new attempt has a connection, it has sent nothing.
        self.connection = None
        self.txn = plan.txn
        if plan.avoid is not None:
            self.deprioritize(plan.avoid)
        return self.loop._read() if self.loop._is_read else self.loop._write()

    def send(self, *args: Any) -> Any:
        """Send the attempt. pymongo calls this with the connection, in place of ``driver_func``."""
        loop = self.loop
        connection = args[2] if loop._is_read else args[1]
        if (session := self.session) is not None and session.in_transaction:
            self._pin_to_router(connection)
        if self.txn is Txn.CHECKED and self.retries is not None:
            args = session, connection, self.retries.txn_number.take(self, connection)
        # pymongo clears its flag if the selected server does not support retryable writes.
        elif loop._retryable is not self._first_retryable and not args[2]:
            self.refuse_lost_number(connection)
        # From here on, the command counts as sent.
        self.connection = connection
        return loop.driver_func(*args)

    def _pin_to_router(self, connection: Connection) -> None:
        """Pin a transaction to its router, if the connection is one to a mongos."""
        session = self.session
        # Ask the connection, not the server's description as pymongo 4.20 does. The description is
        # Unknown for a moment after another operation's network error, and the commit could then go
        # to any router, without the recovery token that identifies the transaction there.
        if not connection.is_mongos:
            return
        if self.command_name() != ABORT:
            # pymongo forgets the router after most errors, but an abort must go there.
            note_router(session, connection)
        if session._transaction.pinned_address is None:
            session._pin(self.loop._server, connection)

    def replace_function(self, function: Callable[..., Any]) -> None:
        """Make pymongo call ``function`` with a connection."""
        self.loop.driver_func = function

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called with a connection."""
        return self.loop.driver_func

    def fail_first(self, error: Exception) -> None:
        """Make the first attempt fail with ``error`` before a server is selected."""
        self.pending = error

    def raise_pending(self) -> None:
        """Raise the error that the attempt should fail with, once."""
        error, self.pending = self.pending, None
        if error is not None:
            raise error

    def streams(self) -> bool:
        """Return True if the attempt only receives further batches of an exhaust cursor.

        Nothing is sent then, so nothing can be retried (pymongo 4.20.1).
        """
        pinned = getattr(self.loop, "_conn_mgr", None)
        return pinned is not None and bool(pinned.more_to_come)

    def is_numbered_write(self) -> bool:
        """Return True if the first attempt was a retryable write with its own transaction number.

        A commit or an abort uses the number of its transaction.
        """
        is_write = not self.loop._is_read and not self.in_transaction()
        return bool(self._first_retryable) and is_write

    def note_completed(self) -> None:
        """Record a command that succeeded in a transaction, as pymongo's ``run`` does."""
        self.session._transaction.has_completed_command = True

    def command_name(self) -> str:
        """Return the name of the command, or "runCommand" if the application chose the command."""
        if self.loop._is_run_command:
            return "runCommand"
        # pymongo stores a str, or an enum whose value is one.
        return str(getattr(self.loop._operation, "value", self.loop._operation))

    def namespace(self) -> tuple[str, str | None]:
        """Return database and collection of a collection's bulk write. For other loops, they are
        unknown.
        """
        collection = getattr(self.loop._bulk, "collection", None)
        return ("", None) if collection is None else (collection.database.name, collection.name)

    def in_transaction(self) -> bool:
        return self.session is not None and bool(self.session.in_transaction)

    def kind(self) -> Kind:
        """Return the kind of the operation for the retry rules."""
        name = self.command_name()
        if name in ("commitTransaction", "abortTransaction"):
            return Kind.TRANSACTION_END
        if name in (KILL_CURSORS, END_SESSIONS):
            return Kind.CLEANUP
        # pymongo's read flag is not enough from here on: ``command()``, aggregates with a write
        # stage, and getMore use its read path as well.
        if self.loop._is_run_command:
            # A getMore moves the cursor on, even if the application declares it idempotent.
            return Kind.GET_MORE if self.loop._operation == "getMore" else Kind.COMMAND
        if not self.loop._is_read:
            return Kind.WRITE
        if name == "getMore":
            return Kind.GET_MORE
        if self.loop._is_aggregate_write:
            return Kind.AGGREGATE_WRITE
        # If pymongo would not retry a read despite retryReads, it is not a plain read.
        if self.loop._retryable or not self.client.options.retry_reads or self.in_transaction():
            return Kind.READ
        return Kind.AGGREGATE_WRITE if name == "aggregate" else Kind.COMMAND

    def retries_enabled(self, what: Kind, *, declared: bool) -> bool:
        """Return retryReads or retryWrites; both of them for ``command()`` and endSessions.

        A declaration replaces retryWrites: servers that do not support retryable writes require
        that it is off.
        """
        options = self.client.options
        writes = options.retry_writes or (declared and what is not Kind.CLEANUP)
        is_command = self.loop._is_run_command or what in (Kind.COMMAND, Kind.CLEANUP)
        if is_command and self.command_name() != KILL_CURSORS:
            return bool(options.retry_reads and writes)
        reads = what in (Kind.READ, Kind.GET_MORE, Kind.CLEANUP)
        return bool(options.retry_reads if reads else writes)

    def prefers_members(self) -> bool:
        """Return True for reads with primaryPreferred or secondaryPreferred. Writes have no
        mode.
        """
        return getattr(self.loop._server_selector, "mode", None) in _PREFERRED

    def carries_txn_number(self) -> bool:
        """Return True if the last attempt was sent as a retryable write.

        pymongo clears its flag if the server does not support them.
        """
        return bool(self.loop._retryable) and not self.loop._is_read and not self.in_transaction()

    def server_address(self) -> str | None:
        """Return ``"host:port"`` of the selected server, or None."""
        return (
            None
            if self.loop._server is None
            else address_text(self.loop._server.description.address)
        )

    def facts(self, error: Exception) -> AttemptFacts:
        """Return the facts of the last attempt, which ended with ``error``."""
        has_connection = self.connection is not None
        # If no server was selected, pymongo's loop still holds the previous attempt's server.
        unselected = not has_connection and isinstance(error, ServerSelectionTimeoutError)
        server = None if unselected else self.server_address()
        return AttemptFacts(has_connection, self.carries_txn_number(), server, csot.min_rtt())

    def supports_txn_number(self, connection: Connection) -> bool:
        """Return True if the selected server accepts a retryable write on this connection.

        As in pymongo, except that the connection decides whether the server is a standalone: the
        server's description may still be Unknown.
        """
        return bool(
            self.session
            and self.loop._server.description.retryable_writes_supported
            and connection.supports_sessions
            and not connection.is_standalone
        )

    def lost_its_txn_number(self, connection: Connection) -> bool:
        """Return True if pymongo would now send a retryable write as an ordinary one.

        That happens if the server became Unknown or a secondary between selection and sending.
        """
        if self.loop._is_read or self.in_transaction() or not connection.supports_sessions:
            return False
        if self.topology_type() != "Single":
            return True
        # A direct connection always goes to the same server, so only Unknown matters there. A
        # standalone server never supports retryable writes, so nothing was lost.
        return (
            not connection.is_standalone
            and self.loop._server.description.server_type_name == "Unknown"
        )

    def refuse_lost_number(self, connection: Connection) -> None:
        """Raise TxnNumberLostError for a write that lost its transaction number on the way.

        pymongo checks the server's description again after the checkout. If the server became
        unknown, it would send a retryable write as an ordinary one.
        """
        if self.lost_its_txn_number(connection):
            self.set_retryable(True)
            raise TxnNumberLostError(
                "the write was not sent, because its server was no longer known to be the primary"
            )

    def set_retryable(self, retryable: bool) -> None:
        """Set whether the current attempt is a retryable write."""
        self.loop._retryable = retryable

    def note_server(self, server: Server) -> None:
        """Record the selected server before pymongo does, because the attempt ends here."""
        self.loop._server = server

    def bulk_progress(self) -> tuple[Any, int] | None:
        """Return the position of a bulk write: its run, and the first operation that is not done
        yet.

        None if this is not a bulk write, or if it has not begun.
        """
        bulk = self.loop._bulk
        run = getattr(bulk, "current_run", bulk)
        return None if run is None else (run, run.idx_offset)

    def is_last_command(self, sent: int) -> bool:
        """Return True if a collection's bulk write has nothing left to send after a command with
        ``sent`` statements.
        """
        bulk = self.loop._bulk
        run = bulk.current_run
        return bulk.next_run is None and run.idx_offset + sent == len(run.ops)

    def append_statements(self, indexes: Sequence[int]) -> None:
        """Make pymongo send statements of the current command again, after all others.

        ``indexes`` are those within the command.
        """
        run = self.loop._bulk.current_run
        positions = [run.idx_offset + index for index in indexes]
        # Add nothing if the server's reply has an index that does not exist.
        for statement in [(run.index(each), run.ops[each]) for each in positions]:
            run.add(*statement)

    def topology_type(self) -> str:
        return str(self.client.topology_description.topology_type_name)

    def needed_release(self, failure: Failure) -> Callable[[], Any] | None:
        """Return a method of pymongo to call after a failed attempt, or None. In async clients, a
        coroutine function.

        The method marks a server as unknown, or unpins a session from its server.
        """
        in_statement = failure.executed and not isinstance(failure.error, WriteConcernError)
        connection = self.connection
        # pymongo ignores a "not primary" error in a statement of a write, so the next attempt would
        # go to the same server. Mark the server as unknown until its next check. An error relayed
        # by a router is not about the router itself.
        if (
            failure.reason is RetryReason.NOT_PRIMARY
            and in_statement
            and connection is not None
            and self.topology_type() != "Sharded"
        ):
            # The attributes that pymongo's topology reads from an error context.
            context = SimpleNamespace(
                error=NotPrimaryError("", {"code": failure.code}),
                max_wire_version=connection.max_wire_version,
                sock_generation=connection.generation,
                completed_handshake=True,
                service_id=connection.service_id,
            )
            topology = self.client._topology
            return partial(topology.handle_error, self.loop._server.description.address, context)
        method: Callable[[], Any] | None = None
        if failure.retryable_overload or RETRYABLE_WRITE in failure.labels:
            # As pymongo's own loop does, unpin the session after a failed write.
            is_write = not self.loop._is_read and self.session is not None
            # In async clients, ``_unpin`` is a coroutine function. The executor awaits it;
            # otherwise it would silently not run.
            method = self.session._unpin if is_write and not self.stays_pinned(failure) else None
        return method

    def stays_pinned(self, failure: Failure) -> bool:
        """Return True if a retry must go to the router on which the transaction began."""
        if not self.in_transaction():
            return False
        # No other router knows the transaction.
        transaction = self.session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            was_not_sent = failure.stage is Stage.NOT_SENT and not transaction.starting()
            # Before the first command has completed, the transaction can still begin elsewhere.
            return bool(transaction.sharded and (transaction.has_completed_command or was_not_sent))
        # A commit or an abort contains a recovery token, so it may go to another router unless it
        # was clearly rejected (Transactions, "When to unpin").
        return (
            transaction.pinned_address is not None
            and failure.retryable_overload
            and failure.stage is Stage.ANSWERED
        )

    def cannot_be_pinned(self) -> bool:
        """Return True if a statement that was not sent can no longer reach the router of its
        transaction.
        """
        if not self.in_transaction() or self.kind() is Kind.TRANSACTION_END:
            return False
        transaction = self.session._transaction
        if not transaction.sharded or transaction.starting():
            return False
        # Either pymongo no longer knows a server with the router's address, or the router is behind
        # a load balancer and the connection to it is lost.
        return self.loop._server is None or self.topology_type() == "LoadBalanced"

    def retry_once_at_most(self) -> None:
        """Limit a loop that runs without the library to one retry.

        Such a loop runs inside another operation whose deadline applies to it, for example in a
        listener. pymongo would retry it without a pause until that deadline.
        """
        if hasattr(self.loop, "_max_retries"):
            self.loop._max_retries = 1

    def reset_after(self, failure: Failure) -> None:
        """Set the loop's state as pymongo's own code does before a retry after ``failure``."""
        # Otherwise pymongo may raise the last error again inside of the checkout, because it does
        # not consider the attempt retryable. That would clear the pool for all operations.
        self.loop._always_retryable = True
        # pymongo itself logs the retry once the next attempt has a connection. Like pymongo, do not
        # log retries of bulk writes.
        self.loop._attempt_number += 1
        self.loop._retrying = not self.loop._bulk
        if self.progress is not None:
            # Only for a bulk write that has begun. pymongo 4.20 also sets this before the first run
            # (after a failed handshake), then never continues with the next run: the rest of a
            # mixed bulk write is lost, and it reports success.
            self.loop._bulk.retrying = True
            _forget_in_result(failure.error)
        if failure.reports_overload and not failure.executed and self.in_transaction():
            self._rejected_in_transaction(failure)

    def pin_again(self) -> None:
        """Pin the transaction to its router again.

        pymongo unpins it after any error with the label TransientTransactionError, which it adds
        whenever it cannot connect.
        """
        transaction = self.session._transaction
        if transaction.pinned_address is None:
            transaction.pinned_address = self.loop._server.description.address

    def _rejected_in_transaction(self, failure: Failure) -> None:
        """Restore the state of a transaction after a rejected command, which was not run."""
        transaction = self.session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            # If the transaction has not begun, it must begin again. Aborts are excluded, because
            # pymongo 4.20 would send one with ``startTransaction``.
            if not transaction.has_completed_command:
                transaction.set_starting()
        elif failure.stage is Stage.ANSWERED:
            # A rejected commit does not count as an attempt. Earlier commits still count (pymongo
            # forgets them): if the reply to one was lost, the next commit needs a majority write
            # concern.
            transaction.attempt -= 1

    def deprioritize(self, server: Server) -> None:
        """Make the next selection avoid a server, if there is another one."""
        if getattr(self.loop._server_selector, "max_staleness", NO_LIMIT) != NO_LIMIT:
            # If servers are avoided, pymongo 4.20 computes staleness from the remaining ones only:
            # relative to the primary or, if the primary is avoided, to the newest member. Then it
            # might allow data that is too old.
            has_primary = self.topology_type() == "ReplicaSetWithPrimary"
            if not has_primary or server.description.is_writable:
                return
        self.loop._deprioritized_servers = [*(self.loop._deprioritized_servers or ()), server]


RUN = "run"
_RUN_IN_SPAN = "_run"


def run_name(drivers: type) -> str:
    """Return the name of the method that makes the attempts.

    A pymongo that records spans itself (the branch of PYTHON-5947) makes the attempts in a second
    method, which ``run`` calls after opening the span.
    """
    return _RUN_IN_SPAN if hasattr(drivers, _RUN_IN_SPAN) else RUN


def subclass(base: type, replaced: dict[str, Callable[..., Any]]) -> type:
    """Return a subclass of pymongo's loop whose attempts go through ``send``.

    Args:
        base: pymongo's class, or one that another library derived from it.
        replaced: Methods that replace pymongo's, by name.
    """
    # Slots for the attributes that every operation sets, as in pymongo's own class from 4.18 on.
    slots = {"__slots__": ("attempts", "driver_func", "send"), "__module__": base.__module__}
    with_slots: Any = type(LOOP, (base,), slots)
    func = property(attrgetter("send"), with_slots.driver_func.__set__)
    body = {"__module__": base.__module__, "_func": func, **replaced}
    return type(LOOP, (with_slots,), body)


def pymongo_alone(loop: PymongoLoop, base: type, error: Exception | None = None) -> PymongoLoop:
    """Return pymongo's own loop, of the class ``base``, to run in place of ``loop``.

    If ``error`` is given, the loop continues as if its own attempt had just raised it, with the
    transaction number that was already allocated. Otherwise nothing was sent yet.
    """
    cls: Any = type(LOOP, (base,), {"__module__": base.__module__})
    # Not the constructor, which would start the operation from scratch.
    alone: PymongoLoop = cls.__new__(cls)
    slots = {name for each in base.__mro__ for name in getattr(each, "__slots__", ())}
    # Copy the state of the loop, in slots and in the instance dictionary.
    for name in (slots | vars(loop).keys()) - {"_func"}:
        if hasattr(loop, name):
            setattr(alone, name, getattr(loop, name))
    alone._func = loop.driver_func
    if error is None:
        return alone
    attempt = "_read" if loop._is_read else "_write"
    # pymongo allocates a new transaction number before the first attempt of a retryable write.
    # Prevent that by clearing the flag until the attempt is made.
    retryable, alone._retryable = alone._retryable, False
    alone._last_error, alone._retrying, alone._attempt_number = error, False, 0

    # Stands in for the first attempt, once. Then pymongo's own method is visible again.
    def raise_error() -> Any:
        del vars(alone)[attempt]
        alone._retryable = retryable
        raise error

    vars(alone)[attempt] = raise_error
    return alone


def _forget_in_result(error: Exception) -> None:
    """Remove the error of the failed attempt from the result of a client bulk write."""
    if not isinstance(error, ClientBulkWriteException):
        return
    result: Any = error.details
    # The error may still be raised, so it keeps a copy of its details.
    error._OperationFailure__details = {  # type: ignore[attr-defined]  # a private name
        name: copy.copy(value) if isinstance(value, (dict, list)) else value
        for name, value in result.items()
    }
    # pymongo 4.17 to 4.20 store the error here, unless the write had a transaction number and
    # pymongo's own loop would retry it. They raise it at the end, even if a retry has succeeded.
    result["error"] = None
