"""What runs in place of pymongo's methods; while the library is switched off, nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.attempts import Attempts, GaveUp

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.operations import PublicOperation
    from pymongo_resilience_instrumentation.runtime import Runtime

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
Begin = Callable[[Any, tuple[Any, ...], dict[str, Any]], "Call"]

logger = logging.getLogger("pymongo_resilience")


def public(runtime: Runtime, operation: PublicOperation, asynchronous: bool) -> Wrapper:
    """A method of the public API: one call, one operation span, one deadline."""

    def begin(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        database, collection = operation.target(instance, args, kwargs)
        client = operation.client(instance)
        concern = getattr(instance, "write_concern", None)
        acknowledged = concern is None or concern.acknowledged
        return runtime.begin(client, operation.name, database, collection, acknowledged)

    return _call(runtime, begin, asynchronous)


def cursor_batch(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """One batch of a cursor: the first, or a getMore."""

    def begin(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        batch = args[0] if args else kwargs["operation"]
        name = str(getattr(batch.name, "value", batch.name))
        return runtime.begin(client, name, batch.db, batch.coll, True)

    return _call(runtime, begin, asynchronous)


def _call(runtime: Runtime, begin: Begin, asynchronous: bool) -> Wrapper:
    """Outermost wins: inside a call, the methods it calls in turn are no calls of their own."""

    def enter(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if not runtime.switch.on or calls.current() is not None:
            return None
        try:
            return begin(instance, args, kwargs)
        except Exception:
            logger.exception("a fault of pymongo-resilience before %s", begin.__qualname__)
            calls.forget()
            return None

    def sync_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = enter(instance, args, kwargs)
        if call is None:
            return wrapped(*args, **kwargs)
        try:
            with call.deadline:
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            runtime.end(call, error)
            raise
        runtime.end(call, None)
        return result

    async def async_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = enter(instance, args, kwargs)
        if call is None:
            return await wrapped(*args, **kwargs)
        try:
            with call.deadline:
                result = await wrapped(*args, **kwargs)
        except BaseException as error:
            runtime.end(call, error)
            raise
        runtime.end(call, None)
        return result

    return async_wrapper if asynchronous else sync_wrapper


def constructor(runtime: Runtime) -> Wrapper:
    """A client's ``__init__``: it gets our listeners beside its own."""

    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        own = kwargs.get("event_listeners", ())
        # What is no sequence is the driver's to refuse.
        if runtime.switch.on and isinstance(own, Sequence):
            try:
                kwargs["event_listeners"] = runtime.equip(client, own)
            except Exception:
                logger.exception("a fault of pymongo-resilience while a client was made")
        return wrapped(*args, **kwargs)

    return wrapper


def run(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """The driver's loop around the attempts. It is entered once: that allocates the txnNumber."""

    def enter(loop: Any) -> tuple[Attempts, AbstractContextManager[None]] | None:
        if not runtime.switch.on:
            return None
        try:
            return runtime.attempts(loop), runtime.deadline_of(loop)
        except Exception:
            logger.exception("a fault of pymongo-resilience before the driver's loop")
            return None

    def sync_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        entered = enter(loop)
        if entered is None:
            return wrapped(*args, **kwargs)
        work, deadline = entered
        try:
            with deadline:
                return wrapped(*args, **kwargs)
        except GaveUp as end:
            error = end.error
        finally:
            work.release()
        return _raise(error)

    async def async_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        entered = enter(loop)
        if entered is None:
            return await wrapped(*args, **kwargs)
        work, deadline = entered
        try:
            with deadline:
                return await wrapped(*args, **kwargs)
        except GaveUp as end:
            error = end.error
        finally:
            work.release()
        return _raise(error)

    return async_wrapper if asynchronous else sync_wrapper


def _raise(error: Exception) -> NoReturn:
    try:
        raise error
    finally:
        # The traceback holds this frame: without this, frame and error keep each other alive.
        del error


def attempt(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """The loop's ``_read`` and ``_write``: one attempt each, repeated by the executor."""
    executor: Any = runtime.async_executor if asynchronous else runtime.executor

    def wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = driver.func(loop)
        if type(work) is not Attempts:
            return wrapped(*args, **kwargs)
        work.send = wrapped
        return executor.run(work)

    return wrapper
