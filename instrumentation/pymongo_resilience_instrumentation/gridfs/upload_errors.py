"""What gridfs makes of an error while it uploads a file's chunks.

It raises another error than the bulk write's, of the class that one write would have raised
(pymongo 4.20, ``GridIn._flush_data``): that an expired deadline was the cause would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo.errors import OperationFailure

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

if TYPE_CHECKING:
    from pymongo.errors import PyMongoError


def expiry_behind(error: BaseException) -> PyMongoError | None:
    """The timeout to raise for the error of a ``write`` or a ``close`` that was made of one."""
    with shielded("while preparing an error of GridFS"):
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
        timeout_s=made_of.timeout_s,
        elapsed_s=made_of.elapsed_s,
        attempts=made_of.attempts,
        reasons=made_of.retry_reasons,
        server=made_of.server,
        stage=made_of.stage,
    )
