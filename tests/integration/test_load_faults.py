"""Faults of load: overload, a rate limit that keeps its rate, and a server that is slow."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation.tools.testbed import command_faults
from support.clients import Side, wait_until
from support.raw_client import RawClient, ask

from pymongo_resilience.testbed import Overload, RateLimit, ReplicaSet, Slow

Document = dict[str, Any]
HELLO: Document = {"hello": 1}
PING: Document = {"ping": 1}


@pytest.fixture
def count(control: MongoClient[Any], database: str) -> Any:
    return lambda: control[database].coll.count_documents({})


def test_overload_carries_both_labels_and_its_base_back_off(
    side: Side, proxy: ReplicaSet, database: str, count: Any
) -> None:
    coll = side.client(proxy.uri)[database].coll
    fault = Overload("insert", times=3, base_backoff=0.001)
    proxy.inject(fault)
    with pytest.raises(OperationFailure) as raised:
        side.do(coll.insert_one, {})
    assert raised.value.code == 462
    assert raised.value.has_error_label("SystemOverloadedError")
    assert raised.value.has_error_label("RetryableError")
    assert (raised.value.details or {})["baseBackoffMS"] == 1
    assert (fault.injected, count()) == (3, 0)


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
            assert client.ask(HELLO)["ok"] == 1
            reply = client.ask(PING)
            if reply["ok"] == 1:
                admitted += 1
            else:
                shed.append(reply)
    assert admitted == pytest.approx(burst + rate * now, abs=1)
    assert len(shed) == fault.injected > 0
    for reply in shed:
        assert (reply["code"], reply["baseBackoffMS"]) == (462, 50)
        assert reply["errorLabels"] == ["SystemOverloadedError", "RetryableError"]


def test_a_pause_fills_the_bucket_and_no_more(
    proxy: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the real clock, a slow machine earns tokens between one ping and the next.
    now = 0.0
    monkeypatch.setattr(command_faults, "time", SimpleNamespace(monotonic=lambda: now))
    proxy.inject(RateLimit(5, burst=2))
    with RawClient(proxy.address) as client:
        assert [client.ask(PING)["ok"] for _ in range(3)] == [1, 1, 0]
        now += 0.7  # earns more than the bucket holds
        assert [client.ask(PING)["ok"] for _ in range(3)] == [1, 1, 0]


def test_a_rate_limit_ends_and_begins_when_it_is_injected(proxy: ReplicaSet) -> None:
    seconds = 2.0
    fault = RateLimit(0.01, seconds=seconds)
    time.sleep(0.25)  # does not count
    started = time.monotonic()
    proxy.inject(fault)
    assert [ask(proxy.address, PING)["ok"] for _ in range(2)] == [1, 0]
    wait_until(lambda: ask(proxy.address, PING)["ok"] == 1)
    assert time.monotonic() - started >= seconds


def test_a_slow_server_answers_late_until_cleared(
    side: Side, proxy: ReplicaSet, database: str
) -> None:
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    fault = Slow(0.15)
    proxy.inject(fault)
    started = time.monotonic()
    side.do(coll.find_one)
    assert time.monotonic() - started >= 0.15
    assert fault.injected == 1
    proxy.clear()
    side.do(coll.find_one)
    assert fault.injected == 1


def test_a_slow_server_s_hellos_are_fast_and_its_work_is_done_at_once(
    proxy: ReplicaSet, database: str, count: Any
) -> None:
    slow = 2.0
    proxy.inject(Slow(slow))
    with RawClient(proxy.address) as client, RawClient(proxy.address) as monitor:
        started = time.monotonic()
        client.send({"insert": "coll", "documents": [{}], "$db": database})
        assert monitor.ask(HELLO)["ok"] == 1
        wait_until(lambda: count() == 1)
        assert time.monotonic() - started < slow
        assert client.receive().body["ok"] == 1
        assert time.monotonic() - started >= slow
