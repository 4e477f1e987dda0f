"""The only file that names private parts of pymongo.

Measured on 4.17 to 4.20: ``_ClientConnectionRetryable`` runs every operation that may be repeated;
its ``run`` allocates the txnNumber once, its ``_read`` and ``_write`` are one attempt each.
"""

from __future__ import annotations

import copy
import importlib
import ssl
import traceback
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from pymongo import common
from pymongo.errors import ClientBulkWriteException

from pymongo_resilience.failure import RETRYABLE_WRITE, Stage
from pymongo_resilience.operation import Kind
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import Timeout
from pymongo_resilience_instrumentation.self_check import Feature, Part

try:
    from pymongo import _csot
except ImportError:  # the self-check says so, and what needs it stays off
    _csot = None  # type: ignore[assignment]  # a module, or none

try:
    from pymongo.ssl_support import PYSSLError, SSLError
except ImportError:
    TLS_ERRORS: tuple[type[Exception], ...] = (ssl.SSLError,)
else:
    # Of PyOpenSSL, where it is installed, and of the standard library.
    TLS_ERRORS = (PYSSLError, SSLError)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token

    from pymongo_resilience.failure import Failure
    from pymongo_resilience_instrumentation.addresses import Address

SYNC = "pymongo.synchronous.mongo_client"
ASYNC = "pymongo.asynchronous.mongo_client"
LOOP = "_ClientConnectionRetryable"

_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_last_error", "_operation", "_retryable", "_retrying", "_server", "_session",
)  # fmt: skip
_BULK_NAMES = ("current_run", "retrying")
_CLEANUP_NAMES = (
    "_kill_cursors", "_kill_cursor_impl", "_process_kill_cursors", "_close_cursor_soon",
    "_end_sessions", "_conn_for_reads",
)  # fmt: skip
_TRANSACTION_NAMES = ("set_starting", "has_completed_command", "attempt")
_SENDING = "_run_command"
SENDERS = ("pymongo.synchronous.command_runner", "pymongo.asynchronous.command_runner")


def parts() -> Iterator[Part]:
    """Every private name below, with the feature that is lost without it."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        client = f"pymongo.{half}.mongo_client"
        session = f"pymongo.{half}.client_session"
        yield Part(Feature.RETRIES, f"{client}:{LOOP}", _LOOP_NAMES)
        yield Part(
            Feature.RETRIES, f"pymongo.{half}.pool:{prefix}Connection", ("supports_sessions",)
        )
        yield Part(Feature.RETRIES, f"pymongo.{half}.bulk:_{prefix}Bulk", _BULK_NAMES)
        yield Part(Feature.RETRIES, f"{session}:{prefix}ClientSession", ("_transaction", "_unpin"))
        yield Part(Feature.RETRIES, f"{session}:_Transaction", _TRANSACTION_NAMES)
        yield Part(Feature.CURSORS, f"{client}:{prefix}MongoClient", ("_run_operation",))
        yield Part(
            Feature.EXISTING_CLIENTS, f"{client}:{prefix}MongoClient", ("_clients", "_closed")
        )
        yield Part(Feature.REPR, f"{client}:{prefix}MongoClient", ("_options",))
        yield Part(Feature.CLEANUP, f"{client}:{prefix}MongoClient", _CLEANUP_NAMES)
        yield Part(
            Feature.CLEANUP, f"pymongo.periodic_executor:{prefix}PeriodicExecutor", ("_stopped",)
        )
        yield Part(
            Feature.CLEANUP,
            f"{client}:{prefix}MongoClient",
            ("_kill_cursors_executor",),
            set_by="_init_background",
        )
        topology = f"pymongo.{half}.topology"
        yield Part(Feature.INTERRUPTIONS, f"{topology}:Topology", ("handle_error",))
        yield Part(Feature.INTERRUPTIONS, f"{topology}:_ErrorContext", ("error",))
    yield Part(Feature.RETRIES, "pymongo.errors:OperationFailure", ("_OperationFailure__details",))
    yield Part(Feature.CLEANUP, "pymongo.common", ("KILL_CURSOR_FREQUENCY",))
    yield Part(Feature.CLEANUP, "pymongo.message:_CursorAddress", ("namespace",))
    yield Part(Feature.CLEANUP, "pymongo._csot", ("DEADLINE", "get_timeout", "remaining"))
    for module in SENDERS:
        yield Part(Feature.INTERRUPTIONS, f"{module}:{_SENDING}", ("telemetry", "command_name"))
    yield Part(
        Feature.INTERRUPTIONS,
        "pymongo._telemetry:_CommandTelemetry",
        ("failed", "_start", "_duration_s"),
    )
    yield Part(Feature.RETRIES, "pymongo._csot", ("get_timeout", "remaining", "get_rtt"))
    for feature in (Feature.REPR, Feature.RETRIES, Feature.CLEANUP):
        yield Part(feature, "pymongo.client_options:ClientOptions", ("_options",))
    yield Part(
        Feature.RETARGETING,
        "pymongo.topology_description:TopologyDescription",
        ("apply_selector",),
    )
    yield Part(Feature.TIMEOUT, "pymongo._csot", ("get_timeout", "reset_all"))


def loop_classes() -> tuple[tuple[type, bool], ...]:
    """The driver's retry loops, each with whether it is the async one."""
    return (
        (getattr(importlib.import_module(SYNC), LOOP), False),
        (getattr(importlib.import_module(ASYNC), LOOP), True),
    )


