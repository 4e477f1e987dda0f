"""One of several servers freezes: attempts on it are interrupted and made on another one. Attempts
on a server that answers are left alone, however slow they are."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.recovery import silent_servers
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import BlackHole, ReplicaSet, ShardedCluster, Slow

pytestmark = pytest.mark.each_setup
MANY = 8
STREAMING = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 10_000}
FROZEN_S = 30.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.05)
    monkeypatch.setattr(silent_servers, "PATIENCE", 0.4)
    monkeypatch.setattr(silent_servers, "PATIENCE_SHARE", 0.02)
    patient = silent_servers.UNANSWERED
    monkeypatch.setattr(silent_servers, "UNANSWERED", patient._replace(answers_within=0.3))


def at_once(side: Side, call: Callable[[int], Any]) -> list[Any]:
    """What calls with each number below ``MANY`` end with."""

    async def act() -> list[Any]:
        return await asyncio.gather(*map(call, range(MANY)), return_exceptions=True)

    if side.runner is not None:
        return list(side.do(act))

    def one(number: int) -> Any:
        try:
            return call(number)
        except PyMongoError as error:
            return error

    with ThreadPoolExecutor(MANY) as threads:
        contexts = [contextvars.copy_context() for _ in range(MANY)]
        return list(threads.map(lambda number: contexts[number].run(one, number), range(MANY)))


def errors(results: list[Any]) -> list[str]:
    return [repr(each) for each in results if isinstance(each, Exception)]


def connected(side: Side, deployment: Any, members: int, **options: Any) -> Any:
    client = side.do(side.client, deployment.uri, **{**STREAMING, **options})
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, members)
    at_once(side, lambda _: client.admin.command("ping"))
    return client


def test_of_two_routers_one_freezes(
    side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    plain = connected(side, cluster, 2, timeoutMS=700)
    hole = BlackHole(FROZEN_S)
    cluster.inject(hole, on=0)
    assert errors(at_once(side, lambda number: plain[database].plain.insert_one({"_id": number})))
    cluster.clear()

    telemetry = instrument()
    client = connected(side, cluster, 2)
    coll = client[database].coll
    cluster.inject(BlackHole(FROZEN_S), on=0)
    assert errors(at_once(side, lambda number: coll.insert_one({"_id": number}))) == []
    assert errors(at_once(side, lambda _: coll.find_one())) == []
    cluster.clear()
    assert side.do(coll.count_documents, {}) == MANY
    assert "interrupted" in {event.reason.value for event in telemetry.decisions.events}


def test_a_read_goes_on_at_another_member(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    options = {"readPreference": "nearest", "localThresholdMS": 20_000}
    coll = connected(side, replica_set, 3, **options)[database].coll
    replica_set.inject(BlackHole(FROZEN_S), on=1)
    assert errors(at_once(side, lambda _: coll.find_one())) == []
    replica_set.clear()


@pytest.mark.parametrize("name", ["insert", "update"])
def test_what_is_merely_slow_is_sent_once(
    name: str, side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = connected(side, cluster, 2, event_listeners=[sent])
    coll = client[database].coll
    cluster.inject(Slow(1.2))
    if name == "insert":
        side.do(coll.insert_one, {"_id": 1})
    else:
        side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    assert len(sent.named(name)) == 1


def test_what_would_not_be_retried_goes_on_waiting(
    side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    sent = SentCommands()
    client = connected(side, cluster, 2, event_listeners=[sent])
    coll = client[database].coll
    cluster.inject(BlackHole(1.5))
    with pytest.raises(PyMongoError):  # its connection is closed when the hole ends
        side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    cluster.clear()
    assert len(sent.named("update")) == 1
    assert "interrupted" not in {event.reason.value for event in telemetry.decisions.events}
