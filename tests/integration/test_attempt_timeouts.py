"""What was sent and is not answered in the time of an attempt is given up, and repeated."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from pymongo.errors import ExecutionTimeout, NetworkTimeout
from pymongo_resilience_instrumentation.timeouts import bounded_waits
from support.clients import SentCommands, Side, fail_command, wait_until
from support.telemetry import Instrument

from pymongo_resilience import OperationTimeoutError, Policy, bind, override, status
from pymongo_resilience.errors import Rule
from pymongo_resilience.testbed import BlackHole, CutBefore, ReplicaSet

pytestmark = pytest.mark.oldest
PLENTY_MS = 20_000
SLOW_MS = 3000
SOON = 10.0
ATTEMPT_MS = 300


@pytest.fixture(autouse=True)
def quick_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_waits, "CONNECTING", ATTEMPT_MS / 3000)


def reasons(telemetry: Any) -> list[str]:
    return [event.reason.value for event in telemetry.decisions.events]


@pytest.mark.parametrize("deadline", [PLENTY_MS, None])
@pytest.mark.parametrize("operation", ["insert", "find"])
def test_an_attempt_without_an_answer_is_repeated(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    deadline: Any,
    operation: str,
) -> None:
    telemetry = instrument(timeout_ms=deadline, attempt_timeout_ms=ATTEMPT_MS)
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    hole = BlackHole(2 * ATTEMPT_MS / 1000)
    began = time.monotonic()
    proxy.inject(hole)
    with override(timeout_ms=PLENTY_MS):
        if operation == "insert":
            side.do(coll.insert_one, {"_id": 2})
        else:
            assert side.do(coll.find_one, {"_id": 1}) == {"_id": 1}
    assert time.monotonic() - began < SOON
    assert "attempt_timeout" in reasons(telemetry)
    assert telemetry.shows_reason("attempt_timeout")
    assert side.do(coll.count_documents, {}) == (2 if operation == "insert" else 1)
    (server,) = status(coll.database.client).servers
    # The others had no connection yet.
    assert 1 <= server.lost_connections["attempt_timeout"] <= len(reasons(telemetry))


def test_a_read_is_repeated_on_another_member(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=PLENTY_MS, attempt_timeout_ms=ATTEMPT_MS)
    options = {"readPreference": "secondary", "localThresholdMS": PLENTY_MS}
    client = side.do(side.client, replica_set.uri, **options)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    replica_set.inject(BlackHole(PLENTY_MS / 1000), on=1)
    silent = replica_set.members[1].host_and_port
    met_it: list[list[str]] = []

    def five_times() -> bool:
        telemetry.clear()
        for each in client._topology._servers.values():
            each.pool.operation_count = 0  # 4.17 leaves those in it whose connecting failed
        side.do(client[database].coll.find_one)
        failed_on = [event.server for event in telemetry.decisions.events]
        met_it.extend([failed_on] if silent in failed_on else [])
        return len(met_it) == 5

    wait_until(five_times, timeout=60)
    # Drawn again, it would be the silent one every other time. On a busy machine, an attempt on
    # another member may take too long as well.
    assert all((silent, silent) not in pairwise(servers) for servers in met_it)
    replica_set.clear()


def test_with_the_budget_spent_the_third_attempt_has_the_time_that_is_left(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=PLENTY_MS, attempt_timeout_ms=ATTEMPT_MS)
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutBefore("find", times=8))
    side.do(coll.find_one)
    telemetry.clear()

    def open_again() -> None:
        wait_until(lambda: len(telemetry.decisions.events) >= 2)
        time.sleep(0.5 + 3 * ATTEMPT_MS / 1000)  # a third one, with the wait before it
        proxy.clear()

    proxy.inject(BlackHole(PLENTY_MS / 1000))
    opening = threading.Thread(target=open_again)
    opening.start()
    side.do(coll.find_one)
    opening.join()
    assert reasons(telemetry).count("attempt_timeout") == 2
    assert reasons(telemetry)[:2] == ["attempt_timeout"] * 2


@pytest.mark.parametrize("how", ["config", "override", "binding", "rule"])
def test_wherever_it_is_set(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, how: str
) -> None:
    policy = Policy(attempt_timeout_ms=ATTEMPT_MS)
    telemetry = instrument(
        attempt_timeout_ms=ATTEMPT_MS if how == "config" else None,
        policies={f"{database}.*": policy} if how == "rule" else None,
    )
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    if how == "binding":
        coll = bind(coll, policy)
    proxy.inject(BlackHole(SLOW_MS / 1000))
    with override(attempt_timeout_ms=ATTEMPT_MS if how == "override" else None):
        began = time.monotonic()
        with pytest.raises(NetworkTimeout) as raised:
            side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    assert time.monotonic() - began < SLOW_MS / 1000
    assert f"no answer within {ATTEMPT_MS} ms" in str(raised.value)
    assert reasons(telemetry) == ["attempt_timeout"]


def test_the_server_has_the_same_limit(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=PLENTY_MS)
    sent = SentCommands()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.distinct, "n")
    with override(attempt_timeout_ms=ATTEMPT_MS):
        side.do(coll.distinct, "n")
    with override(attempt_timeout_ms=ATTEMPT_MS, timeout_ms=ATTEMPT_MS // 2):
        side.do(coll.distinct, "n")
    side.do(coll.distinct, "n")
    limits = [command.get("maxTimeMS") for command in sent.named("distinct")]
    first, attempts, deadlines, last = limits
    assert 0 < attempts <= ATTEMPT_MS
    assert 0 < deadlines <= ATTEMPT_MS // 2
    assert min(first, last) > ATTEMPT_MS, "it ends with its block"


@pytest.mark.parametrize("deadline", [PLENTY_MS, None])
def test_commands_that_make_cursors_have_no_limit_of_an_attempts(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, deadline: int | None
) -> None:
    """The server counts all batches of a cursor to it: a long one would end in the middle."""
    instrument(timeout_ms=deadline, attempt_timeout_ms=ATTEMPT_MS)
    sent = SentCommands()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_many, [{"_id": number} for number in range(3)])
    side.documents(coll.find(batch_size=2))
    side.do(coll.find_one, max_time_ms=ATTEMPT_MS * 9)
    side.documents(side.do(coll.aggregate, [], batchSize=2))
    side.documents(side.do(coll.list_indexes))
    side.documents(side.do(client[database].list_collections))
    own = [command.get("maxTimeMS") for command in sent.named("find")]
    assert own == [None, ATTEMPT_MS * 9]
    for name in ("aggregate", "listIndexes", "listCollections", "getMore"):
        assert sent.named(name), name
        assert all(
            "maxTimeMS" not in each or each["maxTimeMS"] > PLENTY_MS // 2
            for each in sent.named(name)
        ), name


def test_a_limit_that_the_server_keeps_is_the_attempts(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=PLENTY_MS, attempt_timeout_ms=ATTEMPT_MS)
    coll = side.do(side.client, proxy.uri)[database].coll
    with fail_command(control, "distinct", "find", errorCode=50, times=1):
        assert side.do(coll.distinct, "a") == []
    assert reasons(telemetry) == ["attempt_timeout"]


@pytest.mark.parametrize("timeout_ms", [None, PLENTY_MS])
def test_a_limit_that_is_not_the_attempts_ends_the_operation(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    """A find is sent without the attempt's limit, and what the application gives is shorter."""
    telemetry = instrument(timeout_ms=timeout_ms, attempt_timeout_ms=ATTEMPT_MS)
    coll = side.do(side.client, proxy.uri)[database].coll
    for call in (coll.find_one, lambda: coll.distinct("a", maxTimeMS=ATTEMPT_MS // 2)):
        with fail_command(control, "distinct", "find", errorCode=50, times=1):
            with pytest.raises(ExecutionTimeout) as caught:
                side.do(call)
        assert not isinstance(caught.value, OperationTimeoutError)
    assert [each.rule for each in telemetry.decisions.events] == [Rule.TIME_LIMIT] * 2


def test_making_a_connection_ends_in_an_error_that_names_the_time(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, proxy.uri)
    side.do(client.admin.command, "ping")
    proxy.inject(BlackHole(SLOW_MS / 1000))
    with override(attempt_timeout_ms=ATTEMPT_MS), pytest.raises(NetworkTimeout) as raised:
        side.do(client[database].coll.find_one)
    assert reasons(telemetry) == ["attempt_timeout"] * 2
    assert f"no answer within {ATTEMPT_MS} ms (" in str(raised.value)
    assert not raised.value.has_error_label("SystemOverloadedError"), "no server rejected it"