def topology_description() -> type:
    """The class whose ``apply_selector`` is the driver's every look at the servers."""
    cls: type = importlib.import_module("pymongo.topology_description").TopologyDescription
    return cls


def topology_classes() -> tuple[type, ...]:
    """Their ``handle_error`` is called for every error that leaves a connection in use, just before
    that is given back."""
    return tuple(
        importlib.import_module(f"pymongo.{half}.topology").Topology
        for half in ("synchronous", "asynchronous")
    )


def handled_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException:
    """What ``handle_error`` was called for, given its arguments."""
    context = args[1] if len(args) > 1 else kwargs["err_ctx"]
    error: BaseException = context.error
    return error


def fail_interrupted_commands(error: BaseException) -> None:
    """Report every command that ``error`` interrupted as failed: to the client's listeners, and in
    the driver's own log.

    pymongo reports a command that raised an Exception. What is none, a task's cancellation above
    all, passes by its ``except`` (``_run_command``, 4.18 to 4.20): the command started and never
    ends. What a report needs is in a local variable of that function, which the traceback still
    holds; so nothing is noted for the commands that nobody interrupts. It says as well whether the
    end was reported, so a pymongo that does that itself is left alone.
    """
    name = type(error).__name__
    failure = {"errmsg": f"interrupted by {name}", "errtype": name}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name != _SENDING or frame.f_globals.get("__name__") not in SENDERS:
            continue
        sending = frame.f_locals
        telemetry = sending.get("telemetry")
        if telemetry is not None and telemetry._start and not telemetry._duration_s:
            telemetry.failed(failure, sending["command_name"], is_server_side_error=False)


def existing_clients() -> list[Any]:
    """The clients of this process that are alive and not closed."""
    sync, asynchronous = importlib.import_module(SYNC), importlib.import_module(ASYNC)
    clients = [
        *sync.MongoClient._clients.values(),
        *asynchronous.AsyncMongoClient._clients.values(),
    ]
    return [client for client in clients if not client._closed]


def show_listeners(client: Any, given: Any) -> None:
    """Where the client lists its options, show the listeners it was given; None for none."""
    options = client._options._options
    if given is None:
        options.pop("event_listeners", None)
    else:
        options["event_listeners"] = given


def timeout_in_force() -> float | None:
    """Seconds that ``pymongo.timeout`` or a client's timeoutMS gives; 0 is without end."""
    return _csot.get_timeout()


def forget_timeout() -> None:
    """In this task or thread, no timeout is in force any more."""
    _csot.reset_all()


def remaining() -> float | None:
    """Seconds until the driver's deadline; None without one."""
    return _csot.remaining()


def min_rtt() -> float:
    """The minimum round-trip time of the selected server, under a deadline; else 0."""
    return _csot.get_rtt()


