"""One error type for every expired deadline, which is the driver's own class as well.

Source: Client Side Operations Timeout, "Errors" and "Error Transformations".
"""

from __future__ import annotations

import re
from typing import Any

from pymongo.errors import PyMongoError

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.rules.retry_rules import Rule, is_over
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.error_texts import Origin, attempts_text
from pymongo_resilience_instrumentation.limits import NEVER, NO_DEADLINE
from pymongo_resilience_instrumentation.operation import Operation

from . import precedence

OVERDUE = re.compile(r"(?<=remaining timeout:)-[\d.]+")
"""What pymongo states to be left of a timeout that is over."""


def timed_out(
    cause: PyMongoError,
    origin: Origin,
    *,
    timeout_s: float,
    elapsed_s: float,
    name: str = "operation",
    advice: str = "",
) -> PyMongoError:
    """An OperationTimeoutError that ``except type(cause)`` catches too, with its text, labels, code
    and details. ``advice``: what else the timeout is for."""
    server, stage, attempts, reasons = origin
    where = f"on {server}" if server else "without a server"
    came = stage.value.replace("_", " ")
    text = (
        f"{name} exceeded its timeout of {timeout_s:.3g} s{advice} after "
        f"{elapsed_s:.3f} s and {attempts_text(attempts)}, the last {where} ({came}): "
        f"{OVERDUE.sub('0', str(cause))}"
    )
    facts = {
        "timeout_s": timeout_s,
        "elapsed_s": elapsed_s,
        "attempts": attempts,
        "retry_reasons": tuple(reasons),
        "retry_rule": Rule.DEADLINE,
        "server": server,
        "stage": stage,
    }
    return _again(type(cause), (text,), vars(cause) | facts, cause)


def as_timeout(operation: Operation, error: BaseException | None) -> BaseException | None:
    """Return the error that an operation ends with: an OperationTimeoutError if its time is over,
    also if that was raised outside of the driver's loop; else the error itself."""
    timeout, outcome = operation.limits.timeout, operation.outcome
    if not timeout or error is outcome.final_error or not isinstance(error, PyMongoError):
        return error
    if isinstance(error, OperationTimeoutError) or not classify.expired(error):
        return error
    gone, stage = elapsed(operation), classify.stage_of(error)
    if not is_over(timeout - gone, timeout, stage):
        return error
    attempts, reasons = outcome.number_of_attempts, outcome.retry_reasons
    return timed_out(
        error,
        Origin(operation.server_text(), stage, attempts, reasons),
        timeout_s=timeout,
        elapsed_s=gone,
        name=operation.call.method or operation.name,
        advice=precedence.advice(operation),
    )


def elapsed(operation: Operation) -> float:
    """Seconds of its timeout that are gone, which may have begun before the operation."""
    limits = operation.limits
    if limits.without_request is not None:
        return operation.elapsed()
    if limits.cursor is not None and limits.cursor.ends != NEVER:
        return driver.csot.now() - limits.cursor.began
    if limits.transaction is not None:
        return driver.csot.now() - limits.transaction.began
    own, left = operation.elapsed(), driver.csot.remaining()
    if left is None or limits.deadline is not NO_DEADLINE:
        return own
    return max(own, (limits.timeout or 0) - left)


class _TimedOutError(OperationTimeoutError):
    """What every class made here adds to the driver's."""

    _of: type[PyMongoError]
    """The driver's class."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def timeout(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # Not as the driver pickles its own: a bulk write's error loses its labels, and those whose
        # constructors take more than a text cannot be made again (pymongo 4.20:
        # ClientBulkWriteException and EncryptedCollectionError, a TypeError).
        cause = self.__cause__
        was = cause and (type(cause), cause.args, vars(cause))
        return _again, (self._of, self.args, vars(self), was)


_classes: dict[type, Any] = {}


def _timeout_class(cls: type) -> Any:
    if cls not in _classes:
        # As the application names it, and spans.
        body = {"__module__": "pymongo_resilience", "_of": cls}
        _classes.setdefault(cls, type("OperationTimeoutError", (_TimedOutError, cls), body))
    return _classes[cls]


def _again(
    cls: type,
    args: tuple[Any, ...],
    facts: dict[str, Any],
    cause: BaseException | tuple[Any, ...] | None,
) -> PyMongoError:
    """``cause``: the error, or what makes it again after pickling."""
    error: PyMongoError = _bare(_timeout_class(cls), args, facts)
    error.__cause__ = _bare(*cause) if isinstance(cause, tuple) else cause
    return error


def _bare(cls: Any, args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(facts)
    return error
