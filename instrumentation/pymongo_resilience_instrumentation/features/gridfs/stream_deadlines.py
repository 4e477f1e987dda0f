"""Wrappers of GridFS's methods. Each method has one deadline, and a stream has one for its whole
life.

A timeout from the library's configuration applies to each command instead, because a method or a
stream may transfer a large file. The cursors of a method or a stream share its deadline. The
application's own file objects are not interrupted and may take longer. Source: Client Side
Operations Timeout, "GridFS API".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.bound_policies import policy_of
from pymongo_resilience_instrumentation.driver import gridfs
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.error_texts import Origin
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, Wrapper
from pymongo_resilience_instrumentation.limits import NO_DEADLINE
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

_TIMEOUT = "_pymongo_resilience_timeout"
_UNSET = object()
"""Stands for the missing timeout of a stream that no wrapped method has opened."""
_PER_CALL = object()
"""Stored on a stream in place of a timeout if each command has its own timeout. Inside a block with
a timeout, each method has one.
"""
OPENING = (
    "get", "get_last_version", "get_version", "new_file",
    "open_download_stream", "open_download_stream_by_name",
    "open_upload_stream", "open_upload_stream_with_id",
)  # fmt: skip
"""Methods that return a stream. Its life begins with the method."""
WHOLE = (
    "delete", "delete_by_name", "download_to_stream", "download_to_stream_by_name", "exists",
    "find_one", "list", "put", "rename", "rename_by_name",
    "upload_from_stream", "upload_from_stream_with_id",
)  # fmt: skip
"""Methods whose work is complete when they return. (find_one returns a file that may never be
read.)
"""
FOR_STREAM = (
    "abort", "close", "open", "read", "readchunk", "readline", "readlines", "seek", "set",
    "to_list", "write", "writelines", "__next__", "__anext__",
)  # fmt: skip


def of_gridfs(runtime: Runtime) -> Iterator[tuple[type, str, Wrapper | Interceptor]]:
    """Yield the methods to wrap, and their interceptors. Inherited methods are left out."""
    for owner in gridfs.gridfs_buckets():
        for name in (*OPENING, *WHOLE):
            if name in vars(owner):
                yield owner, name, BucketMethod(runtime, opens=name in OPENING)
    for owner in gridfs.gridfs_streams():
        for name in FOR_STREAM:
            if name in vars(owner):
                yield owner, name, StreamMethod(runtime)


class _Begun(Entered):
    __slots__ = ("kept",)

    def __init__(self, instance: object, timeout: driver.csot.Timeout | None, kept: object):
        deadline = NO_DEADLINE if timeout is None else timeout.within_others().resume()
        super().__init__(instance, deadline)
        self.kept = kept
        """Stored on the stream for its whole life: a timeout or ``_PER_CALL``."""


class _Method(Interceptor):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _begin(self, instance: Any, files: Any) -> _Begun:
        names = files.database.name, files.name
        seconds, _, by_iteration = self._runtime.timeouts.timeout_for_group(
            files.database.client, names, policy_of(files)
        )
        if by_iteration and files.database.client.options.timeout is None:
            return _Begun(instance, None, _PER_CALL)
        # pymongo would apply the client's own timeoutMS to the method, although the namespace rule
        # takes precedence over it.
        timeout = None if seconds is None else driver.csot.Timeout.begin(seconds)
        return _Begun(instance, timeout, _PER_CALL if by_iteration else timeout)

    def failed(self, _entered: object, error: BaseException, *_: Any) -> BaseException:
        return expiry_behind(error) or error


class BucketMethod(_Method):
    """A method of a bucket. ``opens`` is True if it returns a stream."""

    def __init__(self, runtime: Runtime, *, opens: bool) -> None:
        super().__init__(runtime)
        self._opens = opens

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Begun:
        return self._begin(args[0], gridfs.files_of_bucket(args[0]))

    def succeeded(self, begun: _Begun, result: object) -> Any:
        if self._opens:
            with contain_internal_errors("after a stream of GridFS was opened"):
                _keep(result, begun.kept)
        return result


class StreamMethod(_Method):
    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Begun:
        stream = args[0]
        kept = vars(stream).get(_TIMEOUT, _UNSET)
        if kept is not _UNSET and kept is not _PER_CALL:
            return _Begun(stream, kept, kept)
        begun = self._begin(stream, gridfs.files_of_stream(stream))
        if kept is _UNSET:
            # No wrapped method has opened this stream, so its life begins with its first method.
            _keep(stream, begun.kept)
        return begun


def _keep(stream: object, timeout: object) -> None:
    # Do not set an attribute: on an upload stream, attributes become fields of the file.
    vars(stream)[_TIMEOUT] = timeout


def expiry_behind(error: BaseException) -> PyMongoError | None:
    """Return the timeout to raise in place of an error of ``write`` or ``close`` that a timeout
    caused.

    While it uploads chunks, gridfs replaces the bulk write's error by one of the class that a
    single write would have raised (pymongo 4.20, ``GridIn._flush_data``). That would hide the
    expired deadline.
    """
    with contain_internal_errors("while preparing an error of GridFS"):
        return _expiry_behind(error) if isinstance(error, OperationFailure) else None
    return None


def _expiry_behind(error: OperationFailure) -> PyMongoError | None:
    cause = error.__context__
    if isinstance(error, OperationTimeoutError) or not isinstance(cause, OperationTimeoutError):
        return None
    if not classify.expired(error):
        return None
    return timed_out(
        error,
        Origin(cause.server, cause.stage, cause.attempts, cause.retry_reasons),
        timeout_s=cause.timeout_s,
        elapsed_s=cause.elapsed_s,
    )
