"""Interceptors run before and after a method of pymongo, with the same steps for sync and async.

Two of the three boundaries against bugs of the library are here. A bug before pymongo runs is
logged, and pymongo runs alone, unless the application asked for something that pymongo cannot do. A
bug after pymongo has answered is logged, and the application gets pymongo's answer.
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
from pymongo_resilience.option_types import IF_POSSIBLE
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
    arguments. Returns the result, or an awaitable if the original is a coroutine function.
    """
    send_async: Callable[..., Any] | None = None
    """Replaces ``send`` for coroutine functions, if the replacement must await something itself."""
    succeeded: Callable[[Any, Any], Any] | None = None
    """Called with the result of ``enter`` and the result of the method. Returns what the caller
    gets.
    """
    logs = True
    """False if the interceptor runs while a lock of pymongo is held. A log handler might need the
    same lock.
    """
    sends_by_policy = False
    """True if ``send`` is only called for operations with a policy."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002 - others
        """Called before the method. The first argument is the instance.

        Return None to delegate the call to pymongo. Exceptions of the classes in ``REFUSED`` reach
        the application, as does a signal handler's. All others are treated as bugs of the library.
        """
        return Entered(args[0] if args else None)

    def requested_features(self, args: tuple[Any, ...], entered: Any) -> str:  # noqa: ARG002 - for others
        """Return the requested features that pymongo alone would silently drop, for an error text.

        Empty if there are none. ``entered`` is None if ``enter`` has raised an error.
        """
        return ""

    def failed(self, entered: Any, error: BaseException, *_: Any) -> BaseException | None:  # noqa: ARG002 - for others
        """Return the error to raise after the method or ``succeeded`` has raised ``error``.

        If the result is None, no error is raised, and the caller gets None. ``entered`` is None if
        pymongo ran alone. The remaining arguments are those passed to ``enter``.
        """
        return error

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        return _async_wrapper(self, flag) if asynchronous else _wrapper(self, flag)

    def wrap(self, function: Function, flag: EnabledFlag, asynchronous: bool) -> Function:
        """Return ``function`` wrapped in this interceptor."""
        made: Function = wrapt.FunctionWrapper(function, self.wrapper(flag, asynchronous))
        return made


class Subclass(NamedTuple):
    """A factory for the subclass that replaces a class."""

    derive: Callable[[type], type]


def is_async(method: Any) -> bool:
    """Return True if the method must be awaited, even if another library has wrapped it."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


Owner = type | ModuleType
Replacement = Wrapper | Subclass | Interceptor
Row = tuple[Owner, str, Replacement]
"""The owner and the name of an attribute, and its replacement."""


class DriverCall:
    """pymongo's own method, as it is passed to ``send``.

    ``send`` calls it with the instance as the first argument, like a function. If the method is
    already bound to the instance, that argument is dropped.
    """

    def __init__(self, original: Function, instance: Any) -> None:
        self._original = original
        self._skipped = 0 if instance is None else 1
        self.was_made = False
        """True once the method was called. From then on, a command may have been sent."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_made = True
        return self._original(*args[self._skipped :], **kwargs)


# The steps are written out in the wrappers, because a function call for each of them would make
# every healthy operation slower.
def _wrapper(interceptor: Interceptor, flag: EnabledFlag) -> Wrapper:
    enter, succeeded = interceptor.enter, interceptor.succeeded
    send = interceptor.send
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
                deadline = entered.deadline
                deadline.__enter__()
                if send is not None and not (by_policy and not entered.has_policy):
                    call = DriverCall(original, instance)
        except BaseException as error:
            # A signal handler may have raised, or ``enter`` may have refused the call. Anything
            # else is a bug of ours.
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
                # pymongo has answered. From here on, no bug of ours may change its answer.
                deadline.__exit__(None, None, None)
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
                # The error's traceback references this frame. Drop the reference to the error, so
                # that both can be freed.
                del instead
                raise
        try:
            if instead is not None:
                raise instead
        finally:
            # As above, break the cycle of the error and this frame.
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
                deadline = entered.deadline
                deadline.__enter__()
                if send is not None and not (by_policy and not entered.has_policy):
                    call = DriverCall(original, instance)
        except BaseException as error:
            # A signal handler may have raised, or ``enter`` may have refused the call. Anything
            # else is a bug of ours.
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
                # pymongo has answered. From here on, no bug of ours may change its answer.
                deadline.__exit__(None, None, None)
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
                # The error's traceback references this frame. Drop the reference to the error, so
                # that both can be freed.
                del instead
                raise
        try:
            if instead is not None:
                raise instead
        finally:
            # As above, break the cycle of the error and this frame.
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
    """Return True if an error that was raised before the call of pymongo should reach the caller.

    Otherwise, the error is a bug of the library. It is logged, and pymongo runs alone.

    Raises:
        InvalidOperation: If pymongo alone would drop something that the application asked for.
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
    """Return True if an error that ``send`` has raised should reach the caller.

    It should in two cases: ``send`` has called pymongo, so the command may have been sent; or the
    error is not a bug of the library. Otherwise, the bug is logged, and the wrapper calls pymongo's
    method.

    Raises:
        InvalidOperation: If pymongo alone would drop something that the application asked for.
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
            "nothing was sent, because an internal error of pymongo-resilience "
            f"({type(error).__name__}) keeps {asked} from taking effect. The log has the "
            "traceback: please report it"
        ) from error


def _error_to_raise(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    outer: Operation | None,
    error: BaseException,
    *arguments: Any,
    asynchronous: bool = False,
) -> BaseException | None:
    """Return the error to raise, or None, and make the outer operation the current one again.

    ``arguments`` are the remaining arguments of ``Interceptor.failed``.
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
            # A coroutine may be closed from another context. The current operation there belongs to
            # another task, so leave it alone.
            in_progress.unwind(outer)


