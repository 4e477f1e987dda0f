"""Runs with_transaction of either kind of client, and lets time pass for the driver alone."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.clients import SentCommands, Side

LOW, LONG = 20_000, 60_000
"""Milliseconds; none of them ever passes."""

Step = Callable[[Any], Any]


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


class DriversTime:
    """The clock of pymongo's deadlines, which a test can put forward."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def drivers_time(monkeypatch: pytest.MonkeyPatch) -> DriversTime:
    made = DriversTime()
    clock = SimpleNamespace(monotonic=made.monotonic)
    monkeypatch.setattr("pymongo._csot.time", clock)
    monkeypatch.setattr("pymongo_resilience_instrumentation.driver.deadline.time", clock)
    return made
