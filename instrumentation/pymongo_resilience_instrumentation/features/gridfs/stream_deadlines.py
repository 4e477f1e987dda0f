"""What runs in place of GridFS's methods: each has one deadline, and so has a stream for its life.

A timeout of the library's configuration bounds each command, and neither a stream nor a method,
which may read or write a large file.

Source: Client Side Operations Timeout, "GridFS API". A method's cursors, and those of a stream, are
within its deadline, and so is what an application's own stream does meanwhile: but that is not
interrupted, and may take longer.
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
"""What is kept for a stream that no method of ours has opened."""
_PER_CALL = object()
"""Kept by a stream in place of a timeout: each command has one of its own, or, in a block of the
application's, each method."""
OPENING = (
    "get", "get_last_version", "get_version", "new_file",
    "open_download_stream", "open_download_stream_by_name",
    "open_upload_stream", "open_upload_stream_with_id",
)  # fmt: skip
"""What they return is a stream, whose life begins with the operation."""
WHOLE = (
    "delete", "delete_by_name", "download_to_stream", "download_to_stream_by_name", "exists",
    "find_one", "list", "put", "rename", "rename_by_name",
    "upload_from_stream", "upload_from_stream_with_id",
)  # fmt: skip
"""They leave nothing behind that runs on: not the file that find_one may never read."""
FOR_STREAM = (
    "abort", "close", "open", "read", "readchunk", "readline", "readlines", "seek", "set",
    "to_list", "write", "writelines", "__next__", "__anext__",
)  # fmt: skip


def of_gridfs(runtime: Runtime) -> Iterator[tuple[type, str, Wrapper | Interceptor]]:
    """What to wrap, and with what. A method that a class does not have itself is left out."""
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
        """What a stream keeps of it, for its life."""


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
        # pymongo would apply a client's own timeoutMS to the method, over which the rule was given.
        timeout = None if seconds is None else driver.csot.Timeout.begin(seconds)
        return _Begun(instance, timeout, _PER_CALL if by_iteration else timeout)

    def failed(self, _entered: object, error: BaseException, *_: Any) -> BaseException:
        return expiry_behind(error) or error


class BucketMethod(_Method):
    """``opens``: it returns a stream."""

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
            # A stream that no method has opened begins with what it does first.
            _keep(stream, begun.kept)
        return begun


def _keep(stream: object, timeout: object) -> None:
    # Not as an attribute: what is set on an upload stream becomes a field of the file.
    vars(stream)[_TIMEOUT] = timeout


def expiry_behind(error: BaseException) -> PyMongoError | None:
    """The timeout to raise for the error of a ``write`` or a ``close`` that was made of one.

    While it uploads chunks, gridfs raises another error than the bulk write's, of the class that
    one write would have raised (pymongo 4.20, ``GridIn._flush_data``): that an expired deadline was
    the cause would be lost.
    """
    with contain_internal_errors("while preparing an error of GridFS"):
        return _expiry_behind(error) if isinstance(error, OperationFailure) else None
    return None


def _expiry_behind(error: OperationFailure) -> PyMongoError | None:
    made_of = error.__context__
    if isinstance(error, OperationTimeoutError) or not isinstance(made_of, OperationTimeoutError):
        return None
    if not classify.expired(error):
        return None
    return timed_out(
        error,
        Origin(made_of.server, made_of.stage, made_of.attempts, made_of.retry_reasons),
        timeout_s=made_of.timeout_s,
        elapsed_s=made_of.elapsed_s,
    )
