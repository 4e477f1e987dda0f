"""What the tests of cursors and their timeouts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo_resilience_instrumentation.timeouts.precedence import kept_by
from support.clients import SentCommands, Side

MINUTE = 60_000
"""Milliseconds; no operation of a test takes as long."""

Make = Callable[[Side, Any], Any]


def _raw(side: Side, coll: Any) -> Any:
    return side.do(coll.aggregate_raw_batches, [{"$match": {}}], batchSize=2)


MAKERS: dict[str, Make] = {
    "find": lambda _, coll: coll.find(batch_size=2),
    "find_raw_batches": lambda _, coll: coll.find_raw_batches(batch_size=2),
    "aggregate": lambda side, coll: side.do(coll.aggregate, [{"$match": {}}], batchSize=2),
    "aggregate_raw_batches": _raw,
}
"""Each gives a cursor that needs more than one batch for the ten documents there are."""


def age(cursor: Any, milliseconds: float = 2 * MINUTE) -> None:
    """As if it had been made that much earlier."""
    kept = kept_by(cursor)
    assert kept is not None
    kept.began -= milliseconds / 1000


def rest(side: Side, cursor: Any) -> list[Any]:
    """What next gives until the cursor is at its end; with the error, if it ends in one, last."""
    found: list[Any] = []
    try:
        while True:
            found.append(side.do(cursor.next))
    except (StopIteration, StopAsyncIteration):
        return found
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return [*found, error]


def with_max_time(sent: SentCommands, *names: str) -> list[bool]:
    """Whether each of these commands carried maxTimeMS, in order."""
    return ["maxTimeMS" in command for command in sent.named(*names)]
