"""pymongo's retry loop, ``_ClientConnectionRetryable``, and the subclass that takes its place.

Measured on 4.17 to 4.20: a client looks the class up in its module for each operation. Its ``run``
allocates the txnNumber once, its ``_read`` and ``_write`` are one attempt each. ``next_attempt`` is
what they need before an attempt is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.rules.retried_operation import Kind
from pymongo_resilience_instrumentation.addresses import address_text

from .clients import both

LOOP = "_ClientConnectionRetryable"
KILL_CURSORS, END_SESSIONS = "killCursors", "endSessions"
EXECUTE_BATCH = "_execute_batch"
"""A bulk's method that sends one command, and returns its reply and what was sent."""


def bulk_classes() -> Iterator[tuple[type, bool]]:
    """The driver's bulks, of collections and clients, each with whether it is async."""
    for module, name in (("bulk", "Bulk"), ("client_bulk", "ClientBulk")):
        for found, asynchronous in both(module):
            yield getattr(found, f"_{'Async' * asynchronous}{name}"), asynchronous


def loop_modules() -> tuple[tuple[ModuleType, bool], ...]:
    """Where the driver looks its retry loops up, each with whether it is the async one."""
    return tuple(both("mongo_client"))


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
    handshaking: Any = None
    """The connection that the last attempt opened for itself, if it opened one."""
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

    @property
    def reached_connection(self) -> bool:
        """Whether the last attempt had a connection: a command may have been sent."""
        return self.connection is not None

    def send(self, *args: Any) -> Any:
        """The driver calls it with the attempt's connection, in place of ``driver_func``."""
        if self._retryable is not self.was_retryable:
            return self.checked(*args)
        self.connection = args[2] if self._is_read else args[1]
        return self.driver_func(*args)

    def again(self) -> Any:
        self.connection = self.handshaking = None
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
    if what in (Kind.READ, Kind.GET_MORE) or operation_name(loop) == KILL_CURSORS:
        return bool(options.retry_reads)
    if what in (Kind.COMMAND, Kind.CLEANUP):
        return bool(options.retry_reads and options.retry_writes)
    return bool(options.retry_writes)


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
    return address_of(loop._server)


def address_of(server: Any) -> str | None:
    """``"host:port"``."""
    return None if server is None else address_text(server.description.address)


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


def is_sharded(loop: Any) -> bool:
    return topology_type(loop) == "Sharded"


def topology_type(loop: Any) -> str:
    return str(loop._client.topology_description.topology_type_name)
