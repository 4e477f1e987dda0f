"""pymongo's retry loop, ``_ClientConnectionRetryable``, and the subclass that takes its place.

Measured on 4.17 to 4.20: a client looks the class up in its module for each operation. Its ``run``
allocates the txnNumber once, its ``_read`` and ``_write`` are one attempt each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from pymongo.errors import ClientBulkWriteException, NotPrimaryError, WriteConcernError
from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.rules.failure import RETRYABLE_WRITE, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation.addresses import Address, address_text

from .clients import classes
from .sessions import ABORT, note_router

if TYPE_CHECKING:
    from .protocols import Connection, Server

LOOP = "_ClientConnectionRetryable"
KILL_CURSORS, END_SESSIONS = "killCursors", "endSessions"
NO_LIMIT = -1
"""What pymongo has for no maximum staleness."""
EXECUTE_BATCH = "_execute_batch"
"""A bulk's method that sends one command, and returns its reply and what was sent."""


def bulk_classes() -> tuple[type, ...]:
    """The driver's bulks, of collections and clients."""
    return classes("bulk", "_*Bulk") + classes("client_bulk", "_*ClientBulk")


_PREFERRED = frozenset({PrimaryPreferred().mode, SecondaryPreferred().mode})


class PymongoLoop(Protocol):
    """pymongo's loop: the private names that are used here."""

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

    # What the subclass that takes the place of pymongo's class adds.

    owner: AttemptOwner | None
    """Who decides on the attempts; None if pymongo runs the loop alone."""
    driver_func: Callable[..., Any]
    """What pymongo calls with a connection."""
    send: Callable[..., Any]
    """The same, as pymongo is to call it."""
    pending: Exception | None
    """The error that the first attempt is to begin, and end, with."""


class AttemptOwner(Protocol):
    """Decides on the attempts of a loop."""

    def check_txn(self, connection: Connection, retryable: bool, /) -> bool:
        """Return whether a write is sent as a retryable one. Called before a write is sent on
        ``connection`` that may lack its transaction number; ``retryable``: what pymongo would do.
        """

    def limit_selection(self) -> AbstractContextManager[None]:
        """Return what is active while a server is selected."""

    def selected(self, server: Server, /) -> None:
        """Called with the selected server, before anything is sent to it."""


class Txn(Enum):
    """How the next attempt of a write is sent."""

    AS_DECIDED = "as pymongo decides"
    """The first attempt, and every attempt of anything except a retryable write."""
    CHECKED = "as the library decides"
    """A retry of a retryable write: ``check_txn`` decides whether it carries its number."""


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """How an attempt is made after a failed one."""

    txn: Txn
    stay_pinned: bool
    """The attempt must go to the router that the transaction was begun through."""
    avoid: Server | None = None
    """The driver's server that the selection avoids, if there is another one."""


