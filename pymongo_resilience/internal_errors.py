"""Internal errors, which are logged and fail nothing."""

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
"""Between who logs and logging."""


def internal_error_types() -> tuple[type[Exception], ...]:
    """What a bug of ours raises, and so what is caught around our own code. What a signal handler
    raises must reach the application: Celery's SoftTimeLimitExceeded, or a TimeoutError, an OSError
    or an AssertionError of others."""
    return _internal_error_types


def catch_also(*classes: type[Exception]) -> None:
    """Take errors of these classes for a bug of ours, too: those of the driver."""
    global _internal_error_types  # noqa: PLW0603 - one for the process
    _internal_error_types += classes


def raised_in(error: BaseException, *folders: str) -> bool:
    """Return True if code below one of the folders raised the error, and nothing that it called.

    What a signal handler or a callback of the application raises was not.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(folders)


class ForeignError(RuntimeError):
    """A hook, a span processor or the like has raised ``foreign``."""

    def __init__(self, foreign: Exception) -> None:
        super().__init__(f"{type(foreign).__name__} from foreign code")
        self.foreign = foreign


def wrap_foreign_error(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code inside of a block that catches ``internal_error_types()``.

    Raises ForeignError.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise ForeignError(error) from error


def call_handlers(log: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Log something. A handler of the application's that raises fails nothing: its error is printed
    as ``logging.Handler.handleError`` prints one."""
    try:
        log(*args, **kwargs)
    except Exception:  # noqa: BLE001 - a handler may raise anything
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()


def _call(function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    return function(*args, **kwargs)


class _Logger(logging.LoggerAdapter[logging.Logger]):
    within: Callable[..., object] = staticmethod(_call)
    """Calls a function with its arguments: what is logged is handled in there."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        stacklevel = kwargs.pop("stacklevel", 1) + OUR_FRAMES
        log = super().log
        call_handlers(self.within, log, level, msg, *args, stacklevel=stacklevel, **kwargs)


logger = _Logger(logging.getLogger("pymongo_resilience"), {})
logger.logger.addFilter(RedactionFilter())


class contain_internal_errors:  # noqa: N801 - as contextlib's own
    """Contain the internal errors of a block of our code: log them, and go on after the block.

    ``what`` ends the log line: where the error was raised.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or not isinstance(error, internal_error_types()):
            return False
        text = "internal error in pymongo-resilience %s"
        logger.error(text, self._what, exc_info=error, stacklevel=2)
        return True
