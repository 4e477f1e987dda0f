"""Transactions whose abort was not answered: a client's background task aborts them, as it kills
cursors. Else they keep their locks until the server ends them, after a minute."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience_instrumentation import driver

from .by_client import leave

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.sessions import OpenTransaction

WITHIN = 5.0
"""Seconds that one run of the task has for it."""
LIFETIME = 60.0
"""Seconds after which the server has ended it (``transactionLifetimeLimitSeconds``)."""


def leave_open(client: Any, opened: OpenTransaction | None) -> None:
    """Have the client's background task abort it. Safe in a finalizer."""
    if opened is not None:
        _leave(client, opened, driver.csot.now() + LIFETIME)


def _leave(client: Any, opened: OpenTransaction, until: float) -> None:
    abort = _abort_async if isinstance(client, AsyncMongoClient) else _abort
    leave(client, partial(abort, weakref.ref(client), opened, until))


def _abort(reference: Any, opened: OpenTransaction, until: float) -> None:
    client = reference()
    try:
        with driver.csot.timeout(WITHIN):
            driver.sessions.abort(client, opened)
    except OperationFailure:
        return  # it has ended
    except PyMongoError:
        if driver.csot.now() < until:
            _leave(client, opened, until)


async def _abort_async(reference: Any, opened: OpenTransaction, until: float) -> None:
    client = reference()
    try:
        with driver.csot.timeout(WITHIN):
            await driver.sessions.abort_async(client, opened)
    except OperationFailure:
        return
    except PyMongoError:
        if driver.csot.now() < until:
            _leave(client, opened, until)
