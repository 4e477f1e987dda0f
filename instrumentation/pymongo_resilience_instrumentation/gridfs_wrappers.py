"""What runs in place of the methods that upload a file's chunks.

gridfs makes another error of a bulk write's, of the class that one write would have raised (pymongo
4.20, ``GridIn._flush_data``): that an expired deadline was the cause would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience_instrumentation import failures
from pymongo_resilience_instrumentation.timeouts import timed_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper


def upload(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """A ``write`` or a ``close``: its error is the timeout that it was made of, where it was."""

    def sync_wrapper(
        wrapped: Callable[..., Any], _file: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return wrapped(*args, **kwargs)
        except OperationFailure as error:
            _raise_expired(runtime, error)
            raise

    async def async_wrapper(
        wrapped: Callable[..., Any], _file: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return await wrapped(*args, **kwargs)
        except OperationFailure as error:
            _raise_expired(runtime, error)
            raise

    return async_wrapper if asynchronous else sync_wrapper


def _raise_expired(runtime: Runtime, error: OperationFailure) -> None:
    made_of = error.__context__
    if not runtime.switch.on or isinstance(error, OperationTimeoutError):
        return
    if isinstance(made_of, OperationTimeoutError) and failures.expired(error):
        raise timed_out(
            error,
            timeout_s=made_of.timeout_s,
            elapsed_s=made_of.elapsed_s,
            attempts=made_of.attempts,
            server=made_of.server,
            stage=made_of.stage,
        )
