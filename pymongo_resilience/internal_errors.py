"""Internal errors: logged, and distinguished from exceptions of signal handlers.

A signal handler may raise at any line, ours included: Celery's SoftTimeLimitExceeded comes so, and
it is an Exception like any other. It is the application's, so code that catches our own errors
raises it again. Its origin identifies it: the frame of a handler was given the frame that it
interrupts. What another thread sets in this one (``PyThreadState_SetAsyncExc``) has no frame of its
own; at a line of ours its class identifies it, since we raise none that is the application's. A
handler without a frame, or one that deletes its arguments before it raises, is not recognised. The
same holds for what closes a coroutine: see ``unfinished``.
"""

from __future__ import annotations

import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pymongo_resilience.closed_coroutines import closes_a_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

OURS = ("pymongo_resilience", "pymongo_resilience_instrumentation")
KNOWN = frozenset({*sys.stdlib_module_names, *OURS, "bson", "gridfs", "opentelemetry", "pymongo"})
"""The packages whose exceptions code of ours may raise."""
OUR_FRAMES = 2
"""Between who logs and logging."""
ARGUMENTS = (2, 3, 4)
"""How many a handler takes: the signal and the frame; a trace function and ``self`` are one more
each."""


def from_outside(error: BaseException) -> bool:
    """Whether the code that raised ``error`` was struck by it, and did not bring it about."""
    if not isinstance(error, Exception) or closes_a_coroutine(error):
        return True
    entry = error.__traceback__
    if entry is None:
        return False
    while entry.tb_next is not None:
        if _interrupts(entry.tb_next.tb_frame, entry.tb_frame):
            return True
        entry = entry.tb_next
    return _package(entry.tb_frame.f_globals.get("__name__")) in OURS and (
        _package(type(error).__module__) not in KNOWN
    )


def deliver(error: Exception) -> None:
    """Raises ``error`` again where it struck from outside, in an ``except`` clause that logs it
    elsewhere or not at all."""
    if from_outside(error):
        try:
            raise error
        finally:
            # The traceback holds this frame: without this, frame and error keep each other alive.
            del error


def raise_alone(error: BaseException) -> NoReturn:
    """An exception that the application is handling right now is not the context of this one."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        # As above.
        del error


def _interrupts(frame: FrameType, interrupted: FrameType) -> bool:
    code = frame.f_code
    count, takes_any = code.co_argcount, code.co_flags & inspect.CO_VARARGS
    if count not in ARGUMENTS and not takes_any:
        return False
    given = frame.f_locals
    if any(given.get(name) is interrupted for name in code.co_varnames[:count]):
        return True
    rest = given.get(code.co_varnames[count + code.co_kwonlyargcount]) if takes_any else ()
    return isinstance(rest, tuple) and any(each is interrupted for each in rest)


def _package(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _at_once(function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    return function(*args, **kwargs)


class _Logger(logging.LoggerAdapter[logging.Logger]):
    within: Callable[..., object] = staticmethod(_at_once)
    """Calls a function with its arguments: what is logged is handled in there."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        stacklevel = kwargs.pop("stacklevel", 1) + OUR_FRAMES
        self.within(super().log, level, msg, *args, stacklevel=stacklevel, **kwargs)

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        """As a logger's own, in an ``except`` clause; raises again what struck from outside."""
        error = sys.exception()
        if isinstance(error, Exception):
            deliver(error)
        super().exception(msg, *args, stacklevel=2, **kwargs)


logger = _Logger(logging.getLogger("pymongo_resilience"), {})


class shielded:  # noqa: N801 - as contextlib's own
    """A block of our code that must not fail; ``what`` says where, in the log. What strikes from
    outside is raised: a signal handler's exception, say."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or from_outside(error):
            return False
        text = "internal error in pymongo-resilience %s"
        logger.error(text, self._what, exc_info=error, stacklevel=2)
        return True
