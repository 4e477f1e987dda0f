"""What a client's background task does beside killing cursors: transactions whose abort was not
answered are aborted. Else they keep their locks until the server ends them, after a minute."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.driver.sessions import OpenTransaction

from .by_client import keep

MOST = 1000
"""What is left for one task: where it does not run, nothing may grow for ever."""
_left: dict[int, deque[Callable[[], Any]]] = {}
WITHIN = 5.0
"""Seconds that one run of the task has for a transaction."""
LIFETIME = 60.0
"""Seconds after which the server has ended it (``transactionLifetimeLimitSeconds``)."""


def leave(client: object, work: Callable[[], Any]) -> None:
    """Have the next run of the client's task call it; an async client's awaits what it returns."""
    keep(_left, client, deque(maxlen=MOST)).append(work)


def taken(client: object) -> Iterator[Callable[[], Any]]:
    """For that task alone."""
    left = _left.get(id(client), deque())
    for _ in range(len(left)):  # what they leave in turn has the next run
        yield left.popleft()


def reset_after_fork() -> None:
    """In a forked child: what is left is the parent's."""
    _left.clear()


def leave_open(client: Any, opened: OpenTransaction | None, until: float | None = None) -> None:
    """Have the task abort a transaction, and again until then. Safe in a finalizer."""
    if opened is not None:
        abort = _abort_async if isinstance(client, AsyncMongoClient) else _abort
        until = driver.csot.now() + LIFETIME if until is None else until
        leave(client, partial(abort, weakref.ref(client), opened, until))


def _abort(reference: Any, opened: OpenTransaction, until: float) -> None:
    client = reference()
    try:
        with driver.csot.InForce(WITHIN):
            driver.sessions.abort(client, opened)
    except PyMongoError as error:
        _failed(client, opened, until, error)


async def _abort_async(reference: Any, opened: OpenTransaction, until: float) -> None:
    client = reference()
    try:
        with driver.csot.InForce(WITHIN):
            await driver.sessions.abort_async(client, opened)
    except PyMongoError as error:
        _failed(client, opened, until, error)


def _failed(client: Any, opened: OpenTransaction, until: float, error: PyMongoError) -> None:
    # An answer of the server's says that it has ended.
    if not isinstance(error, OperationFailure) and driver.csot.now() < until:
        leave_open(client, opened, until)
