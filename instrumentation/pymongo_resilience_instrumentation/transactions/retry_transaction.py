"""Runs pymongo's with_transaction with its own session, for ``retry_transaction()`` and atomic
writes.

``session_methods`` adds the timeout and completes the errors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pymongo import AsyncMongoClient
from pymongo.client_session import TransactionOptions  # type: ignore[attr-defined]  # in its __all__
from pymongo.errors import ClientBulkWriteException, PyMongoError

from pymongo_resilience.rules.failure import SYSTEM_OVERLOADED, TRANSIENT_TRANSACTION
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience_instrumentation.driver.selection import forget_transient
from pymongo_resilience_instrumentation.driver.sessions import ReopenedIfInterrupted
from pymongo_resilience_instrumentation.failures import classify

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnySession
    from pymongo_resilience_instrumentation.driver.protocols import Client

FINAL = (Rule.SELECTION, Rule.OVERLOAD_WAIT, Rule.BUDGET)
"""Rules that decline a retry for a reason that a new transaction would meet, too."""


def run(
    client: Client, body: Callable[[Any], Any], options: dict[str, Any], **of_session: Any
) -> Any:
    """Run ``body`` with a session in a transaction, commit it, and return the result of ``body``.

    ``options`` are those of ``start_transaction``. The transaction and its session end with this
    call, however it ends.
    """
    with client.start_session(**of_session) as session, ReopenedIfInterrupted(session) as ending:

        def callback(_: AnySession) -> Any:
            # pymongo looks for labels only on the error itself, and not on its cause.
            with _labelled_for_the_driver():
                return ending.note(body(session))

        return session.with_transaction(callback, **options)


async def run_async(
    client: Client,
    body: Callable[[Any], Awaitable[Any]],
    options: dict[str, Any],
    **of_session: Any,
) -> Any:
    """As ``run``, in a task."""
    async with client.start_session(**of_session) as session:
        with ReopenedIfInterrupted(session) as ending:

            async def callback(_: AnySession) -> Any:
                with _labelled_for_the_driver():
                    return ending.note(await body(session))

            return await session.with_transaction(callback, **options)


@contextmanager
def _labelled_for_the_driver() -> Iterator[None]:
    """Adapt the labels of an error, so that pymongo's with_transaction retries exactly what the
    rules allow.

    with_transaction retries errors with the label TransientTransactionError. An error that is final
    by the rules loses the label. In a client bulk write, the label is on the inner error.
    """
    try:
        yield
    except PyMongoError as error:
        cause = error.error if isinstance(error, ClientBulkWriteException) else error
        if not isinstance(cause, PyMongoError) or not cause.has_error_label(TRANSIENT_TRANSACTION):
            raise
        rule = classify.attribute(error, "retry_rule")
        is_overload = cause.has_error_label(SYSTEM_OVERLOADED)
        if rule in FINAL or (rule is Rule.ATTEMPTS and is_overload):
            forget_transient(cause)
        elif cause is not error:
            # with_transaction looks only at the error itself, so raise the one with the label.
            raise cause from error
        raise


def retry_transaction(client: Client, options: dict[str, Any]) -> Callable[..., Any]:
    """Implementation of ``pymongo_resilience.retry_transaction``."""
    # Raises pymongo's own errors for invalid options.
    TransactionOptions(**options)
    asynchronous = isinstance(client, AsyncMongoClient)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(function)
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if generates or is_coroutine is not asynchronous:
            expected = "a coroutine function" if asynchronous else "an ordinary function"
            raise TypeError(f"retry_transaction() with this client needs {expected}")

        @functools.wraps(function)
        def transaction(*args: Any, **kwargs: Any) -> Any:
            return run(client, lambda session: function(session, *args, **kwargs), options)

        @functools.wraps(function)
        async def async_transaction(*args: Any, **kwargs: Any) -> Any:
            return await run_async(
                client, lambda session: function(session, *args, **kwargs), options
            )

        return async_transaction if asynchronous else transaction

    return decorate
