"""The error for an expired deadline, which is also an instance of pymongo's own class.

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
"""The negative remaining time in pymongo's text for a timeout that has expired."""


def timed_out(
    cause: PyMongoError,
    origin: Origin,
    *,
    timeout_s: float,
    elapsed_s: float,
    name: str = "operation",
    advice: str = "",
) -> PyMongoError:
    """Return an OperationTimeoutError that ``except type(cause)`` also catches.

    It has the text, labels, code and details of ``cause``. ``advice`` becomes the
    last sentence of the text.
    """
    server, stage, attempts, reasons = origin
    where = f"on {server}" if server else "without a server"
    progress = stage.value.replace("_", " ")
    text = (
        f"{name} exceeded its timeout of {timeout_s:.3g} s after "
        f"{elapsed_s:.3f} s and {attempts_text(attempts)}, the last {where} ({progress}): "
        f"{OVERDUE.sub('0', str(cause))}"
    )
    if advice:
        text += f"{'' if text.endswith('.') else '.'} {advice}"
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
    """Return the error that an operation ends with.

    That is an OperationTimeoutError if its time is over, even if the error was raised outside of
    pymongo's loop; otherwise ``error`` itself.
    """
    timeout, outcome = operation.limits.timeout, operation.outcome
    # The executor has decided about this error already.
    if not timeout or error is outcome.final_error or not isinstance(error, PyMongoError):
        return error
    if isinstance(error, OperationTimeoutError) or not classify.expired(error):
        return error
    spent, stage = elapsed(operation), classify.stage_of(error)
    if not is_over(timeout - spent, timeout, stage):
        return error
    attempts, reasons = outcome.number_of_attempts, outcome.retry_reasons
    return timed_out(
        error,
        Origin(operation.server_text(), stage, attempts, reasons),
        timeout_s=timeout,
        elapsed_s=spent,
        name=operation.call.method or operation.name,
        advice=precedence.advice(operation),
    )


def elapsed(operation: Operation) -> float:
    """Return the seconds since the operation's timeout began, which may have been before the
    operation.
    """
    limits = operation.limits
    if limits.without_request is not None:
        return operation.elapsed()
    if limits.cursor is not None and limits.cursor.ends != NEVER:
        return driver.csot.now() - limits.cursor.began
    if limits.transaction is not None:
        return driver.csot.now() - limits.transaction.began
    # The timeout may have begun before the operation: in a block of ``pymongo.timeout``.
    own, remaining = operation.elapsed(), driver.csot.remaining()
    if remaining is None or limits.deadline is not NO_DEADLINE:
        return own
    return max(own, (limits.timeout or 0) - remaining)


class _TimedOutError(OperationTimeoutError):
    """The part that all classes made here share."""

    _of: type[PyMongoError]
    """pymongo's class."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def timeout(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # Do not pickle it as pymongo pickles its own errors. In pymongo 4.20, a bulk write's error
        # loses its labels, and ClientBulkWriteException and EncryptedCollectionError cannot be
        # unpickled at all (TypeError), because their constructors take more than a text.
        cause = self.__cause__
        was = cause and (type(cause), cause.args, vars(cause))
        return _again, (self._of, self.args, vars(self), was)


_classes: dict[type, Any] = {}


def _timeout_class(cls: type) -> Any:
    if cls not in _classes:
        # The module under which applications import the error, and which spans show.
        body = {"__module__": "pymongo_resilience", "_of": cls}
        # Another thread may have created the class in the meantime. ``setdefault`` keeps one of
        # them, so that ``except`` and pickle see a single class.
        _classes.setdefault(cls, type("OperationTimeoutError", (_TimedOutError, cls), body))
    return _classes[cls]


def _again(
    cls: type,
    args: tuple[Any, ...],
    facts: dict[str, Any],
    cause: BaseException | tuple[Any, ...] | None,
) -> PyMongoError:
    """Create the error. ``cause`` is the original error, or the arguments to create it after
    unpickling.
    """
    error: PyMongoError = _bare(_timeout_class(cls), args, facts)
    error.__cause__ = _bare(*cause) if isinstance(cause, tuple) else cause
    return error


def _bare(cls: Any, args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    # Do not call the constructor, because constructors of pymongo's errors differ.
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(facts)
    return error
