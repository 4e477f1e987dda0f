"""Cursors and change streams: what their timeouts need to know of them, and to set."""

from __future__ import annotations

import copy
import importlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pymongo.cursor import CursorType

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.addresses import Address

RUN_OPERATION = "_run_operation"
"""A client's method that sends for a batch of a cursor."""
CLONE = "_clone"
AGGREGATE = "_run_aggregation_cmd"
"""A change stream's: sends its aggregate, to begin and to resume."""
_PLACES = (
    ("pymongo.synchronous.cursor", "Cursor"),
    ("pymongo.asynchronous.cursor", "AsyncCursor"),
    ("pymongo.synchronous.command_cursor", "CommandCursor"),
    ("pymongo.asynchronous.command_cursor", "AsyncCommandCursor"),
)
_STREAMS = (
    ("pymongo.synchronous.change_stream", "ChangeStream"),
    ("pymongo.asynchronous.change_stream", "AsyncChangeStream"),
)

of_files: tuple[type, ...] = ()
"""The cursors over the files of GridFS; none while that is not imported."""


def cursor_classes() -> tuple[type, ...]:
    return tuple(getattr(importlib.import_module(module), name) for module, name in _PLACES)


def stream_classes() -> tuple[type, ...]:
    return tuple(getattr(importlib.import_module(module), name) for module, name in _STREAMS)


def run_operation_arguments(given: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The client, the operation and the method of the cursor that ``_run_operation`` was called
    with: by their positions, or by the names they have in 4.17 and 4.20."""
    if len(given) > 2:  # noqa: PLR2004
        return given[:3]
    operation = given[1] if len(given) > 1 else kwargs["operation"]
    name = "run_with_conn" if "run_with_conn" in kwargs else "unpack_res"
    return given[0], operation, kwargs[name]


def cursor_of(method: Any) -> Any:
    """The cursor that ``_run_operation`` sends for, given its second argument, a method of the
    cursor: what unpacks the reply (4.17), or sends (4.20)."""
    return getattr(method, "__self__", None)


def pinned_address(operation: Any) -> Address | None:
    """Of the server whose connection the cursor keeps: such a batch does not enter the loop, which
    would note its server. None for any other."""
    manager = getattr(operation, "conn_mgr", None)
    connection = getattr(manager, "conn", None)
    found: Address | None = getattr(connection, "address", None)
    return found


def is_of_files(cursor: Any) -> bool:
    return isinstance(cursor, of_files)


def is_tailable(cursor: Any) -> bool:
    """Also where the application set the flag by itself."""
    return bool(getattr(cursor, "_query_flags", 0) & CursorType.TAILABLE)


def awaits_data(cursor: Any) -> bool:
    """Whether the server may wait for news before it answers a getMore."""
    flags = getattr(cursor, "_query_flags", 0)
    return bool(flags & CursorType.TAILABLE_AWAIT == CursorType.TAILABLE_AWAIT)


def max_await_time_ms(cursor: Any) -> int | None:
    """What the application gave, for a cursor that waits for new documents; milliseconds."""
    given: int | None = getattr(cursor, "_max_await_time_ms", None)
    return given


def cursor_address(operation: Any, address: Any) -> Any:
    """What a killCursors for the cursor of a getMore is sent to, on the server at ``address``."""
    made = importlib.import_module("pymongo.message")._CursorAddress
    return made(address, f"{operation.db}.{operation.coll}")


def may_be_sent_twice(operation: Any, cursor: Any) -> bool:
    """Whether the first batch of the cursor could come from any server: no session of the
    application's, no connection of its own, and no plan of one server's."""
    session = operation.session
    return not (
        operation.exhaust
        or "$explain" in operation.spec
        or is_tailable(cursor)
        or (session is not None and not session._implicit)
    )


def with_new_session(client: Any, operation: Any) -> Any:
    """A copy of the operation of a cursor's first batch, with an implicit session of its own."""
    made = copy.copy(operation)
    made.session = client._ensure_session()
    return made


def take_session(cursor: Any) -> Any:
    """The cursor's implicit session, if any, which it does not end any more."""
    session, cursor._session = cursor._session, None
    return session


def set_session(cursor: Any, session: Any) -> None:
    cursor._session = session


def opened_by(reply: Any, operation: Any) -> tuple[int, Any]:
    """The cursor of a first batch, 0 for one that is exhausted, and what it is killed with."""
    cursor_id: int = reply.docs[0]["cursor"]["id"]
    return cursor_id, cursor_address(operation, reply.address)


def set_timeout_of_each_next(stream: Any, seconds: float | None) -> None:
    """The driver then puts it in force around a whole ``next``, a resume included; None is none."""
    stream._timeout = seconds


def timeout_of_each_next(stream: Any) -> float | None:
    """Seconds, 0 disables the timeout."""
    seconds: float | None = stream._timeout
    return seconds


client_of_stream = attrgetter("_client")
target_of_stream = attrgetter("_target")
"""A collection, a database or a client."""
cursor_of_stream = attrgetter("_cursor")
"""The one it reads from now; a resume makes another."""
