"""What runs in place of GridFS's methods: each has one deadline, and so has a stream for its life.

Source: Client Side Operations Timeout, "GridFS API". A method's cursors, and those of a stream, are
within its deadline, and so is what an application's own stream does meanwhile: but that is not
interrupted, and may take longer.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure

from pymongo_resilience.binding import policy_of
from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import cursor_makers, driver, gridfs_errors
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.driver import gridfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.methods import Method
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper

    Begin = Callable[[Any], driver.RunningTimeout | None]

_TIMEOUT = "_pymongo_resilience_timeout"
OPENING = (
    "get", "get_last_version", "get_version", "new_file",
    "open_download_stream", "open_download_stream_by_name",
    "open_upload_stream", "open_upload_stream_with_id",
)  # fmt: skip
"""What they return is a stream, whose life begins with the call."""
WHOLE = (
    "delete", "delete_by_name", "download_to_stream", "download_to_stream_by_name", "exists",
    "find_one", "list", "put", "rename", "rename_by_name",
    "upload_from_stream", "upload_from_stream_with_id",
)  # fmt: skip
"""They leave nothing behind that runs on: not the file that find_one may never read."""
OF_A_STREAM = (
    "abort", "close", "open", "read", "readchunk", "readline", "readlines", "seek", "set",
    "to_list", "write", "writelines", "__next__", "__anext__",
)  # fmt: skip


def of_gridfs(runtime: Runtime) -> Iterator[tuple[type, str, Wrapper | Method]]:
    """What to wrap, and with what. A method that a class does not have itself is left out."""

    def begin(bucket: Any) -> driver.RunningTimeout | None:
        return _begin(runtime, gridfs.files_of_bucket(bucket))

    def resume(stream: Any) -> driver.RunningTimeout | None:
        # A stream that no method has opened begins with what it does first.
        if _TIMEOUT not in vars(stream):
            _note(stream, _begin(runtime, gridfs.files_of_stream(stream)))
        timeout: driver.RunningTimeout | None = vars(stream)[_TIMEOUT]
        return timeout

    for owner in gridfs.gridfs_buckets():
        yield owner, "find", cursor_makers.find(runtime, gridfs.files_of_bucket)
        for name in (*OPENING, *WHOLE):
            if name in vars(owner):
                yield owner, name, _wrapper(runtime, owner, name, begin, name in OPENING)
    for owner in gridfs.gridfs_streams():
        for name in OF_A_STREAM:
            if name in vars(owner):
                yield owner, name, _wrapper(runtime, owner, name, resume, False)


def _begin(runtime: Runtime, files: Any) -> driver.RunningTimeout | None:
    seconds = runtime.timeout_of(
        files.database.client, (files.database.name, files.name), policy_of(files)
    )
    return None if seconds is None else driver.RunningTimeout.begin(seconds)


def _note(stream: Any, timeout: driver.RunningTimeout | None) -> None:
    # Not as an attribute: what is set on an upload stream becomes a field of the file.
    vars(stream)[_TIMEOUT] = timeout


def _wrapper(runtime: Runtime, owner: type, name: str, begin: Begin, opening: bool) -> Wrapper:
    def enter(instance: Any) -> tuple[driver.RunningTimeout | None, AbstractContextManager[None]]:
        if not runtime.switch.on:
            return None, NO_DEADLINE
        try:
            timeout = begin(instance)
            if timeout is None:
                return None, NO_DEADLINE
            return timeout, timeout.within_others().resume()
        except Exception:
            logger.exception("a fault of pymongo-resilience before %s of GridFS", name)
            return None, NO_DEADLINE

    def leave(result: Any, timeout: driver.RunningTimeout | None) -> Any:
        try:
            if opening and runtime.switch.on:
                _note(result, timeout)
        except Exception:
            logger.exception("a fault of pymongo-resilience after %s of GridFS", name)
        return result

    def sync_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        timeout, deadline = enter(instance)
        try:
            with deadline:
                result = wrapped(*args, **kwargs)
        except OperationFailure as error:
            expiry = gridfs_errors.expiry_behind(error)
            if expiry is None:
                raise
            raise expiry from error
        return leave(result, timeout)

    async def async_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        timeout, deadline = enter(instance)
        try:
            with deadline:
                result = await wrapped(*args, **kwargs)
        except OperationFailure as error:
            expiry = gridfs_errors.expiry_behind(error)
            if expiry is None:
                raise
            raise expiry from error
        return leave(result, timeout)

    return async_wrapper if inspect.iscoroutinefunction(vars(owner)[name]) else sync_wrapper
