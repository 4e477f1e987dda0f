"""Containment of the library's own bugs: they are logged, and never make an operation fail."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo_resilience.redaction import RedactionFilter

if TYPE_CHECKING:
    from collections.abc import Callable

_internal_error_types: tuple[type[Exception], ...] = (
    ArithmeticError, AttributeError, ImportError, LookupError, NameError, ReferenceError,
    RuntimeError, StopIteration, TypeError, ValueError,
)  # fmt: skip

T = TypeVar("T")
OUR_FRAMES = 3
"""Stack frames between the caller of the logger and ``logging``."""


def internal_error_types() -> tuple[type[Exception], ...]:
    """Return the exception classes that are treated as bugs of the library.

    Only these are caught around the library's own code. Other classes may come from a signal
    handler of the application, such as Celery's SoftTimeLimitExceeded, a TimeoutError or an
    OSError, and must reach the application.
    """
    return _internal_error_types


def catch_also(*classes: type[Exception]) -> None:
    """Also treat errors of these classes, those of pymongo, as bugs of the library."""
    global _internal_error_types  # noqa: PLW0603 - one for the process
    _internal_error_types += classes


def raised_in(error: BaseException, *folders: str) -> bool:
    """Return True if code in one of the folders raised the error itself.

    False if a function that it called raised the error, such as a callback of the application, or
    if a signal handler did.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame is the one that raised the error.
    return bool(frames) and frames[-1].filename.startswith(folders)


class ForeignError(RuntimeError):
    """Raised in place of ``foreign``, an exception from a hook, a span processor, or the like."""

    def __init__(self, foreign: Exception) -> None:
        super().__init__(f"{type(foreign).__name__} from foreign code")
        self.foreign = foreign


def wrap_foreign_error(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code inside a block that catches ``internal_error_types()``.

    Raises:
        ForeignError: If the foreign code raises.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        # Mark the error, so that a boundary does not mistake it for a bug of the library.
        raise ForeignError(error) from error


def call_handlers(log: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Log a record. If a handler of the application raises, print its error as logging itself
    does.
    """
    try:
        log(*args, **kwargs)
    except Exception:  # noqa: BLE001 - a handler may raise anything
        # The same conditions as in ``logging.Handler.handleError``.
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()


def _call(function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    return function(*args, **kwargs)


class _Logger(logging.LoggerAdapter[logging.Logger]):
    within: Callable[..., object] = staticmethod(_call)
    """Calls a function with its arguments. The instrumentation replaces it to mark what handlers
    do.
    """

    # LoggerAdapter's other methods (``warning``, ``exception`` and so on) all call this one.
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        stacklevel = kwargs.pop("stacklevel", 1) + OUR_FRAMES
        log = super().log
        call_handlers(self.within, log, level, msg, *args, stacklevel=stacklevel, **kwargs)


logger = _Logger(logging.getLogger("pymongo_resilience"), {})
logger.logger.addFilter(RedactionFilter())


class contain_internal_errors:  # noqa: N801 - as contextlib's own
    """Contain internal errors in a block: log them, and continue after the block.

    Args:
        what: The end of the log line, which describes where the error was raised.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        # Do not contain what a signal handler may have raised; see ``internal_error_types``.
        if error is None or not isinstance(error, internal_error_types()):
            return False
        text = "internal error in pymongo-resilience %s"
        # The log record names the line of the block, not this one.
        logger.error(text, self._what, exc_info=error, stacklevel=2)
        return True
