"""Runs with_transaction of either kind of client, and lets time pass for the driver alone."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import UpdateMany
from support.clients import SentCommands, Side

LOW, LONG = 20_000, 60_000
"""Milliseconds; none of them ever passes."""

Step = Callable[[Any], Any]
INC = {"$inc": {"n": 1}}
IN_TRANSACTION: dict[str, tuple[str, Callable[[Side, Any, Any], Any]]] = {
    "insert_one": ("insert", lambda side, db, s: side.do(db.coll.insert_one, {}, session=s)),
    "update_many": ("update", lambda side, db, s: side.do(db.coll.update_many, {}, INC, session=s)),
    "findAndModify": (
        "findAndModify",
        lambda side, db, s: side.do(db.coll.find_one_and_update, {}, INC, session=s),
    ),
    "find_one": ("find", lambda side, db, s: side.do(db.coll.find_one, session=s)),
    "aggregate": (
        "aggregate",
        lambda side, db, s: side.documents(side.do(db.coll.aggregate, [], session=s)),
    ),
    "bulk_write": (
        "update",
        lambda side, db, s: side.do(db.coll.bulk_write, [UpdateMany({}, INC)], session=s),
    ),
    "client bulk_write": (
        "bulkWrite",
        lambda side, db, s: side.do(
            db.client.bulk_write, [UpdateMany({}, INC, namespace=f"{db.name}.coll")], session=s
        ),
    ),
}
"""Operations in a transaction: the command of each, and how it is called with a session."""


def run(
    side: Side, session: Any, *steps: Step, block: Callable[[], Any] = contextlib.nullcontext
) -> list[Any]:
    """with_transaction with these steps for its callback, ``block`` around all of them."""

    def sync_callback(given: Any) -> list[Any]:
        with block():
            return [step(given) for step in steps]

    async def async_callback(given: Any) -> list[Any]:
        results = []
        with block():
            for step in steps:
                result = step(given)
                results.append(await result if inspect.isawaitable(result) else result)
        return results

    callback = sync_callback if side.runner is None else async_callback
    results: list[Any] = side.do(session.with_transaction, callback)
    return results


@contextlib.contextmanager
def session_of(side: Side, client: Any, **options: Any) -> Iterator[Any]:
    session = client.start_session(**options)
    try:
        yield session
    finally:
        side.do(session.end_session)


def limits(sent: SentCommands, *names: str) -> list[int | None]:
    """The server's time limit (ms) of each command of these names, None where there is none."""
    return [command.get("maxTimeMS") for command in sent.named(*names)]


def commit(side: Side, coll: Any) -> None:
    """An insert in a transaction of its own."""
    session = coll.database.client.start_session()
    try:
        # Awaited in an async client up to pymongo's newest, where it is.
        side.do(session.start_transaction)
        side.do(coll.insert_one, {}, session=session)
        side.do(session.commit_transaction)
    finally:
        side.do(session.end_session)


class DriversTime:
    """The clock of pymongo's deadlines, which a test can put forward."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


class TakesTime(SentCommands):
    """Each command takes so many of the driver's milliseconds."""

    def __init__(self, clock: DriversTime, each: float) -> None:
        super().__init__()
        self._clock, self._each = clock, each

    def succeeded(self, event: Any) -> None:
        super().succeeded(event)
        self._clock.passed += self._each / 1000


@pytest.fixture
def drivers_time(monkeypatch: pytest.MonkeyPatch) -> DriversTime:
    made = DriversTime()
    clock = SimpleNamespace(monotonic=made.monotonic)
    monkeypatch.setattr("pymongo._csot.time", clock)
    monkeypatch.setattr("pymongo_resilience_instrumentation.driver.csot.time", clock)
    return made