class DriverAttempts:
    """The attempts of one run of pymongo's retry loop. Nothing else touches the loop.

    Belongs to one thread or task. ``first`` and ``again`` return a coroutine in async clients.
    """

    __slots__ = (
        "_first_retryable", "client", "connection", "loop", "progress", "session", "txn",
    )  # fmt: skip

    def __init__(self, loop: PymongoLoop) -> None:
        self.loop = loop
        self.client = loop._client
        self.session = loop._session
        self.connection: Connection | None = None
        """The last attempt's, once it has one: a command may have been sent."""
        self.progress: tuple[Any, int] | None = None
        """For a bulk, where it stood after the last failure."""
        self.txn = Txn.AS_DECIDED
        self._first_retryable = loop._retryable

    server = property(attrgetter("loop._server"))
    """The driver's server that is selected; None before."""
    server_selection_timeout = property(attrgetter("client.options.server_selection_timeout"))
    """Seconds."""

    def first(self) -> Any:
        """Make the first attempt, with what pymongo's ``run`` does before a write, once."""
        loop = self.loop
        if loop._is_read:
            return loop._read()
        session = self.session
        if loop._retryable and session is not None and not session.in_transaction:
            session._start_retryable_write()
            if loop._bulk:
                loop._bulk.started_retryable_write = True
        return loop._write()

    def again(self) -> Any:
        """Make one more attempt, as ``follow`` was told to make it."""
        self.connection = None
        return self.loop._read() if self.loop._is_read else self.loop._write()

    def send(self, *args: Any) -> Any:
        """Send the attempt: pymongo calls it with the connection, in place of ``driver_func``."""
        loop = self.loop
        connection = args[2] if loop._is_read else args[1]
        if (session := self.session) is not None and session.in_transaction:
            self._pin_to_router(connection)
        # pymongo takes the number back on a server that does not support it.
        took_back = loop._retryable is not self._first_retryable
        if (took_back or self.txn is Txn.CHECKED) and loop.owner is not None:
            args = (session, connection, loop.owner.check_txn(connection, args[2]))
        self.connection = connection
        return loop.driver_func(*args)

    def _pin_to_router(self, connection: Connection) -> None:
        """Pin a transaction by what the connection is. pymongo 4.20 goes by the server's
        description, which is Unknown while another operation's error is being looked into: the
        commit would go to any router, and without the token that makes it known there."""
        session = self.session
        if not connection.is_mongos:
            return
        if self.command_name() != ABORT:
            note_router(session, connection)
        if session._transaction.pinned_address is None:
            session._pin(self.loop._server, connection)

    def replace_function(self, function: Callable[..., Any]) -> None:
        """Have ``function`` called with a connection, in place of pymongo's."""
        self.loop.driver_func = function

    @property
    def function(self) -> Callable[..., Any]:
        """What is called with a connection."""
        return self.loop.driver_func

    def fail_first(self, error: Exception) -> None:
        """Have the first attempt fail with ``error``, before a server is selected."""
        self.loop.pending = error

    def streams(self) -> bool:
        """Return True if it only receives what a server streams, an exhaust cursor's batches:
        nothing was sent that could be retried (pymongo 4.20.1)."""
        pinned = getattr(self.loop, "_conn_mgr", None)
        return pinned is not None and bool(pinned.more_to_come)

    def is_numbered_write(self) -> bool:
        """Return True if the first attempt was to have a transaction number of its own. The end of
        a transaction has the transaction's."""
        is_write = not self.loop._is_read and not self.in_transaction()
        return bool(self._first_retryable) and is_write

    def note_completed(self) -> None:
        """After an attempt that succeeded in a transaction, as pymongo's ``run`` does it."""
        self.session._transaction.has_completed_command = True

    def command_name(self) -> str:
        """The command's name, where it is not the application's word; the driver keeps a str or an
        enum that is one."""
        if self.loop._is_run_command:
            return "runCommand"
        return str(getattr(self.loop._operation, "value", self.loop._operation))

    def namespace(self) -> tuple[str, str | None]:
        """Database and collection of a collection's bulk write; of anything else nothing is
        known."""
        collection = getattr(self.loop._bulk, "collection", None)
        return ("", None) if collection is None else (collection.database.name, collection.name)

    def in_transaction(self) -> bool:
        return self.session is not None and bool(self.session.in_transaction)

    def kind(self) -> Kind:
        """What the operation is to the retry rules.

        The driver's read flag alone proves nothing: command runners, aggregates with a write stage
        and getMore use its read path too, and other attributes distinguish them.
        """
        name = self.command_name()
        if name in ("commitTransaction", "abortTransaction"):
            return Kind.TRANSACTION_END
        if name in (KILL_CURSORS, END_SESSIONS):
            return Kind.CLEANUP
        if self.loop._is_run_command:
            return Kind.COMMAND
        if not self.loop._is_read:
            return Kind.WRITE
        if name == "getMore":
            return Kind.GET_MORE
        if self.loop._is_aggregate_write:
            return Kind.AGGREGATE_WRITE
        if self.loop._retryable or not self.client.options.retry_reads or self.in_transaction():
            return Kind.READ
        return Kind.AGGREGATE_WRITE if name == "aggregate" else Kind.COMMAND

    def retries_enabled(self, what: Kind) -> bool:
        """retryReads, retryWrites, or both for a command runner and endSessions."""
        options = self.client.options
        if what in (Kind.COMMAND, Kind.CLEANUP) and self.command_name() != KILL_CURSORS:
            return bool(options.retry_reads and options.retry_writes)
        reads = what in (Kind.READ, Kind.GET_MORE, Kind.CLEANUP)
        return bool(options.retry_reads if reads else options.retry_writes)

    def prefers_members(self) -> bool:
        """Whether it reads with primaryPreferred or secondaryPreferred. A write has no mode."""
        return getattr(self.loop._server_selector, "mode", None) in _PREFERRED

    def carries_txn_number(self) -> bool:
        """Whether the attempt just made was a retryable write: the loop takes that back on a server
        that does not support it."""
        return bool(self.loop._retryable) and not self.loop._is_read and not self.in_transaction()

    def server_address(self) -> str | None:
        """``"host:port"`` of the selected server, if one was selected."""
        return (
            None
            if self.loop._server is None
            else address_text(self.loop._server.description.address)
        )

    def supports_txn_number(self, connection: Connection) -> bool:
        """Whether the selected server takes a retryable write on this connection.

        As the driver decides it, but for a connection to a standalone, which the server's
        description may not show yet.
        """
        return bool(
            self.session
            and self.loop._server.description.retryable_writes_supported
            and connection.supports_sessions
            and not connection.is_standalone
        )

    def lost_its_txn_number(self, connection: Connection) -> bool:
        """The server turned Unknown, or secondary, between selection and sending: the driver would
        now send a retryable write as one that is not.

        A standalone server knows no retryable writes at all; and a direct connection is to that one
        server, secondary or not.
        """
        if self.loop._is_read or self.in_transaction() or not connection.supports_sessions:
            return False
        if self.topology_type() != "Single":
            return True
        return (
            not connection.is_standalone
            and self.loop._server.description.server_type_name == "Unknown"
        )

    def set_retryable(self, retryable: bool) -> None:
        """Note whether the attempt at hand is a retryable write."""
        self.loop._retryable = retryable

    def note_server(self, server: Server) -> None:
        """Note the selected server before pymongo does, since the attempt ends here."""
        self.loop._server = server

    def bulk_progress(self) -> tuple[Any, int] | None:
        """Where a bulk stands: its run, and the first operation of it that is still to be done.

        None for what is no bulk, and for a bulk that has not begun.
        """
        bulk = self.loop._bulk
        run = getattr(bulk, "current_run", bulk)
        return None if run is None else (run, run.idx_offset)

    def topology_type(self) -> str:
        return str(self.client.topology_description.topology_type_name)

    def needed_release(self, failure: Failure) -> Callable[[], Any] | None:
        """The driver's own method to call after a failed attempt, a coroutine function in async
        clients; None where there is nothing to do.

        The topology's, to take a server for unknown until it is checked, where one of a write's
        statements says that it is no primary: there the driver ignores it, and the next attempt
        would go to the same server. Not of what a router relays, which is not the router's state.
        Or the session's, to leave its server after a failed write, as in the driver's loop.
        """
        in_statement = failure.executed and not isinstance(failure.error, WriteConcernError)
        connection = self.connection
        if (
            failure.reason is RetryReason.NOT_PRIMARY
            and in_statement
            and connection is not None
            and self.topology_type() != "Sharded"
        ):
            # What the driver's topology reads of an error.
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
            is_write = not self.loop._is_read and self.session is not None
            method = self.session._unpin if is_write and not self.stays_pinned(failure) else None
        return method

    def stays_pinned(self, failure: Failure) -> bool:
        """Whether a retry must go to the router that the transaction was begun through.

        No other one knows it. An end that was not plainly rejected may go to another: it takes a
        recovery token along (Transactions, "When to unpin").
        """
        if not self.in_transaction():
            return False
        transaction = self.session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            mark_unsent = failure.stage is Stage.NOT_SENT and not transaction.starting()
            return bool(transaction.sharded and (transaction.has_completed_command or mark_unsent))
        return (
            transaction.pinned_address is not None
            and failure.retryable_overload
            and failure.stage is Stage.ANSWERED
        )

    def cannot_be_pinned(self) -> bool:
        """Whether a statement that was not sent can no longer reach the router of its transaction:
        the driver knows none of that address any more, or a load balancer is in front of it, and
        the connection to it is gone."""
        if not self.in_transaction() or self.kind() is Kind.TRANSACTION_END:
            return False
        transaction = self.session._transaction
        if not transaction.sharded or transaction.starting():
            return False
        return self.loop._server is None or self.topology_type() == "LoadBalanced"

    def _pin_again(self) -> None:
        """The driver unpins for any error with the label TransientTransactionError, which it gives
        to each connection that cannot be made."""
        transaction = self.session._transaction
        if transaction.pinned_address is None:
            transaction.pinned_address = self.loop._server.description.address

    def retry_once_at_most(self) -> None:
        """Limit a loop that pymongo runs by itself, under a deadline of another operation's: it
        would repeat without a pause until that is over."""
        if hasattr(self.loop, "_max_retries"):
            self.loop._max_retries = 1

    def follow(self, plan: RetryPlan) -> None:
        """Have the next attempt made as planned."""
        self.txn = plan.txn
        if plan.stay_pinned:
            self._pin_again()
        else:
            self.deprioritize(plan.avoid)

    def reset_after(self, failure: Failure) -> None:
        """Bring the loop's state to what its own code has before it retries after ``failure``."""
        # Without it, the loop raises the last error again where it does not count the attempt as
        # retryable itself, inside of the checkout: which clears the pool, for everybody.
        self.loop._always_retryable = True
        # pymongo logs the retry itself, once the next attempt has a connection. Like pymongo, not
        # for a bulk.
        self.loop._attempt_number += 1
        self.loop._retrying = not self.loop._bulk
        if self.progress is not None:
            # pymongo 4.20 marks a bulk as retrying that has not begun its first run, then never
            # asks for the next run: the rest of a mixed bulk would be lost.
            self.loop._bulk.retrying = True
            _forget_in_result(failure.error)
        if failure.overloaded and not failure.executed and self.in_transaction():
            self._rejected_in_transaction(failure)

    def _rejected_in_transaction(self, failure: Failure) -> None:
        """Nothing was executed: the transaction has still to begin, or its end to be tried.

        The driver's own loop forgets all attempts to commit, those whose reply was lost as well,
        which must be followed by one with a majority; and it sends an end that would begin a
        transaction.
        """
        transaction = self.session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            if not transaction.has_completed_command:
                transaction.set_starting()
        elif failure.stage is Stage.ANSWERED:
            transaction.attempt -= 1

    def deprioritize(self, server: Server | None) -> None:
        """The loop's next selection avoids the server, where there is another.

        Not where that could read what is too old: pymongo 4.20 measures a maximum staleness against
        the primary, or else the newest member, of those that it does not avoid.
        """
        if server is None:
            return
        if getattr(self.loop._server_selector, "max_staleness", NO_LIMIT) != NO_LIMIT:
            has_primary = self.topology_type() == "ReplicaSetWithPrimary"
            if not has_primary or server.description.is_writable:
                return
        self.loop._deprioritized_servers = [*(self.loop._deprioritized_servers or ()), server]


