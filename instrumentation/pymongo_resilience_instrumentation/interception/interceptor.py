"""What happens around one method of pymongo, and what runs it: sync or async, the same steps.

Here alone it is decided what becomes of a fault of our own: it is logged, and the driver goes on.
"""

from __future__ import annotations

from functools import partial
from sys import exception
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import from_outside, logger, raise_alone
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import BEGINNING, NO_DEADLINE

from .methods import Method, Subclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.calls import Call

    from .methods import Function

REFUSED = (ConfigurationError, InvalidOperation)
"""What the library refuses is no fault of its own."""


class Entered:
    """One run of a method. Belongs to one thread or task."""

    __slots__ = ("deadline", "instance")

    def __init__(self, instance: Any, deadline: AbstractContextManager[None] = NO_DEADLINE) -> None:
        self.instance = instance
        self.deadline = deadline
        """In force while the driver runs."""


class Interceptor:
    """Around one method. Nothing in here waits, so that it serves both APIs.

    Thread- and task-safe: what belongs to one run is in what ``enter`` returns, an ``Entered`` or
    anything else with a ``deadline``. An exception of a signal handler may strike at any line.
    """

    send: Callable[..., Any] | None = None
    """Called with what ``enter`` returned, the original and its arguments, in place of the
    original. Returns the result; around a coroutine function, an awaitable."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before it; ``given`` begins with the instance. None leaves it to the driver. Raises what
        is in ``REFUSED`` for what the application gave; anything else is an internal error."""
        raise NotImplementedError

    def succeeded(self, entered: Any, result: Any) -> Any:  # noqa: ARG002 - for others
        """After it; returns what the caller gets."""
        return result

    def failed(
        self,
        entered: Any,  # noqa: ARG002 - here and below, for others
        error: BaseException,
        given: tuple[Any, ...],  # noqa: ARG002
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> BaseException | None:
        """After its error, or one of ``succeeded``; returns the error to raise. None: the caller
        gets None. ``entered`` is None where the driver ran alone."""
        return error

    def undo(self, entered: Any, around: Call | None, error: BaseException) -> None:
        """What is left of it: ``error`` struck half-way, or is what it ends with.

        ``entered`` is BEGINNING where ``enter`` has not returned.
        """
        if entered is BEGINNING:
            calls.undo(BEGINNING, around, error)

    def method(self, flag: EnabledFlag, asynchronous: bool) -> Method:
        return Method(partial(_of_async if asynchronous else _of_sync, self, flag))


Owner = type | ModuleType
Replacement = Method | Subclass | Interceptor
Wrapped = tuple[Owner, str, Replacement]
"""Whose attribute, its name, and what runs in its place."""


def _of_sync(interceptor: Interceptor, flag: EnabledFlag, original: Function) -> Function:
    enter, succeeded, send, found = _steps(interceptor)

    def method(*given: Any, **kwargs: Any) -> Any:
        if not (flag.on and (exception() is None or flag.acts())):
            return original(*given, **kwargs)
        entered, around = BEGINNING, found()
        try:
            try:
                entered = enter(given, kwargs)
                if entered is None:
                    return original(*given, **kwargs)
                run = original if send is None else partial(send, entered, original)
                if entered.deadline is NO_DEADLINE:
                    return succeeded(entered, run(*given, **kwargs))
                with entered.deadline:
                    result = run(*given, **kwargs)
                return succeeded(entered, result)
            except BaseException as error:
                if _raises(interceptor, entered, around, error, (given, kwargs)):
                    raise
                if entered is not BEGINNING:
                    return None
        except BaseException as error:
            interceptor.undo(entered, around, error)
            raise
        return original(*given, **kwargs)

    return method


def _of_async(interceptor: Interceptor, flag: EnabledFlag, original: Function) -> Function:
    enter, succeeded, send, found = _steps(interceptor)

    async def method(*given: Any, **kwargs: Any) -> Any:
        if not (flag.on and (exception() is None or flag.acts())):
            return await original(*given, **kwargs)
        entered, around = BEGINNING, found()
        try:
            try:
                entered = enter(given, kwargs)
                if entered is None:
                    return await original(*given, **kwargs)
                run = original if send is None else partial(send, entered, original)
                if entered.deadline is NO_DEADLINE:
                    return succeeded(entered, await run(*given, **kwargs))
                with entered.deadline:
                    result = await run(*given, **kwargs)
                return succeeded(entered, result)
            except BaseException as error:
                if _raises(interceptor, entered, around, error, (given, kwargs)):
                    raise
                if entered is not BEGINNING:
                    return None
        except BaseException as error:
            interceptor.undo(entered, around, error)
            raise
        return await original(*given, **kwargs)

    return method


def _steps(interceptor: Interceptor) -> tuple[Any, Any, Any, Callable[[], Call | None]]:
    return interceptor.enter, interceptor.succeeded, interceptor.send, calls.found


def _raises(
    interceptor: Interceptor,
    entered: Any,
    around: Call | None,
    error: BaseException,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
) -> bool:
    """Whether the caller gets ``error``; raises another one."""
    if entered is BEGINNING:
        calls.unwind(around)
        if isinstance(error, REFUSED) or from_outside(error):
            return True
        what = type(interceptor).__name__
        logger.error("internal error in pymongo-resilience before %s", what, exc_info=error)
        return False
    if entered is not None:
        entered.deadline.__exit__(None, error, None)
    instead = interceptor.failed(entered, error, *arguments)
    try:
        if instead is not error and instead is not None:
            raise_alone(instead)
        return instead is not None
    finally:
        # A frame that holds the error it raised keeps both alive.
        del instead, error
