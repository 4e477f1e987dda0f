"""An operation, set up as the README does it, passes few wrappers, and little code of the
library."""

from __future__ import annotations

import asyncio
import importlib
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pymongo_resilience_instrumentation.telemetry.transaction_spans import sessions_used
from pymongo_resilience_instrumentation.timeouts.command_limits import reply_limits_used
from pymongo_resilience_instrumentation.timeouts.precedence import cursor_timeouts_used
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.telemetry import Instrument

from pymongo_resilience.policies.blocks import policies_used

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
HOPS = (ROOT / "docs" / "architecture.md").read_text().partition("hop by hop")[2]
CROSSINGS = 8
"""At most, between the driver and the library."""
FRAMES = {"with an SDK": 50, "executor alone": 23}
"""At most, Python calls of the library's own functions. The text of an update needs six of them."""
AFTER_LOST_REPLY = 325, 48
"""At most, such calls and the files that they are in, from the call to the result of the retry."""


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("crossings")


@pytest.mark.parametrize("operation", ["find_one", "insert_one", "update_one"])
@pytest.mark.parametrize("side", ["sync", "async"])
@pytest.mark.parametrize("setup", FRAMES)
def test_a_healthy_operation_makes_few_calls(
    setup: str, operation: str, side: str, crossings: Any, server: EmbeddedServer,
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    forget_earlier_use(monkeypatch)
    shown = setup != "executor alone"
    instrument(timeout_ms=20_000, traces=shown, metrics=shown)
    run = crossings.OPERATIONS[operation]

    def counted() -> Any:
        if side == "sync":
            return crossings.sync_operation(server.uri, run)
        return asyncio.run(crossings.async_operation(server.uri, run))

    # In a task, monitors are counted that run meanwhile.
    best = min((counted() for _ in range(3)), key=lambda each: len(each.frames))
    assert best.crossings <= CROSSINGS, best.frames
    assert len(best.frames) <= FRAMES[setup], best.frames
    assert "retries/after_failure.py" not in modules(best.frames), "prepared for a failure"
    if side == "sync":
        assert modules(best.frames) <= set(re.findall(r"`([\w/]+\.py)`", HOPS))


def test_a_lost_reply_passes_few_files(
    crossings: Any, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_earlier_use(monkeypatch)
    instrument(timeout_ms=20_000, traces=False, metrics=False)
    frames = crossings.lost_reply().frames
    calls, files = AFTER_LOST_REPLY
    assert "retries/after_failure.py" in modules(frames), "not retried"
    assert len(frames) <= calls, frames
    assert len(modules(frames)) <= files, modules(frames)


def forget_earlier_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrapped for an earlier test costs calls."""
    for used in (policies_used, cursor_timeouts_used, reply_limits_used, sessions_used):
        monkeypatch.setattr(used, "happened", False)


def modules(frames: list[str]) -> set[str]:
    """As docs/architecture.md names them."""
    paths = {each.partition(":")[0] for each in frames}
    inside = {path.removeprefix("instrumentation/pymongo_resilience_") for path in paths}
    return {path.removeprefix("instrumentation/") for path in inside}


@pytest.mark.parametrize("side", ["sync", "async"])
def test_a_feature_that_is_not_used_runs_no_code_in_a_healthy_operation(
    side: str, crossings: Any, server: EmbeddedServer, instrument: Instrument
) -> None:
    for path in chain.from_iterable(crossings.UNUSED.values()):
        assert (ROOT / path).exists()
    instrument(timeout_ms=20_000, traces=False, metrics=False)
    for run in crossings.OPERATIONS.values():
        if side == "sync":
            counted = crossings.sync_operation(server.uri, run)
        else:
            counted = asyncio.run(crossings.async_operation(server.uri, run))
        assert counted.frames, "the library was there"
        assert not [each for each in crossings.UNUSED if crossings.frames_of(counted, each)]
