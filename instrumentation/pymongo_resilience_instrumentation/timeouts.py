"""One error type for every expired deadline, which is the driver's own class as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience_instrumentation.origins import attempts_text

if TYPE_CHECKING:
    from pymongo.errors import PyMongoError


def timed_out(
    cause: PyMongoError, *, timeout_s: float, elapsed_s: float, attempts: int, server: str | None
) -> PyMongoError:
    """An OperationTimeoutError that ``except type(cause)`` catches too; ``__cause__`` is set.

    Its text contains that of ``cause``; labels, code and details are those of ``cause``.
    """
    cls = _timeout_class(type(cause))
    error: PyMongoError = cls.__new__(cls)
    error.__dict__.update(cause.__dict__)
    where = f", the last on {server}" if server else ""
    error.args = (
        (
            f"operation exceeded its timeout of {timeout_s:.3g} s after {elapsed_s:.3f} s "
            f"and {attempts_text(attempts)}{where}: {cause}"
        ),
    )
    error.__dict__.update(
        timeout_s=timeout_s, elapsed_s=elapsed_s, attempts=attempts, server=server
    )
    error.__cause__ = cause
    return error


class _TimedOutError(OperationTimeoutError):
    """What every class made here adds to the driver's."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def timeout(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            self.__cause__,
            self.timeout_s,
            self.elapsed_s,
            self.attempts,
            self.server,
        )


_classes: dict[type, Any] = {}


def _timeout_class(cls: type) -> Any:
    made = _classes.get(cls)
    if made is None:
        made = type("OperationTimeoutError", (_TimedOutError, cls), {"__module__": __name__})
        _classes[cls] = made
    return made


def _rebuild(
    cause: PyMongoError, timeout_s: float, elapsed_s: float, attempts: int, server: str | None
) -> PyMongoError:
    return timed_out(
        cause, timeout_s=timeout_s, elapsed_s=elapsed_s, attempts=attempts, server=server
    )
