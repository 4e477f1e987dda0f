"""How far a failed attempt came is known, also where nothing of ours listens to the driver.

Shown by what depends on it: a write without a transaction number is repeated where nothing was
sent, and not where the command may have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import DeleteMany, UpdateMany
from pymongo.errors import PyMongoError
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.rules.failure import Stage
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Fail,
    Interception,
    ReplicaSet,
)

OFF = {"metrics": False, "traces": False}


class Staged:
    """A strategy that never repeats, and notes the stage."""

    def __init__(self) -> None:
        self.seen: list[Stage] = []

    def retry_after(self, operation: Any, failure: Any, /) -> None:
        self.seen.append(failure.stage)


@pytest.fixture(params=["made before", "no telemetry"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[{"timeout_ms": 20_000}, {}], ids=["timed", "light"])
def unheard(
    request: pytest.FixtureRequest, how: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> Callable[..., Any]:
    """``unheard(**options)``: a client without any listener, in an instrumented process."""

    def make(**options: Any) -> Any:
        if how == "made before":
            client = side.client(proxy.uri)
            made = instrument(base_backoff_ms=1, **request.param, **options)
        else:
            made = instrument(base_backoff_ms=1, **request.param, **OFF, **options)
            client = side.client(proxy.uri)
        assert client.options.event_listeners == []
        # A monitor is there, and no connection of the pool.
        assert side.do(lambda: client.address) == proxy.address
        return client, made

    return make


STAGES: dict[str, tuple[Callable[[], Interception], Stage]] = {
    "cut before": (lambda: CutBefore("find"), Stage.IN_FLIGHT),
    "cut after": (lambda: CutAfter("find"), Stage.IN_FLIGHT),
    "answered": (lambda: Fail("find", code=6), Stage.ANSWERED),
    "cut at the handshake": (CutAtHandshake, Stage.NOT_SENT),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_strategy_is_told_the_stage(
    name: str, side: Side, proxy: ReplicaSet, database: str, unheard: Callable[..., Any]
) -> None:
    strategy = Staged()
    client, _ = unheard(strategy=strategy)
    fault, stage = STAGES[name]
    proxy.inject(fault())
    with pytest.raises(PyMongoError):
        side.do(client[database].coll.find_one)
    assert strategy.seen == [stage]


MULTI: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "update_many": lambda coll: (coll.update_many, {}, {"$inc": {"n": 1}}),
    "bulk_write": lambda coll: (coll.bulk_write, [UpdateMany({}, {"$inc": {"n": 1}})]),
    "mixed bulk_write": lambda coll: (
        coll.bulk_write,
        [UpdateMany({}, {"$inc": {"n": 1}}), DeleteMany({"none": 1})],
    ),
}


@pytest.mark.parametrize("method", MULTI)
def test_a_multi_document_write_repeats_what_was_not_sent(
    method: str, side: Side, proxy: ReplicaSet, database: str, control: Any,
    unheard: Callable[..., Any],
) -> None:  # fmt: skip
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in range(5)])
    client, telemetry = unheard()
    proxy.inject(CutAtHandshake())
    call = MULTI[method](client[database].coll)
    side.do(*call)
    assert [document["n"] for document in control[database].coll.find()] == [1] * 5
    assert len(telemetry.decisions.events) == 1
    proxy.inject(CutAfter("update"))
    with pytest.raises(PyMongoError):
        side.do(*call)
    assert [document["n"] for document in control[database].coll.find()] == [2] * 5


def test_the_later_command_of_a_bulk_that_is_interrupted_counts_as_in_flight(
    side: Side, proxy: ReplicaSet, database: str, control: Any, unheard: Callable[..., Any]
) -> None:
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in range(5)])
    client, _ = unheard()
    proxy.inject(CutAfter("delete"))
    with pytest.raises(PyMongoError):
        side.do(*MULTI["mixed bulk_write"](client[database].coll))
    assert [document["n"] for document in control[database].coll.find()] == [1] * 5
