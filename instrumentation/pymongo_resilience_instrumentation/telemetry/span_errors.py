"""An error on a span, and the end of a span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Status, StatusCode

from pymongo_resilience.internal_errors import deliver
from pymongo_resilience.redaction import stack
from pymongo_resilience_instrumentation.failures.safe_texts import qualified_name, safe_message

from . import semconv

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def error_attributes(error: BaseException, *, quotes: bool = False) -> dict[str, Any]:
    """The exception as attributes, and the frames without their source.

    The server's text carries document values, so it stays here, and class, code and code name go
    out. ``quotes``: the client shows the text of its commands, and of its errors as well.
    """
    message = _text(error) if quotes else safe_message(error)
    return {
        semconv.EXCEPTION_TYPE: qualified_name(error),
        semconv.EXCEPTION_MESSAGE: message,
        semconv.EXCEPTION_STACKTRACE: "".join([*stack(error), message]),
    }


def record_error(span: Span, error: BaseException, *, quotes: bool = False) -> None:
    if span.is_recording():
        attributes = error_attributes(error, quotes=quotes)
        span.set_attributes(attributes)
        span.set_status(Status(StatusCode.ERROR, attributes[semconv.EXCEPTION_MESSAGE]))


def end_span(
    span: Span,
    error: BaseException | None = None,
    *,
    quotes: bool = False,
    ended_ns: int | None = None,
) -> None:
    """With what it ended with; ended in any case, whatever the error is like."""
    try:
        if error is not None:
            record_error(span, error, quotes=quotes)
    finally:
        span.end(ended_ns)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - str(error) may raise
        deliver(fault)
        return safe_message(error)
