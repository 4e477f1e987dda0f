"""pymongo's retry loop, ``_ClientConnectionRetryable``, which runs whatever may be repeated.

Measured on 4.17 to 4.20: its ``run`` allocates the txnNumber once, its ``_read`` and ``_write`` are
one attempt each. Here is what it can be asked; ``repetition`` is what it must be told.
"""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any

from pymongo.read_preferences import PrimaryPreferred, SecondaryPreferred

from pymongo_resilience.operation import Kind
from pymongo_resilience_instrumentation.addresses import address_text

from .clients import ASYNC, SYNC

LOOP = "_ClientConnectionRetryable"
ATTEMPTS = ("_read", "_write")
"""The loop's methods that make one."""
BEFORE_A_CONNECTION = frozenset({
    "_get_server", "_conn_from_server", "_checkout", "__enter__", "__aenter__",
})  # fmt: skip
"""What an attempt calls itself until it has one."""


def loop_classes() -> tuple[tuple[type, bool], ...]:
    """The driver's retry loops, each with whether it is the async one."""
    return (
        (getattr(importlib.import_module(SYNC), LOOP), False),
        (getattr(importlib.import_module(ASYNC), LOOP), True),
    )


func = attrgetter("_func")
"""What a loop calls once it has a connection. As the next two, on the way of every operation."""
client = attrgetter("_client")
server = attrgetter("_server")
"""The one that is selected; None before."""


is_retryable = attrgetter("_retryable")
"""Whether the attempt to be made is a retryable write, or a read that may be repeated."""


def reached_connection(error: BaseException) -> bool:
    """Whether an attempt may have sent something before it raised ``error``: it may, but where the
    traceback shows that it had no connection yet."""
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_name in ATTEMPTS:
            inner = entry.tb_next
            return inner is None or inner.tb_frame.f_code.co_name not in BEFORE_A_CONNECTION
        entry = entry.tb_next
    return True


def replace_func(loop: Any, func: Any) -> None:
    loop._func = func


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


def session(loop: Any) -> Any:
    return loop._session


def in_transaction(loop: Any) -> bool:
    return loop._session is not None and bool(loop._session.in_transaction)


def kind(loop: Any) -> Kind:
    """What the operation is to the retry rules.

    The driver's read flag alone proves nothing: command runners, aggregates with a write stage
    and getMore use its read path too, told apart by what it says beside.
    """
    name = operation_name(loop)
    if name in ("commitTransaction", "abortTransaction"):
        return Kind.TRANSACTION_END
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
    """retryReads, retryWrites, or both for a command runner."""
    options = loop._client.options
    if what in (Kind.READ, Kind.GET_MORE):
        return bool(options.retry_reads)
    if what is Kind.COMMAND:
        return bool(options.retry_reads and options.retry_writes)
    return bool(options.retry_writes)


_PREFERRED = frozenset({PrimaryPreferred().mode, SecondaryPreferred().mode})


def prefers_members(loop: Any) -> bool:
    """Whether it reads with primaryPreferred or secondaryPreferred. A write has no mode."""
    return getattr(loop._server_selector, "mode", None) in _PREFERRED


def server_selection_timeout(loop: Any) -> float:
    """Seconds."""
    return float(loop._client.options.server_selection_timeout)


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

    As the driver decides it, but for a connection to a standalone: of that the server's description
    may not tell yet.
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

    A standalone server knows no retryable writes at all; and whoever connects to one server
    directly gets that server, secondary or not.
    """
    if loop._is_read or in_transaction(loop) or not connection.supports_sessions:
        return False
    if _topology_type(loop) != "Single":
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
    return _topology_type(loop) == "Sharded"


def _topology_type(loop: Any) -> str:
    return str(loop._client.topology_description.topology_type_name)
