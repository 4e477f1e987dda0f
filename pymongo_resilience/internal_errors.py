"""Internal errors, which are logged and fail nothing; and what closes a coroutine."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo_resilience.redaction import RedactionFilter

if TYPE_CHECKING:
    from collections.abc import Callable

_faults: tuple[type[Exception], ...] = (
    ArithmeticError, AttributeError, ImportError, LookupError, NameError, ReferenceError,
    RuntimeError, StopIteration, TypeError, ValueError,
)  # fmt: skip

T = TypeVar("T")
OUR_FRAMES = 2
"""Between who logs and logging."""
MOST_LINKS = 32
"""The length of a chain of contexts, which an application may have closed to a ring."""
REPLACES = (
    "coroutine ignored GeneratorExit", "Lock is not acquired", "Lock is not acquired.",
    "in a different Context",
)  # fmt: skip
"""How the errors end that take the place of a GeneratorExit. Where a coroutine handles another
exception when it is closed, CPython makes that one their context. The second text is of pymongo's
lock, the third of asyncio's, which pymongo takes from Python 3.13 on."""


def faults() -> tuple[type[Exception], ...]:
    """What a bug of ours raises, and so what is caught around our own code. What a signal handler
    raises must reach the application: Celery's SoftTimeLimitExceeded, or a TimeoutError, an OSError
    or an AssertionError of others."""
    return _faults


def catch_also(*classes: type[Exception]) -> None:
    """Take errors of these classes for a bug of ours, too: those of the driver."""
    global _faults  # noqa: PLW0603 - one for the process
    _faults += classes


def is_closing(error: BaseException | None) -> bool:
    """Whether ``error`` closes a coroutine or a generator that has not finished, or was raised
    meanwhile.

    The garbage collector may do that anywhere: inside an allocation, or while the thread holds a
    lock. So what is cleaned up then calls no foreign code, takes no lock, and sets or resets no
    context variable.
    """
    for _ in range(MOST_LINKS):
        if error is None:
            return False
        if isinstance(error, GeneratorExit):
            return True
        if isinstance(error, (RuntimeError, ValueError)) and str(error).endswith(REPLACES):
            return True
        error = error.__context__
    return False


class ForeignError(RuntimeError):
    """A hook, a span processor or the like has raised ``foreign``."""

    def __init__(self, foreign: Exception) -> None:
        super().__init__(f"{type(foreign).__name__} from foreign code")
        self.foreign = foreign


def foreign(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code inside of a block that catches ``faults()``.

    Raises ForeignError.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if is_closing(error):
            raise
        raise ForeignError(error) from error


class _Logger(logging.LoggerAdapter[logging.Logger]):
    within: Callable[..., object] = staticmethod(lambda call, *args, **more: call(*args, **more))
    """Calls a function with its arguments: what is logged is handled in there."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if is_closing(sys.exception()):
            return  # a handler is foreign code
        stacklevel = kwargs.pop("stacklevel", 1) + OUR_FRAMES
        self.within(super().log, level, msg, *args, stacklevel=stacklevel, **kwargs)


logger = _Logger(logging.getLogger("pymongo_resilience"), {})
logger.logger.addFilter(RedactionFilter())


class shielded:  # noqa: N801 - as contextlib's own
    """A block of our code whose ``faults()`` fail nothing; ``what`` says where, in the log."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or not isinstance(error, faults()) or is_closing(error):
            return False
        text = "internal error in pymongo-resilience %s"
        logger.error(text, self._what, exc_info=error, stacklevel=2)
        return True