RUN = "run"
_RUN_IN_SPAN = "_run"


def run_name(drivers: type) -> str:
    """The method that makes the attempts. A driver that records spans itself has one inside of
    ``run``, which its span is around (the branch of PYTHON-5947)."""
    return _RUN_IN_SPAN if hasattr(drivers, _RUN_IN_SPAN) else RUN


def subclass(base: type, replaced: dict[str, Callable[..., Any]]) -> type:
    """Return a subclass of pymongo's loop whose attempts pass ``send``.

    Args:
        base: pymongo's class, or one that another library derived from it.
        replaced: the methods that take the place of pymongo's, by name.
    """
    # Slots for what every operation sets, as in pymongo's own class.
    slots = {"__slots__": ("driver_func", "owner", "send"), "__module__": base.__module__}
    with_slots: Any = type(LOOP, (base,), slots)
    func = property(attrgetter("send"), with_slots.driver_func.__set__)
    body = {"__module__": base.__module__, "_func": func, "pending": None, **replaced}
    return type(LOOP, (with_slots,), body)


def pymongo_alone(loop: PymongoLoop, base: type, error: Exception | None = None) -> PymongoLoop:
    """Return pymongo's own loop, of the class ``base``, to run in place of ``loop``.

    With the ``error`` of the last attempt, it goes on as if its own attempt had just raised
    that, with the transaction number that was allocated. Without one, nothing was sent.
    """
    cls: Any = type(LOOP, (base,), {"__module__": base.__module__})
    alone: PymongoLoop = cls.__new__(cls)
    slots = {name for each in base.__mro__ for name in getattr(each, "__slots__", ())}
    for name in (slots | vars(loop).keys()) - {"_func", "pending"}:
        if hasattr(loop, name):
            setattr(alone, name, getattr(loop, name))
    alone._func = loop.driver_func
    if error is None:
        return alone
    attempt = "_read" if loop._is_read else "_write"
    # pymongo allocates a transaction number before the first attempt, if it is retryable.
    retryable, alone._retryable = alone._retryable, False
    alone._last_error, alone._retrying, alone._attempt_number = error, False, 0

    def raise_error() -> Any:
        del vars(alone)[attempt]
        alone._retryable = retryable
        raise error

    vars(alone)[attempt] = raise_error
    return alone


def raise_pending(loop: PymongoLoop) -> None:
    """Raise the error that the first attempt is to end with, once."""
    error, loop.pending = loop.pending, None
    if error is not None:
        raise error


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
