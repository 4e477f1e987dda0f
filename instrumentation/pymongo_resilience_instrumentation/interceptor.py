"""What happens around one method of pymongo, and what runs it: sync or async, the same steps. An
interceptor has them; that of an operation begins and ends one, ``Within`` puts a timeout in force.

Two of the three boundaries for our own bugs are here. Before the driver runs, a bug is logged, and
pymongo runs alone, unless the application asked for something that pymongo does not do. After the
driver has answered, a bug is logged, and the application gets that answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt
from pymongo.errors import (
    ConfigurationError as DriversConfigurationError,
    InvalidOperation,
    PyMongoError,
)

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import (
    __file__ as engine_file,
    internal_error_types,
    logger,
    raised_in,
)
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, HasDeadline
from pymongo_resilience_instrumentation.operation import Operation

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.runtime import Runtime

Function = Callable[..., Any]
Wrapper = Callable[[Function, Any, tuple[Any, ...], dict[str, Any]], Any]
"""wrapt's: called with the bound original, what it is bound to, and its arguments."""
FEATURES = ("atomic", "idempotent", "resumable", "hedge", "timeout_ms")
REFUSED = (ConfigurationError, InvalidOperation, DriversConfigurationError)
"""What the library refuses is no fault of its own."""


FOLDERS = tuple(str(Path(file).parent) for file in (engine_file, __file__))
"""Those of the engine and of this package."""


def raised_by_library(error: BaseException) -> bool:
    """Return True if our own code raised the error: a bug of ours.

    What the driver, a signal handler or the application's code raises is none.
    """
    is_fault = isinstance(error, internal_error_types()) and not isinstance(error, PyMongoError)
    return is_fault and raised_in(error, *FOLDERS)


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
    anything else with a ``deadline``.
    """

    send: Callable[..., Any] | None = None
    """Called with what ``enter`` returned, the original and its arguments, in place of the
    original. Returns the result; around a coroutine function, an awaitable."""
    send_async: Callable[..., Any] | None = None
    """The same around a coroutine function, where it awaits something itself."""
    succeeded: Callable[[Any, Any], Any] | None = None
    """Called after it with what ``enter`` returned and the result; returns what the caller gets."""
    logs = True
    """False if it runs under a lock of the driver's, which a log handler may want, too."""
    sends_by_policy = False
    """``send`` does nothing for an operation that no policy holds for."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002 - others
        """Before it; ``given`` begins with the instance. None leaves it to the driver. Raises what
        is in ``REFUSED`` for what the application gave; anything else is an internal error."""
        return Entered(args[0] if args else None)

    def requested_features(self, args: tuple[Any, ...], entered: Any) -> str:  # noqa: ARG002 - for others
        """Return what the application asked for that pymongo does not do by itself, for an error
        text; empty if nothing would be missed. ``entered`` is None if ``enter`` has raised."""
        return ""

    def failed(self, entered: Any, error: BaseException, *_: Any) -> BaseException | None:  # noqa: ARG002 - for others
        """After its error, or one of ``succeeded``; returns the error to raise. None: the caller
        gets None. ``entered`` is None where the driver ran alone. What follows is as ``enter`` has
        it: ``given`` and ``kwargs``."""
        return error

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        return _async_wrapper(self, flag) if asynchronous else _wrapper(self, flag)

    def wrap(self, function: Function, flag: EnabledFlag, asynchronous: bool) -> Function:
        """A function with the steps around it, that is called in place of ``function``."""
        made: Function = wrapt.FunctionWrapper(function, self.wrapper(flag, asynchronous))
        return made


class Subclass(NamedTuple):
    """What takes the place of a class, wherever it is looked up."""

    derive: Callable[[type], type]


def is_async(method: Any) -> bool:
    """Whether it has to be awaited; also of one that another library wrapped."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


Owner = type | ModuleType
Replacement = Wrapper | Subclass | Interceptor
Row = tuple[Owner, str, Replacement]
"""Whose attribute, its name, and what runs in its place."""


