"""pymongo's retry loop, ``_ClientConnectionRetryable``, and the subclass that takes its place.

Measured on 4.17 to 4.20: a client looks the class up in its module for each operation. Its ``run``
allocates the txnNumber once, its ``_read`` and ``_write`` are one attempt each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from pymongo.errors import ClientBulkWriteException, NotPrimaryError, WriteConcernError
from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.rules.failure import RETRYABLE_WRITE, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation.addresses import address_text

from .clients import classes
from .sessions import ABORT, note_router

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


class DriverLoop:
    """The driver's loop by public names; RetryLoop (retries/) adds what the library does.
    ``first_attempt`` and ``again`` return a coroutine in async clients."""

    driver_func: Callable[..., Any]
    """What the driver calls with a connection."""
    was_retryable: bool | None
    """Whether the first attempt is a retryable write, or a read that may be repeated; None where
    all further attempts pass ``checked``."""
    connection: Any
    """The last attempt's, once it has one: a command may have been sent."""
    progress: tuple[Any, int] | None
    """Of a bulk, where it stood after the last failure."""
    _attempt_number: int
    _bulk: Any
    _client: Any
    _deprioritized_servers: Any
    _is_aggregate_write: bool
    _is_read: bool
    _is_run_command: bool
    _operation: Any
    _read: Callable[[], Any]
    _retryable: bool
    _retrying: bool
    _server: Any
    _server_selector: Any
    _session: Any
    _write: Callable[[], Any]

    client = property(attrgetter("_client"))
    server = property(attrgetter("_server"))
    """The driver's server that is selected; None before."""
    session = property(attrgetter("_session"))
    is_retryable = property(attrgetter("_retryable"))
    """Whether the attempt to be made is a retryable write, or a read that may be repeated."""
    server_selection_timeout = property(attrgetter("_client.options.server_selection_timeout"))
    """Seconds."""

    def first_attempt(self) -> Any:
        """It, with what the driver's ``run`` does before a write, once."""
        if self._is_read:
            return self._read()
        session = self._session
        if self._retryable and session is not None and not session.in_transaction:
            session._start_retryable_write()
            if self._bulk:
                self._bulk.started_retryable_write = True
        return self._write()

    def send(self, *args: Any) -> Any:
        """The driver calls it with the attempt's connection, in place of ``driver_func``."""
        if (session := self._session) is not None and session.in_transaction:
            self._pin_to_router(args[2] if self._is_read else args[1])
        if self._retryable is not self.was_retryable:
            return self.checked(*args)
        self.connection = args[2] if self._is_read else args[1]
        return self.driver_func(*args)

    def _pin_to_router(self, connection: Any) -> None:
        """Pin a transaction by what the connection is. pymongo 4.20 goes by the server's
        description, which is Unknown while another operation's error is being looked into: the
        commit would go to any router, and without the token that makes it known there."""
        session = self._session
        if not connection.is_mongos:
            return
        if self.command_name() != ABORT:
            note_router(session, connection)
        if session._transaction.pinned_address is None:
            session._pin(self._server, connection)

    def again(self) -> Any:
        self.connection = None
        return self._read() if self._is_read else self._write()

    def streams(self) -> bool:
        """Whether it only receives what a server streams, an exhaust cursor's batches: nothing was
        sent that could be repeated (pymongo 4.20.1)."""
        pinned = getattr(self, "_conn_mgr", None)
        return pinned is not None and bool(pinned.more_to_come)

    def check_repeated(self) -> None:
        """After the first failure: further attempts of a write that is to have a transaction number
        pass ``checked``. The end of a transaction has the transaction's."""
        if self.was_retryable and not self._is_read and not self.in_transaction():
            self.was_retryable = None

    def note_completed(self) -> None:
        """After an attempt that succeeded in a transaction, as the driver's ``run`` does it."""
        self._session._transaction.has_completed_command = True

    def driver_alone(self, base: type, error: Exception | None = None) -> Any:
        """Return pymongo's own loop, of the class ``base``, to run in place of this one.

        With the ``error`` of the last attempt, it goes on as if its own attempt had just raised
        that, with the transaction number that was allocated. Without one, nothing was sent.
        """
        cls: Any = type(LOOP, (base,), {"__module__": base.__module__})
        alone = cls.__new__(cls)
        slots = {name for each in base.__mro__ for name in getattr(each, "__slots__", ())}
        for name in (slots | vars(self).keys()) - {"_func"}:
            if hasattr(self, name):
                setattr(alone, name, getattr(self, name))
        alone._func = self.driver_func
        if error is None:
            return alone
        attempt = "_read" if self._is_read else "_write"
        # pymongo allocates a transaction number before the first attempt, if it is retryable.
        retryable, alone._retryable = alone._retryable, False
        alone._last_error, alone._retrying, alone._attempt_number = error, False, 0

        def raise_error() -> Any:
            del vars(alone)[attempt]
            alone._retryable = retryable
            raise error

        vars(alone)[attempt] = raise_error
        return alone

    def checked(self, *args: Any) -> Any:
        """In place of what the driver calls with a connection, where a write may lack its
        transaction number."""
        raise NotImplementedError

    def command_name(self) -> str:
        """The command's name, where it is not the application's word; the driver keeps a str or an
        enum that is one."""
        if self._is_run_command:
            return "runCommand"
        return str(getattr(self._operation, "value", self._operation))

    def namespace(self) -> tuple[str, str | None]:
        """Database and collection of a collection's bulk write; of anything else nothing is
        known."""
        collection = getattr(self._bulk, "collection", None)
        return ("", None) if collection is None else (collection.database.name, collection.name)

    def in_transaction(self) -> bool:
        return self._session is not None and bool(self._session.in_transaction)

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
        if self._is_run_command:
            return Kind.COMMAND
        if not self._is_read:
            return Kind.WRITE
        if name == "getMore":
            return Kind.GET_MORE
        if self._is_aggregate_write:
            return Kind.AGGREGATE_WRITE
        if self._retryable or not self._client.options.retry_reads or self.in_transaction():
            return Kind.READ
        return Kind.AGGREGATE_WRITE if name == "aggregate" else Kind.COMMAND

    def retries_enabled(self, what: Kind) -> bool:
        """retryReads, retryWrites, or both for a command runner and endSessions."""
        options = self._client.options
        if what in (Kind.COMMAND, Kind.CLEANUP) and self.command_name() != KILL_CURSORS:
            return bool(options.retry_reads and options.retry_writes)
        reads = what in (Kind.READ, Kind.GET_MORE, Kind.CLEANUP)
        return bool(options.retry_reads if reads else options.retry_writes)

    def prefers_members(self) -> bool:
        """Whether it reads with primaryPreferred or secondaryPreferred. A write has no mode."""
        return getattr(self._server_selector, "mode", None) in _PREFERRED

    def carries_txn_number(self) -> bool:
        """Whether the attempt just made was a retryable write: the loop takes that back on a server
        that does not support it."""
        return bool(self._retryable) and not self._is_read and not self.in_transaction()

    def server_address(self) -> str | None:
        """``"host:port"`` of the selected server, if one was selected."""
        return None if self._server is None else address_text(self._server.description.address)

    def supports_txn_number(self, connection: Any) -> bool:
        """Whether the selected server takes a retryable write on this connection.

        As the driver decides it, but for a connection to a standalone, which the server's
        description may not show yet.
        """
        return bool(
            self._session
            and self._server.description.retryable_writes_supported
            and connection.supports_sessions
            and not connection.is_standalone
        )

    def lost_its_txn_number(self, connection: Any) -> bool:
        """The server turned Unknown, or secondary, between selection and sending: the driver would
        now send a retryable write as one that is not.

        A standalone server knows no retryable writes at all; and a direct connection is to that one
        server, secondary or not.
        """
        if self._is_read or self.in_transaction() or not connection.supports_sessions:
            return False
        if self.topology_type() != "Single":
            return True
        return (
            not connection.is_standalone and self._server.description.server_type_name == "Unknown"
        )

    def set_server(self, server: Any) -> None:
        """Before the driver notes the one that it has selected."""
        self._server = server

    def set_retryable(self, retryable: bool) -> None:
        """Whether the attempt to be made is a retryable write."""
        self._retryable = retryable

    def bulk_progress(self) -> tuple[Any, int] | None:
        """Where a bulk stands: its run, and the first operation of it that is still to be done.

        None for what is no bulk, and for a bulk that has not begun.
        """
        bulk = self._bulk
        run = getattr(bulk, "current_run", bulk)
        return None if run is None else (run, run.idx_offset)

    def topology_type(self) -> str:
        return str(self._client.topology_description.topology_type_name)

    def needed_release(self, failure: Failure) -> Callable[[], Any] | None:
        """The driver's own method to call after a failed attempt, a coroutine function in async
        clients; None where there is nothing to do.

        The topology's, to take a server for unknown until it is checked, where one of a write's
        statements says that it is no primary: there the driver ignores it, and the next attempt
        would go to the same server. Not of what a router relays, which is not the router's state.
        Or the session's, to leave its server after a failed write, as in the driver's loop.
        """
        in_statement = failure.executed and not isinstance(failure.error, WriteConcernError)
        if (
            failure.reason is RetryReason.NOT_PRIMARY
            and in_statement
            and self.topology_type() != "Sharded"
        ):
            connection = self.connection
            # What the driver's topology reads of an error.
            context = SimpleNamespace(
                error=NotPrimaryError("", {"code": failure.code}),
                max_wire_version=connection.max_wire_version,
                sock_generation=connection.generation,
                completed_handshake=True,
                service_id=connection.service_id,
            )
            topology = self._client._topology
            return partial(topology.handle_error, self._server.description.address, context)
        method: Callable[[], Any] | None = None
        if failure.retryable_overload or RETRYABLE_WRITE in failure.labels:
            is_write = not self._is_read and self._session is not None
            method = self._session._unpin if is_write and not self.stays_pinned(failure) else None
        return method

    def stays_pinned(self, failure: Failure) -> bool:
        """Whether a retry must go to the router that the transaction was begun through.

        No other one knows it. An end that was not plainly rejected may go to another: it takes a
        recovery token along (Transactions, "When to unpin").
        """
        if not self.in_transaction():
            return False
        transaction = self._session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            unsent = failure.stage is Stage.NOT_SENT and not transaction.starting()
            return bool(transaction.sharded and (transaction.has_completed_command or unsent))
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
        transaction = self._session._transaction
        if not transaction.sharded or transaction.starting():
            return False
        return self._server is None or self.topology_type() == "LoadBalanced"

    def pin_again(self) -> None:
        """The driver unpins for any error with the label TransientTransactionError, which it gives
        to each connection that cannot be made."""
        transaction = self._session._transaction
        if transaction.pinned_address is None:
            transaction.pinned_address = self._server.description.address

    def retry_once_at_most(self) -> None:
        """Limit a loop that pymongo runs by itself, under a deadline of another operation's: it
        would repeat without a pause until that is over."""
        if hasattr(self, "_max_retries"):
            self._max_retries = 1

    def prepare_retry(self, failure: Failure) -> None:
        """Bring the loop's state to what its own code has before it repeats an attempt."""
        # Without it, the loop raises the last error again where it does not count the attempt as
        # retryable itself, inside of the checkout: which clears the pool, for everybody.
        self._always_retryable = True
        # pymongo logs the retry itself, once the next attempt has a connection. Like pymongo, not
        # for a bulk.
        self._attempt_number += 1
        self._retrying = not self._bulk
        if self.progress is not None:
            # pymongo 4.20 marks a bulk as retrying that has not begun its first run, then never
            # asks for the next run: the rest of a mixed bulk would be lost.
            self._bulk.retrying = True
            _forget_in_result(failure.error)
        if failure.overloaded and not failure.executed and self.in_transaction():
            self._rejected_in_transaction(failure)

    def _rejected_in_transaction(self, failure: Failure) -> None:
        """Nothing was executed: the transaction has still to begin, or its end to be tried.

        The driver's own loop forgets all attempts to commit, those whose reply was lost as well,
        which must be followed by one with a majority; and it sends an end that would begin a
        transaction.
        """
        transaction = self._session._transaction
        if self.kind() is not Kind.TRANSACTION_END:
            if not transaction.has_completed_command:
                transaction.set_starting()
        elif failure.stage is Stage.ANSWERED:
            transaction.attempt -= 1

    def deprioritize(self, server: Any) -> None:
        """The loop's next selection avoids the server, where there is another.

        Not where that could read what is too old: pymongo 4.20 measures a maximum staleness against
        the primary, or else the newest member, of those that it does not avoid.
        """
        if server is None:
            return
        if getattr(self._server_selector, "max_staleness", NO_LIMIT) != NO_LIMIT:
            has_primary = self.topology_type() == "ReplicaSetWithPrimary"
            if not has_primary or server.description.is_writable:
                return
        self._deprioritized_servers = [*(self._deprioritized_servers or ()), server]


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
