"""Cursors and change streams: what their timeouts need to know of them, and to set."""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pymongo.cursor import CursorType

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation.driver.time_limits import LIMIT, limited_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.addresses import Address

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


def max_await_time_ms(cursor: Any) -> int | None:
    """What the application gave, for a cursor that waits for new documents; milliseconds."""
    given: int | None = getattr(cursor, "_max_await_time_ms", None)
    return given


def cursor_address(operation: Any, address: Any) -> Any:
    """What a killCursors for the cursor of a getMore is sent to, on the server at ``address``."""
    made = importlib.import_module("pymongo.message")._CursorAddress
    return made(address, f"{operation.db}.{operation.coll}")


def set_timeout_of_each_next(stream: Any, seconds: float) -> None:
    """The driver then puts it in force around a whole ``next``, a resume included."""
    stream._timeout = seconds


def timeout_of_each_next(stream: Any) -> float | None:
    """Seconds, 0 is without end."""
    seconds: float | None = stream._timeout
    return seconds


def client_of_stream(stream: Any) -> Any:
    return stream._client


def target_of_stream(stream: Any) -> Any:
    """A collection, a database or a client."""
    return stream._target


def cursor_of_stream(stream: Any) -> Any:
    """The one it reads from now; a resume makes another."""
    return stream._cursor


def sending_without_max_time(func: Callable[..., Any], *, keeps_own: bool) -> Callable[..., Any]:
    """``func``, what the retry loop calls once it has a connection, such that no command of it
    carries maxTimeMS. The deadline holds for the connection all the same.

    A connection is one operation's alone, and so may have a method of its own for as long.
    ``keeps_own``: a maxTimeMS that is in the command already is sent.
    """
    if not inspect.iscoroutinefunction(func):

        def sync(*args: Any) -> Any:
            with _without_max_time(args, keeps_own):
                return func(*args)

        return sync

    async def asynchronous(*args: Any) -> Any:
        with _without_max_time(args, keeps_own):
            return await func(*args)

    return asynchronous


@contextmanager
def _without_max_time(args: tuple[Any, ...], keeps_own: bool) -> Iterator[None]:
    connection: Any = next((each for each in args if hasattr(each, "apply_timeout")), None)
    if not hasattr(connection, "__dict__"):
        # Better with a limit than not at all.
        logger.error("a fault of pymongo-resilience: a cursor's first command keeps its maxTimeMS")
        yield
        return
    apply = connection.apply_timeout

    def apply_timeout(*given: Any, **named: Any) -> Any:
        command = limited_command(given, named)
        if command is not None and not keeps_own:
            # A cursor's max_time_ms, which a timeout sets aside.
            command.pop(LIMIT, None)
        # (cmd) in 4.20, (client, cmd) in 4.17; a getMore has always given none.
        if "cmd" in named:
            return apply(*given, cmd=None)
        return apply(*given[:-1], None)

    vars(connection)["apply_timeout"] = apply_timeout
    try:
        yield
    finally:
        del vars(connection)["apply_timeout"]
