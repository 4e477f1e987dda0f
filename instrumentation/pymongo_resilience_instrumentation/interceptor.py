"""Interceptors run before and after a method of pymongo, with the same steps for sync and async.

Two of the three boundaries against bugs of the library are here. If there is a bug before pymongo
runs, it is logged and pymongo runs alone, unless the application asked for something that pymongo
does not do. If there is a bug after pymongo has answered, it is logged and the application gets
that answer.
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
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, HasDeadline
from pymongo_resilience_instrumentation.operation import Operation

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.runtime import Runtime

Function = Callable[..., Any]
Wrapper = Callable[[Function, Any, tuple[Any, ...], dict[str, Any]], Any]
"""A wrapt wrapper: called with the bound original, the object that it is bound to, and the
arguments.
"""
FEATURES = ("atomic", "idempotent", "resumable", "hedge", "timeout_ms")
REFUSED = (ConfigurationError, InvalidOperation, DriversConfigurationError)
"""Errors with which the library refuses an operation on purpose."""


FOLDERS = tuple(str(Path(file).parent) for file in (engine_file, __file__))
"""The folders of the engine and of this package."""


def raised_by_library(error: BaseException) -> bool:
    """Return True if the library's own code raised the error, so that it is a bug of the library.

    Errors raised by pymongo, a signal handler, or the application's code are not.
    """
    is_fault = isinstance(error, internal_error_types()) and not isinstance(error, PyMongoError)
    return is_fault and raised_in(error, *FOLDERS)


class Entered:
    """The state of one call of a method. Belongs to one thread or task."""

    __slots__ = ("deadline", "instance")

    def __init__(self, instance: Any, deadline: AbstractContextManager[None] = NO_DEADLINE) -> None:
        self.instance = instance
        self.deadline = deadline
        """Active while pymongo runs."""


class Interceptor:
    """Runs before and after one method. Never waits, so that both APIs can use it.

    Thread- and task-safe: the state of one call is in the object that ``enter`` returns, an
    ``Entered`` or anything else with a ``deadline``.
    """

    send: Callable[..., Any] | None = None
    """Called in place of the original, with the result of ``enter``, the original and its
    arguments. Returns the result, or an awaitable for a coroutine function.
    """
    send_async: Callable[..., Any] | None = None
    """The same for coroutine functions, if it awaits something itself."""
    succeeded: Callable[[Any, Any], Any] | None = None
    """Called with the result of ``enter`` and the result of the method. Returns what the caller
    gets.
    """
    logs = True
    """False if it runs with a lock of pymongo held, which a log handler might need as well."""
    sends_by_policy = False
    """``send`` does nothing for an operation without a policy."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002 - others
        """Called before the method. The first argument is the instance.

        Return None to leave the call to pymongo. Errors in ``REFUSED`` reach the application; all
        others are internal errors.
        """
        return Entered(args[0] if args else None)

    def requested_features(self, args: tuple[Any, ...], entered: Any) -> str:  # noqa: ARG002 - for others
        """Return what the application asked for that pymongo does not do by itself, for an error
        text; empty if nothing would be missed. ``entered`` is None if ``enter`` has raised."""
        return ""

    def failed(self, entered: Any, error: BaseException, *_: Any) -> BaseException | None:  # noqa: ARG002 - for others
        """Return the error to raise after an error of the method or of ``succeeded``; None returns
        None to the caller.

        ``entered`` is None if pymongo ran alone. The remaining arguments are those passed to
        ``enter``.
        """
        return error

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        return _async_wrapper(self, flag) if asynchronous else _wrapper(self, flag)

    def wrap(self, function: Function, flag: EnabledFlag, asynchronous: bool) -> Function:
        """A function with the steps around it, that is called in place of ``function``."""
        made: Function = wrapt.FunctionWrapper(function, self.wrapper(flag, asynchronous))
        return made


class Subclass(NamedTuple):
    """A replacement for a class, wherever it is looked up."""

    derive: Callable[[type], type]


def is_async(method: Any) -> bool:
    """Return True if the method must be awaited, even if another library has wrapped it."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


Owner = type | ModuleType
Replacement = Wrapper | Subclass | Interceptor
Row = tuple[Owner, str, Replacement]
"""Owner and name of an attribute, and what replaces it."""


class DriverCall:
    """pymongo's own method, for a ``send`` that takes the instance as its first argument."""

    def __init__(self, original: Function, instance: Any) -> None:
        self._original = original
        self._skipped = 0 if instance is None else 1
        self.was_made = False
        """True once it was called; from then on, the command may have been sent."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_made = True
        return self._original(*args[self._skipped :], **kwargs)


# The steps are written out in the wrappers, because a function call for each of them would make
# every healthy operation slower.
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
    """Return True if the caller gets an error that was raised before pymongo was called.

    Otherwise the error is a bug of the library. It is logged, and pymongo runs alone.

    Raises:
        InvalidOperation: pymongo alone would not do what the application asked for.
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
    """Return True if the replacement of pymongo's method has called pymongo, or refuses to.

    Otherwise the error is a bug of the library. It is logged, and pymongo's method is called; see
    ``_refuses``.
    """
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
    """Raise InvalidOperation if pymongo alone would silently drop something the application asked
    for.
    """
    asked = interceptor.requested_features(args, entered)
    if asked:
        raise InvalidOperation(
            "nothing was sent: an internal error of pymongo-resilience "
            f"({type(error).__name__}) would have dropped {asked}. The log has the traceback: "
            "please report it"
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
    """Log a bug of the library that was raised after pymongo had answered, and restore the state
    before the call.
    """
    in_progress.recover(entered, outer)
    _log(interceptor, "after", error)


def _log(interceptor: Interceptor, when: str, error: BaseException) -> None:
    """Log an internal error, unless a lock of pymongo is held."""
    if interceptor.logs:
        what = type(interceptor).__name__
        text = "internal error in pymongo-resilience %s %s (please report it)"
        logger.error(text, when, what, exc_info=error)


def outside_of_operations(wrapper: Wrapper) -> Wrapper:
    """Return a wrapper that does nothing inside of an operation."""
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
"""Called with the operation, the original and its arguments. Returns the result, or an
awaitable.
"""


class Sender(NamedTuple):
    """What a feature puts around a method of the public API."""

    make: Callable[[Any], Send | None]
    """Returns the function that sends in place of the original, if any, from an
    OperationInterceptor.
    """
    by_policy: bool
    """Operations without a policy are sent unchanged."""


def _chained(outer: Send, inner: Send) -> Send:
    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        return outer(operation, partial(inner, operation, original), *args, **kwargs)

    return send


def named_features(policy: Policy) -> str:
    """Return the options of a policy that pymongo does not have, as ``"atomic=True, ..."``, and the
    deadline of the incoming request around the caller."""
    values = {name: getattr(policy, name) for name in FEATURES}
    named = [f"{name}={value}" for name, value in values.items() if value]
    if blocks.expires_at() is not None:
        named.append("the deadline of the incoming request")
    return ", ".join(named)


class OperationInterceptor(Interceptor):
    """An interceptor whose ``enter`` returns an Operation.

    Only the outermost call is an operation. Calls that it makes on the same client are part of it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        """A Runtime, which begins and ends operations."""
        if self.succeeded is None:
            self.succeeded = runtime.end

    def plug_in(self, senders: Sequence[Sender]) -> None:
        """Add what features put around the original. The first one is outermost."""
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
