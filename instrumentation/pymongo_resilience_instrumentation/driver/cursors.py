"""Cursors and change streams: what their timeouts need to know of them, and to set."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pymongo import message
from pymongo.cursor import CursorType

from pymongo_resilience_instrumentation.addresses import Address

from .clients import classes

if TYPE_CHECKING:
    from .protocols import (
        BatchRequest,
        ChangeStream,
        Client,
        Cursor,
        CursorAddress,
        FindCursor,
        Query,
        Response,
        Session,
    )

RUN_OPERATION = "_run_operation"
"""A client's method that sends for a batch of a cursor."""
AGGREGATE = "_run_aggregation_cmd"
"""A change stream's: sends its aggregate, to begin and to resume."""


def cursor_classes() -> tuple[type, ...]:
    return classes("cursor", "*Cursor") + classes("command_cursor", "*CommandCursor")


def run_operation_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The client and the query or getMore that ``_run_operation`` was called with, and the method
    of the cursor that sends it on a connection."""
    query = args[1] if len(args) > 1 else kwargs["operation"]
    return args[0], query, args[2] if len(args) > 2 else kwargs["run_with_conn"]  # noqa: PLR2004 - its place


def pinned_address(query: BatchRequest) -> Address | None:
    """The server whose connection the cursor keeps, for a batch that does not enter the loop, which
    would note its server; else None."""
    connection = getattr(getattr(query, "conn_mgr", None), "conn", None)
    return getattr(connection, "address", None)


def is_tailable(cursor: Cursor | None) -> bool:
    """Also where the application set the flag by itself."""
    return bool(getattr(cursor, "_query_flags", 0) & CursorType.TAILABLE)


def awaits_data(cursor: Cursor | None) -> bool:
    """Whether the server may wait for news before it answers a getMore."""
    flags = getattr(cursor, "_query_flags", 0)
    return bool(flags & CursorType.TAILABLE_AWAIT == CursorType.TAILABLE_AWAIT)


def max_await_time_ms(cursor: Cursor | None) -> int | None:
    """What the application gave, for a cursor that waits for new documents; milliseconds."""
    return getattr(cursor, "_max_await_time_ms", None)


def cursor_address(query: BatchRequest, address: Address) -> CursorAddress:
    """What a killCursors for the cursor of a getMore is sent to, on the server at ``address``."""
    return message._CursorAddress(address, f"{query.db}.{query.coll}")


def may_be_sent_twice(query: Query, cursor: FindCursor) -> bool:
    """Whether the first batch of the cursor could come from any server: no session of the
    application's, no connection of its own, and no plan of one server's."""
    return not (
        query.exhaust
        or "$explain" in query.spec
        or is_tailable(cursor)
        or cursor.session is not None
    )


def with_new_session(client: Client, query: Query) -> Query:
    """A copy of the query of a cursor's first batch, with an implicit session of its own."""
    made = copy.copy(query)
    made.session = client._ensure_session()
    return made


def swap_session(cursor: Cursor, session: Session | None) -> Session | None:
    """Give the cursor another implicit session, or none, for the one it had."""
    had: Session | None = cursor._session
    cursor._session = session
    return had


def opened_by(reply: Response, query: Query) -> tuple[int, CursorAddress]:
    """The cursor of a first batch, 0 for one that is exhausted, and what it is killed with."""
    cursor_id: int = reply.docs[0]["cursor"]["id"]
    return cursor_id, cursor_address(query, reply.address)


def set_timeout_of_each_call(cursor: Cursor | ChangeStream, seconds: float | None) -> None:
    """pymongo then applies it to each ``to_list`` of a cursor, or to each ``next`` of a change
    stream, a resume included; None is none."""
    cursor._timeout = seconds


timeout_of_each_next = attrgetter("_timeout")
"""Seconds; 0 disables the timeout, None is none."""
client_of_stream = attrgetter("_client")
target_of_stream = attrgetter("_target")
"""A collection, a database or a client."""
cursor_of_stream = attrgetter("_cursor")
"""The one it reads from now; a resume makes another."""
collection_of_find = attrgetter("collection")
"""Of a find's cursor; no other cursor has one."""