class TimeoutAnew(AbstractContextManager[None]):
    """``pymongo.timeout`` in full: inside of another one, that can only shorten what is left."""

    __slots__ = ("_before", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._timeout = Timeout(seconds)
        self._before: Token[float] | None = None

    def __enter__(self) -> None:
        self._before = _csot.DEADLINE.set(float("inf"))
        self._timeout.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._timeout.__exit__(*raised)
        if self._before is not None:
            # As with Timeout: collected elsewhere, there is nothing to take back.
            with suppress(ValueError):
                _csot.DEADLINE.reset(self._before)


def cursor_namespace(address: Any) -> tuple[str, str]:
    """Database and collection of a cursor, which its address carries."""
    database, _, collection = str(address.namespace).partition(".")
    return database, collection


def kill_later(client: Any, cursor_id: int, address: Any) -> None:
    """Queue a cursor for the client's background task, as the driver does after a failure."""
    client._close_cursor_soon(cursor_id, address)


def kills_no_more(client: Any) -> bool:
    """Whether the background task was stopped: the client is being closed."""
    return bool(client._kill_cursors_executor._stopped)


def kill_interval() -> float:
    """Seconds between two runs of the background task."""
    return float(common.KILL_CURSOR_FREQUENCY)


def replace_func(loop: Any, func: Any) -> Any:
    """Put ``func`` where the loop keeps what it calls once it has a connection; the old one."""
    before = loop._func
    loop._func = func
    return before


def func(loop: Any) -> Any:
    return loop._func


def client(loop: Any) -> Any:
    return loop._client


def operation_name(loop: Any) -> str:
    """The command's name; the driver keeps a str or an enum that is one."""
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


def max_retries(client: Any) -> int | None:
    """What the client itself says of overload retries; None where it says nothing."""
    own: int | None = _own_option(client, "maxadaptiveretries", "max_adaptive_retries")
    return own


def retargets_on_overload(client: Any) -> bool | None:
    """Whether the client itself says to avoid an overloaded server; None where it does not say."""
    own: bool | None = _own_option(
        client, "enableoverloadretargeting", "enable_overload_retargeting"
    )
    return own


def _own_option(client: Any, *names: str) -> Any:
    # The public properties do not tell a value that was given from a default.
    given = client.options._options
    return next((given[name] for name in names if name in given), None)


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


def server(loop: Any) -> Any:
    """The selected server, if one was selected."""
    return loop._server


def address_of(server: Any) -> str | None:
    """``"host:port"``."""
    return None if server is None else address_text(server.description.address)


def lost_its_txn_number(loop: Any, connection: Any) -> bool:
    """The server turned Unknown, or secondary, between selection and sending: the driver would
    now send a retryable write as one that is not.

    A standalone server knows no retryable writes at all; and whoever connects to one server
    directly gets that server, secondary or not.
    """
    if loop._retryable or loop._is_read or in_transaction(loop):
        return False
    server_type = loop._server.description.server_type_name
    if server_type == "Standalone" or not connection.supports_sessions:
        return False
    return server_type == "Unknown" or _topology_type(loop) != "Single"


def restore_retryable(loop: Any) -> None:
    loop._retryable = True


def bulk_progress(loop: Any) -> tuple[Any, int] | None:
    """Where a bulk stands: its run, and the first operation of it that is still to be done.

    None for what is no bulk, and for a bulk that has not begun.
    """
    bulk = loop._bulk
    run = getattr(bulk, "current_run", bulk)
    return None if run is None else (run, run.idx_offset)


def unpin(loop: Any, failure: Failure) -> Any:
    """After a failed write the session leaves its server, as the driver's own loop sees to.

    A coroutine in async clients; None where there is nothing to do.
    """
    if loop._is_read or loop._session is None:
        return None
    if failure.retryable_overload or RETRYABLE_WRITE in failure.labels:
        return loop._session._unpin()
    return None


def prepare_retry(loop: Any, failure: Failure, attempts: int, error: Exception) -> None:
    """Bring the loop's state to what its own code has before it repeats an attempt."""
    loop._attempt_number = attempts
    loop._last_error = error
    # Without it, the loop refuses to repeat what it does not count as retryable itself.
    loop._always_retryable = failure.retryable_overload or not loop._retryable
    if loop._bulk is None:
        loop._retrying = True
    elif bulk_progress(loop) is not None:
        # pymongo 4.20 marks a bulk as retrying that has not begun its first run, then never asks
        # for the next run: the rest of a mixed bulk would be lost.
        loop._bulk.retrying = True
        _forget_in_result(failure.error)
    if failure.overloaded and in_transaction(loop):
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


def deprioritize(loop: Any) -> tuple[Address, ...]:
    """Selection for the next attempt avoids the server that failed, where there is another.

    The addresses of all servers that it avoids.
    """
    if loop._server is None:
        return ()
    if loop._deprioritized_servers is None:
        loop._deprioritized_servers = []
    loop._deprioritized_servers.append(loop._server)
    return tuple(server.description.address for server in loop._deprioritized_servers)


def is_sharded(loop: Any) -> bool:
    return _topology_type(loop) == "Sharded"


def _topology_type(loop: Any) -> str:
    return str(loop._client.topology_description.topology_type_name)