class DriverCall:
    """The driver's own method, for what sends it itself: it takes its instance first."""

    def __init__(self, original: Function, instance: Any) -> None:
        self._original = original
        self._skipped = 0 if instance is None else 1
        self.was_made = False
        """Once it was, the command may have been sent."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_made = True
        return self._original(*args[self._skipped :], **kwargs)


# The steps are in the wrappers themselves: a healthy operation makes no further call for them.
def _wrapper(interceptor: Interceptor, flag: EnabledFlag) -> Wrapper:
    enter, succeeded, send = interceptor.enter, interceptor.succeeded, interceptor.send
    found, by_policy = in_progress.current_or_ended, interceptor.sends_by_policy

    def wrapper(  # noqa: PLR0912 - one boundary after the other
        original: Function, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not flag.on:
            return original(*args, **kwargs)
        all_args = args if instance is None else (instance, *args)
        entered, outer, call = None, found(), None
        try:
            entered = enter(all_args, kwargs)
            if entered is not None:
                entered.deadline.__enter__()
                if send is not None and not (by_policy and not entered.has_policy):
                    call = DriverCall(original, instance)
        except BaseException as error:
            if _refuses(interceptor, entered, outer, error, all_args):
                raise
            entered = None
        try:
            if entered is None:
                return original(*args, **kwargs)
            if call is None or send is None:
                result = original(*args, **kwargs)
            else:
                try:
                    result = send(entered, call, *all_args, **kwargs)
                except internal_error_types() as error:
                    if _has_sent(interceptor, entered, call, error, all_args):
                        raise
                    call = None
                if call is None:
                    result = original(*args, **kwargs)
            try:
                entered.deadline.__exit__(None, None, None)
                return result if succeeded is None else succeeded(entered, result)
            except internal_error_types() as error:
                _recover(interceptor, entered, outer, error)
                return result
        except BaseException as error:
            try:
                instead = _error_to_raise(interceptor, entered, outer, error, all_args, kwargs)
            except internal_error_types() as internal_error:
                _recover(interceptor, entered, outer, internal_error)
                instead = error
            if instead is error:
                del instead  # or this frame, of the error's traceback, keeps both alive
                raise
        try:
            if instead is not None:
                raise instead
        finally:
            # A frame that holds the error it raised keeps both alive.
            del instead
        return None

    return wrapper


def _async_wrapper(interceptor: Interceptor, flag: EnabledFlag) -> Wrapper:
    enter, succeeded = interceptor.enter, interceptor.succeeded
    send = interceptor.send_async or interceptor.send
    found, by_policy = in_progress.current_or_ended, interceptor.sends_by_policy

    async def wrapper(  # noqa: PLR0912 - one boundary after the other
        original: Function, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not flag.on:
            return await original(*args, **kwargs)
        all_args = args if instance is None else (instance, *args)
        entered, outer, call = None, found(), None
        try:
            entered = enter(all_args, kwargs)
            if entered is not None:
                entered.deadline.__enter__()
                if send is not None and not (by_policy and not entered.has_policy):
                    call = DriverCall(original, instance)
        except BaseException as error:
            if _refuses(interceptor, entered, outer, error, all_args):
                raise
            entered = None
        try:
            if entered is None:
                return await original(*args, **kwargs)
            if call is None or send is None:
                result = await original(*args, **kwargs)
            else:
                try:
                    result = await send(entered, call, *all_args, **kwargs)
                except internal_error_types() as error:
                    if _has_sent(interceptor, entered, call, error, all_args):
                        raise
                    call = None
                if call is None:
                    result = await original(*args, **kwargs)
            try:
                entered.deadline.__exit__(None, None, None)
                return result if succeeded is None else succeeded(entered, result)
            except internal_error_types() as error:
                _recover(interceptor, entered, outer, error)
                return result
        except BaseException as error:
            try:
                instead = _error_to_raise(
                    interceptor, entered, outer, error, all_args, kwargs, asynchronous=True
                )
            except internal_error_types() as internal_error:
                _recover(interceptor, entered, outer, internal_error)
                instead = error
            if instead is error:
                del instead  # or this frame, of the error's traceback, keeps both alive
                raise
        try:
            if instead is not None:
                raise instead
        finally:
            # A frame that holds the error it raised keeps both alive.
            del instead
        return None

    return wrapper


def _refuses(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    outer: Operation | None,
    error: BaseException,
    args: tuple[Any, ...],
) -> bool:
    """Return True if the caller gets what was raised before the driver ran. Otherwise it is a bug
    of ours, and pymongo runs alone.

    Raises InvalidOperation if pymongo alone would not do what the application asked for.
    """
    if entered is not None:
        in_progress.recover(entered, outer)
    in_progress.unwind(outer)
    if isinstance(error, REFUSED) or not isinstance(error, internal_error_types()):
        return True
    _log(interceptor, "before", error)
    _check_nothing_is_dropped(interceptor, None, error, args)
    return False


def _has_sent(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    call: DriverCall,
    error: BaseException,
    args: tuple[Any, ...],
) -> bool:
    """Return True if what sends in the driver's place has called the driver, or refuses to.
    Otherwise it is a bug of ours, and the driver's method is called; see ``_refuses``."""
    if call.was_made or isinstance(error, REFUSED) or not raised_by_library(error):
        return True
    _log(interceptor, "before", error)
    _check_nothing_is_dropped(interceptor, entered, error, args)
    return False


