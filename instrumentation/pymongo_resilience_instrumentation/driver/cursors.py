"""Private parts of cursors and change streams that timeouts and features need."""

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
"""A method of clients that fetches a batch of a cursor."""
RUN_WITH_CONN = "_run_with_conn"
"""A method of cursors that sends a query on a connection."""
AGGREGATE = "_run_aggregation_cmd"
"""A method of change streams that sends the aggregate, at the beginning and to resume."""


def cursor_classes() -> tuple[type, ...]:
    return classes("cursor", "*Cursor") + classes("command_cursor", "*CommandCursor")


def run_operation_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the client, the query or getMore, and the cursor's method that sends it on a
    connection.
    """
    query = args[1] if len(args) > 1 else kwargs["operation"]
    return args[0], query, args[2] if len(args) > 2 else kwargs["run_with_conn"]  # noqa: PLR2004 - its place


def pinned_address(query: BatchRequest) -> Address | None:
    """Return the server whose connection the cursor keeps, or None.

    For batches that do not enter the retry loop, which would record their server.
    """
    connection = getattr(getattr(query, "conn_mgr", None), "conn", None)
    return getattr(connection, "address", None)


def is_tailable(cursor: Cursor | None) -> bool:
    """Return True for a tailable cursor, even if the application set the flag itself."""
    return bool(getattr(cursor, "_query_flags", 0) & CursorType.TAILABLE)


def awaits_data(cursor: Cursor | None) -> bool:
    """Return True if the server may wait for new documents before it answers a getMore."""
    flags = getattr(cursor, "_query_flags", 0)
    return bool(flags & CursorType.TAILABLE_AWAIT == CursorType.TAILABLE_AWAIT)


def max_await_time_ms(cursor: Cursor | None) -> int | None:
    """Return the application's limit for waiting for new documents, in milliseconds."""
    return getattr(cursor, "_max_await_time_ms", None)


def cursor_address(query: BatchRequest, address: Address) -> CursorAddress:
    """Return the address for a killCursors of the cursor of a getMore on the server at
    ``address``.
    """
    return message._CursorAddress(address, f"{query.db}.{query.coll}")


def may_be_sent_twice(query: Query, cursor: FindCursor) -> bool:
    """Return True if any server could return the cursor's first batch.

    It must not use a session of the application, a dedicated connection, or the plan of a single
    server.
    """
    return not (
        query.exhaust
        or "$explain" in query.spec
        or is_tailable(cursor)
        or cursor.session is not None
    )


def with_new_session(client: Client, query: Query) -> Query:
    """Return a copy of the query for a cursor's first batch, with a new implicit session."""
    # The copy shares the command that the query has cached. pymongo builds it again for each
    # attempt, here with the new session.
    made = copy.copy(query)
    made.session = client._ensure_session()
    return made


def swap_session(cursor: Cursor, session: Session | None) -> Session | None:
    """Replace the cursor's implicit session, and return the old one."""
    had: Session | None = cursor._session
    cursor._session = session
    return had


def opened_by(reply: Response, query: Query) -> tuple[int, CursorAddress]:
    """Return the ID of the cursor that a first batch opened (0 if it is exhausted), and its
    address.
    """
    cursor_id: int = reply.docs[0]["cursor"]["id"]
    return cursor_id, cursor_address(query, reply.address)


def set_timeout_of_each_call(cursor: Cursor | ChangeStream, seconds: float | None) -> None:
    """Set the timeout that pymongo applies to each ``to_list`` of a cursor, or to each ``next`` of
    a change stream, including a resume.
    """
    cursor._timeout = seconds


timeout_of_each_next = attrgetter("_timeout")
"""Seconds; 0 disables the timeout, None means no timeout."""
client_of_stream = attrgetter("_client")
target_of_stream = attrgetter("_target")
"""A collection, a database, or a client."""
cursor_of_stream = attrgetter("_cursor")
"""The current cursor. A resume creates another one."""
collection_of_find = attrgetter("collection")
"""The collection of a find's cursor. Other cursors do not have it."""
