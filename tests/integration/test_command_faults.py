"""Faults of single commands and of load: what each does, how often, and what it leaves alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.errors import WriteConcernError
from pymongo_resilience_instrumentation.tools.testbed import command_faults
from support.clients import Side, wait_until
from support.raw_client import RawClient, ask, new_session

from pymongo_resilience.testbed import (
    ConnectionRateLimit,
    Corrupt,
    CutAfter,
    CutBefore,
    EmbeddedServer,
    Fail,
    FailWriteConcern,
    RateLimit,
    ReplicaSet,
    Slow,
)

PING: dict[str, Any] = {"ping": 1}
HELLO: dict[str, Any] = {"hello": 1}


@pytest.fixture
def count(control: MongoClient[dict[str, Any]], database: str) -> Callable[[], int]:
    """How many documents the command of ``insert`` has stored."""
    return lambda: control[database].coll.count_documents({})


@pytest.fixture
def insert(database: str) -> dict[str, Any]:
    return {"insert": "coll", "documents": [{}], "$db": database}


@pytest.mark.parametrize(("kind", "executed"), [(CutBefore, 0), (CutAfter, 2)])
def test_a_cut_of_any_command_leaves_the_driver_s_own_alone(
    proxy: ReplicaSet, insert: dict[str, Any], count: Any, kind: Any, executed: int
) -> None:
    fault = kind(times=2)
    proxy.inject(fault)
    for _ in range(2):
        with RawClient(proxy.address) as client:
            for own in (HELLO, {"isMaster": 1}, {"endSessions": [new_session()]}):
                assert client.ask(own)["ok"] == 1
            with pytest.raises(ConnectionError):
                client.ask(insert)
    assert (fault.injected, count()) == (2, executed)
    assert ask(proxy.address, insert)["ok"] == 1
    assert (fault.injected, count()) == (2, executed + 1)


def test_fail_answers_what_it_was_told_and_executes_nothing(
    proxy: ReplicaSet, insert: dict[str, Any], count: Any
) -> None:
    fault = Fail(
        *("insert", 2),
        code=8000,
        name="Some",
        text="said so",
        labels=["One", "Two"],
        more={"extra": 1},
    )
    proxy.inject(fault)
    with RawClient(proxy.address) as client:
        assert client.ask(PING)["ok"] == 1
        for _ in range(2):
            assert client.ask(insert) == {
                "ok": 0.0,
                "code": 8000,
                "codeName": "Some",
                "errmsg": "said so",
                "errorLabels": ["One", "Two"],
                "extra": 1,
            }
        assert (fault.injected, count()) == (2, 0)
        assert client.ask(insert)["ok"] == 1


def test_an_error_inside_of_a_transaction_has_the_transaction_s_label(proxy: ReplicaSet) -> None:
    proxy.inject(Fail(times=3, code=6, labels=["One", "RetryableWriteError"]))
    transaction = {"lsid": new_session(), "txnNumber": Int64(1), "autocommit": False}
    for body, label in [
        ({"insert": "coll", "documents": [{}], **transaction}, "TransientTransactionError"),
        ({"commitTransaction": 1, **transaction}, "RetryableWriteError"),
        ({"insert": "coll", "documents": [{}]}, "RetryableWriteError"),
    ]:
        assert ask(proxy.address, body)["errorLabels"] == ["One", label]


@pytest.mark.parametrize("code", [91, 10107])
def test_an_error_about_the_member_s_state_is_news_to_those_who_await_it(
    proxy: ReplicaSet, code: int
) -> None:
    with RawClient(proxy.address) as monitor:
        known = monitor.ask(HELLO)["topologyVersion"]
        monitor.send({**HELLO, "topologyVersion": known, "maxAwaitTimeMS": 10_000})
        proxy.inject(Fail("ping", code=code))
        started = time.monotonic()
        told = ask(proxy.address, PING)["topologyVersion"]
        assert told == {**known, "counter": known["counter"] + 1}
        assert monitor.receive().body["topologyVersion"] == told
        assert time.monotonic() - started < 5


def test_a_write_concern_error_is_added_to_what_was_executed(
    side: Side, proxy: ReplicaSet, database: str, count: Any
) -> None:
    coll = side.client(proxy.uri, retryWrites=False)[database].coll
    fault = FailWriteConcern("insert", code=64, name="WriteConcernTimeout", labels=["Label"])
    proxy.inject(fault)
    with pytest.raises(WriteConcernError) as raised:
        side.do(coll.insert_one, {})
    assert (raised.value.code, raised.value.has_error_label("Label")) == (64, True)
    assert (fault.injected, count()) == (1, 1)


def test_a_corrupt_hello_is_corrupted_by_name(side: Side, proxy: ReplicaSet) -> None:
    """A driver marks the server unknown, and connects anew."""
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    fault = Corrupt(lambda reply: b"\x07\0\0\0" + reply.raw[4:], "hello", times=2)
    proxy.inject(fault)
    wait_until(lambda: side.do(client.admin.command, "ping") and fault.injected == 2)
    assert side.do(client.admin.command, "ping")["ok"] == 1


def test_the_fault_that_was_injected_first_acts_first(proxy: ReplicaSet) -> None:
    first, second = Fail(code=1111), Fail(code=2222, times=2)
    proxy.inject(first)
    proxy.inject(second)
    assert [ask(proxy.address, PING).get("code") for _ in range(4)] == [1111, 2222, 2222, None]
    assert proxy.injected() == {"Fail": 3}


def test_a_fault_strikes_whom_it_is_aimed_at(server: EmbeddedServer) -> None:
    with ReplicaSet(server.address) as replica_set:
        addresses = [member.address for member in replica_set.members]
        for on, struck in {"primary": [0], "secondary": [1, 2], 2: [2], "all": [0, 1, 2]}.items():
            replica_set.inject(Fail(code=1111, times=3), on=on)
            hit = [number for number in range(3) if "code" in ask(addresses[number], PING)]
            assert hit == struck
            replica_set.clear()


def test_a_rate_limit_admits_its_rate_after_its_burst(
    proxy: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the real clock, a machine that stands still loses what the bucket does not hold.
    now, rate, burst, seconds = 0.0, 64, 20, 0.5
    monkeypatch.setattr(command_faults, "time", SimpleNamespace(monotonic=lambda: now))
    fault = RateLimit(rate, burst, base_backoff=0.05)
    proxy.inject(fault)
    admitted, shed = 0, []
    with RawClient(proxy.address) as client:
        while now < seconds:
            now += 1 / 256
            reply = client.ask(PING)
            if reply["ok"] == 1:
                admitted += 1
            else:
                shed.append(reply)
    assert admitted == pytest.approx(burst + rate * now, abs=1)
    assert len(shed) == fault.injected > 0
    now += 10  # earns more than the bucket holds
    assert [ask(proxy.address, PING)["ok"] for _ in range(burst + 1)] == [1] * burst + [0]
    for reply in shed:
        assert (reply["code"], reply["baseBackoffMS"]) == (462, 50)
        labels = ["SystemOverloadedError", "RetryableError", "NoWritesPerformed"]
        assert reply["errorLabels"] == labels


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token buckets do not refill."""
    monkeypatch.setattr(command_faults, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.parametrize(
    "command", ["hello", "isMaster", "saslStart", "saslContinue", "ping", "killCursors",
                "endSessions", "commitTransaction", "abortTransaction", "find"]
)  # fmt: skip
@pytest.mark.usefixtures("frozen_time")
def test_a_rate_limit_rejects_every_command_and_keeps_the_connection(
    proxy: ReplicaSet, command: str
) -> None:
    fault = RateLimit(1, burst=1)
    proxy.inject(fault)
    with RawClient(proxy.address) as client:
        assert client.ask(PING)["ok"] == 1
        for _ in range(3):
            reply = client.ask({command: 1, "$db": "admin"})
            assert (reply["ok"], reply["code"]) == (0, 462)
            assert reply["codeName"] == "IngressRequestRateLimitExceeded"
            assert "topologyVersion" not in reply
        assert fault.struck == 3
        proxy.clear()
        assert client.ask(PING)["ok"] == 1


@pytest.mark.usefixtures("frozen_time")
def test_a_rejection_costs_what_the_rate_limit_says(
    proxy: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.inject(RateLimit(1, burst=1, rejection_cost=0.5))
    with RawClient(proxy.address) as client:
        replies = [client.ask(PING)["ok"] for _ in range(4)]  # leaves -1.5 tokens
        moment = SimpleNamespace(monotonic=lambda: 2.0)
        monkeypatch.setattr(command_faults, "time", moment)
        replies.append(client.ask(PING)["ok"])
    assert replies == [1, 0, 0, 0, 0]


@pytest.mark.usefixtures("frozen_time")
def test_an_awaited_hello_takes_its_token_when_it_arrives(proxy: ReplicaSet) -> None:
    with RawClient(proxy.address) as monitor, RawClient(proxy.address) as client:
        version = monitor.ask(HELLO)["topologyVersion"]
        fault = RateLimit(1, burst=1)
        proxy.inject(fault)
        awaiting = {**HELLO, "topologyVersion": version, "maxAwaitTimeMS": 60_000}
        monitor.send(awaiting)
        wait_until(lambda: client.ask(PING)["ok"] == 0)
        monitor.send(PING)  # ends the wait
        assert monitor.receive().body["code"] == 462
        started = time.monotonic()
        assert monitor.ask(awaiting)["code"] == 462
        assert time.monotonic() - started < 30


@pytest.mark.usefixtures("frozen_time")
def test_an_exempt_application_is_known_after_its_handshake(proxy: ReplicaSet) -> None:
    hello = {**HELLO, "client": {"application": {"name": "exempt"}}}
    limit = RateLimit(1, burst=1, exempt=["exempt"])
    proxy.inject(limit)
    with RawClient(proxy.address) as client, RawClient(proxy.address) as late:
        assert client.ask(hello)["ok"] == 1
        assert [client.ask(PING)["ok"] for _ in range(3)] == [1, 1, 1]
        assert late.ask(hello)["code"] == late.ask(PING)["code"] == 462


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.usefixtures("frozen_time")
def test_a_connection_rate_limit_acts_on_new_connections_alone(
    proxy: ReplicaSet, *, rejects: bool
) -> None:
    with RawClient(proxy.address) as old:
        assert old.ask(HELLO)["ok"] == 1
        fault = ConnectionRateLimit(1, burst=1, rejects=rejects)
        proxy.inject(fault)
        with RawClient(proxy.address) as admitted, RawClient(proxy.address) as refused:
            assert [admitted.ask(each)["ok"] for each in (HELLO, PING)] == [1, 1]
            if rejects:
                assert refused.ask(HELLO)["code"] == 462
            else:
                with pytest.raises(ConnectionError):
                    refused.ask(HELLO)
        assert old.ask(PING)["ok"] == 1
        assert fault.struck == 1


def test_a_slow_server_s_hellos_are_fast_and_its_work_is_done_at_once(
    proxy: ReplicaSet, database: str, control: MongoClient[Any]
) -> None:
    slow = 2.0
    proxy.inject(Slow(slow))
    with RawClient(proxy.address) as client, RawClient(proxy.address) as monitor:
        started = time.monotonic()
        client.send({"insert": "coll", "documents": [{}], "$db": database})
        assert monitor.ask(HELLO)["ok"] == 1
        wait_until(lambda: control[database].coll.count_documents({}) == 1)
        assert time.monotonic() - started < slow
        assert client.receive().body["ok"] == 1
        assert time.monotonic() - started >= slow