def _check_nothing_is_dropped(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    error: BaseException,
    args: tuple[Any, ...],
) -> None:
    asked = interceptor.requested_features(args, entered)
    if asked:
        raise InvalidOperation(
            "nothing was sent: an internal error of pymongo-resilience "
            f"({type(error).__name__}, see the log) would have dropped {asked}"
        ) from error


def _error_to_raise(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    outer: Operation | None,
    error: BaseException,
    *arguments: Any,
    asynchronous: bool = False,
) -> BaseException | None:
    """Return what the caller gets after an error, and restore what was in progress before.

    ``arguments`` are those of ``failed``.
    """
    try:
        if entered is not None:
            entered.deadline.__exit__(type(error), error, None)
        return interceptor.failed(entered, error, *arguments)
    finally:
        if not asynchronous:
            if in_progress.current_or_ended() is not outer:
                in_progress.unwind(outer)
        elif isinstance(entered, Operation) and in_progress.holds(entered):
            # A coroutine may have been closed from another context: the operation that is in
            # progress there is another task's.
            in_progress.unwind(outer)


def _recover(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    outer: Operation | None,
    error: BaseException,
) -> None:
    """After a bug of ours behind the driver's answer: log it, and restore what was before."""
    in_progress.recover(entered, outer)
    _log(interceptor, "after", error)


def _log(interceptor: Interceptor, when: str, error: BaseException) -> None:
    if interceptor.logs:
        what = type(interceptor).__name__
        logger.error("internal error in pymongo-resilience %s %s", when, what, exc_info=error)


def outside_of_operations(wrapper: Wrapper) -> Wrapper:
    """Return a wrapper that does nothing inside of an operation, and costs it no further call."""
    found = in_progress.current_or_ended

    def gate(
        original: Function, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        operation = found()
        if operation is not None and not operation.ended:
            return original(*args, **kwargs)
        return wrapper(original, instance, args, kwargs)

    return gate


class ContextInterceptor(Interceptor):
    """``begin`` returns the context, from the instance; it raises ConfigurationError to refuse."""

    def __init__(self, begin: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._begin = begin

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        if in_progress.in_foreign_call():
            return None
        context = self._begin(args[0])
        return None if context is NO_DEADLINE else Entered(args[0], context)


Send = Callable[..., Any]
"""Called with the operation, the original and its arguments; returns the result, or an
awaitable."""


class Sender(NamedTuple):
    """What a feature puts around a method of the public API."""

    make: Callable[[Any], Send | None]
    """From an OperationInterceptor to what sends in place of the original, if anything."""
    by_policy: bool
    """An operation that no policy holds for is sent as it is."""


def _chained(outer: Send, inner: Send) -> Send:
    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        return outer(operation, partial(inner, operation, original), *args, **kwargs)

    return send


def named_features(policy: Policy) -> str:
    """Return the options of a policy that pymongo knows nothing of, ``"atomic=True, ..."``."""
    values = {name: getattr(policy, name) for name in FEATURES}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value)


class OperationInterceptor(Interceptor):
    """``enter`` returns an Operation. Outermost wins: what an operation calls in turn on its own
    client is no operation of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        """A Runtime, which begins and ends operations."""
        if self.succeeded is None:
            self.succeeded = runtime.end

    def plug_in(self, senders: Sequence[Sender]) -> None:
        """What features put around the original, the first of them outermost."""
        self.sends_by_policy = all(sender.by_policy for sender in senders)
        for sender in reversed(senders):
            send = sender.make(self)
            if send is not None:
                self.send = send if self.send is None else _chained(send, self.send)

    def failed(
        self, operation: Operation | None, error: BaseException, *_: Any
    ) -> BaseException | None:
        if operation is None or operation.client is None:  # it was left already
            return error
        instead: BaseException | None = self.runtime.end(operation, error=error)
        return instead
