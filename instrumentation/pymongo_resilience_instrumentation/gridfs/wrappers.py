"""What runs in place of GridFS's methods: each has one deadline, and so has a stream for its life.

A timeout of the library's configuration bounds each method of a stream, and not its life.

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
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.cursors import creation
from pymongo_resilience_instrumentation.driver import gridfs

from . import errors as gridfs_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.interception.methods import Method, Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime

    Begin = Callable[[Any], tuple[driver.deadline.RunningTimeout | None, bool]]

_TIMEOUT = "_pymongo_resilience_timeout"
_NEW = object()
"""Of a stream that no method of ours has opened."""
_ANEW = object()
"""Kept by a stream in place of a timeout: each of its methods has one of its own."""
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

    def begin(bucket: Any) -> tuple[driver.deadline.RunningTimeout | None, bool]:
        return _begin(runtime, gridfs.files_of_bucket(bucket))

    def resume(stream: Any) -> tuple[driver.deadline.RunningTimeout | None, bool]:
        noted = vars(stream).get(_TIMEOUT, _NEW)
        if noted is not _NEW and noted is not _ANEW:
            return noted, False
        begun = _begin(runtime, gridfs.files_of_stream(stream))
        if noted is _NEW:
            # A stream that no method has opened begins with what it does first.
            _note(stream, *begun)
        return begun

    for owner in gridfs.gridfs_buckets():
        yield owner, "find", creation.find(runtime, gridfs.files_of_bucket)
        for name in (*OPENING, *WHOLE):
            if name in vars(owner):
                yield owner, name, _wrapper(runtime, owner, name, begin, name in OPENING)
    for owner in gridfs.gridfs_streams():
        for name in OF_A_STREAM:
            if name in vars(owner):
                yield owner, name, _wrapper(runtime, owner, name, resume, False)


def _begin(runtime: Runtime, files: Any) -> tuple[driver.deadline.RunningTimeout | None, bool]:
    """What begins now, and whether each method of a stream has it anew."""
    seconds, by_iteration = runtime.timeout_of(
        files.database.client, (files.database.name, files.name), policy_of(files)
    )
    return None if seconds is None else driver.deadline.RunningTimeout.begin(seconds), by_iteration


def _note(stream: Any, timeout: driver.deadline.RunningTimeout | None, by_iteration: bool) -> None:
    # Not as an attribute: what is set on an upload stream becomes a field of the file.
    vars(stream)[_TIMEOUT] = _ANEW if by_iteration else timeout


def _wrapper(runtime: Runtime, owner: type, name: str, begin: Begin, opening: bool) -> Wrapper:
    none = None, False

    def enter(
        instance: Any,
    ) -> tuple[tuple[driver.deadline.RunningTimeout | None, bool], AbstractContextManager[None]]:
        if not runtime.enabled_flag.acts():
            return none, NO_DEADLINE
        try:
            begun = begin(instance)
            timeout, _ = begun
            if timeout is None:
                return begun, NO_DEADLINE
            return begun, timeout.within_others().resume()
        except Exception:
            logger.exception("internal error in pymongo-resilience before %s of GridFS", name)
            return none, NO_DEADLINE

    def leave(result: Any, begun: tuple[driver.deadline.RunningTimeout | None, bool]) -> Any:
        try:
            if opening and runtime.enabled_flag.acts():
                _note(result, *begun)
        except Exception:
            logger.exception("internal error in pymongo-resilience after %s of GridFS", name)
        return result

    def sync_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        begun, deadline = enter(instance)
        try:
            try:
                with deadline:
                    result = wrapped(*args, **kwargs)
            except BaseException as error:
                deadline.__exit__(None, error, None)
                raise
        except OperationFailure as error:
            expiry = gridfs_errors.expiry_behind(error)
            if expiry is None:
                raise
            raise expiry from error
        return leave(result, begun)

    async def async_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        begun, deadline = enter(instance)
        try:
            try:
                with deadline:
                    result = await wrapped(*args, **kwargs)
            except BaseException as error:
                deadline.__exit__(None, error, None)
                raise
        except OperationFailure as error:
            expiry = gridfs_errors.expiry_behind(error)
            if expiry is None:
                raise
            raise expiry from error
        return leave(result, begun)

    return async_wrapper if inspect.iscoroutinefunction(vars(owner)[name]) else sync_wrapper