def _recover(
    interceptor: Interceptor,
    entered: HasDeadline | None,
    outer: Operation | None,
    error: BaseException,
) -> None:
    """Log a bug of the library that occurred after pymongo had answered, and restore the state from
    before the call.
    """
    in_progress.recover(entered, outer)
    _log(interceptor, "after", error)


def _log(interceptor: Interceptor, when: str, error: BaseException) -> None:
    """Log an internal error, unless the interceptor may run while a lock of pymongo is held."""
    if interceptor.logs:
        what = type(interceptor).__name__
        text = "internal error in pymongo-resilience %s %s (please report it)"
        logger.error(text, when, what, exc_info=error)


def outside_of_operations(wrapper: Wrapper) -> Wrapper:
    """Return a wrapper that calls the original directly if an operation is in progress."""
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
    """Runs a method inside of a context manager.

    Args:
        begin: Called with the instance. Returns the context manager, or raises ConfigurationError
            to refuse the call.
    """

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
    """A feature's replacement for methods of the public API."""

    make: Callable[[Any], Send | None]
    """Called with the OperationInterceptor of a method. Returns the function that replaces the
    method, or None to leave it unchanged.
    """
    by_policy: bool
    """True if the function is only needed for operations with a policy."""


def _chained(outer: Send, inner: Send) -> Send:
    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        return outer(operation, partial(inner, operation, original), *args, **kwargs)

    return send


def named_features(policy: Policy) -> str:
    """Return the requested features that pymongo does not have, such as ``"atomic=True, ..."``.

    They are options of the policy, and the deadline of the incoming request, if there is one.
    """
    values = {name: getattr(policy, name) for name in FEATURES}
    named = [f"{name}={value}" for name, value in values.items() if value and value != IF_POSSIBLE]
    if blocks.expires_at() is not None:
        named.append("the deadline of the incoming request")
    return ", ".join(named)


class OperationInterceptor(Interceptor):
    """An interceptor whose ``enter`` returns an Operation.

    Only the outermost call becomes an operation. Nested calls on the same client are part of it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        """Begins and ends operations."""
        if self.succeeded is None:
            # The subclass defines no ``succeeded``, so call ``runtime.end`` directly, which saves a
            # function call for each operation.
            self.succeeded = runtime.end

    def plug_in(self, senders: Sequence[Sender]) -> None:
        """Wrap the original with the functions of features. The first one is outermost."""
        self.sends_by_policy = all(sender.by_policy for sender in senders)
        for sender in reversed(senders):
            send = sender.make(self)
            if send is not None:
                self.send = send if self.send is None else _chained(send, self.send)

    def failed(
        self, operation: Operation | None, error: BaseException, *_: Any
    ) -> BaseException | None:
        # The client is None if the operation has already been left.
        if operation is None or operation.client is None:
            return error
        instead: BaseException | None = self.runtime.end(operation, error=error)
        return instead
