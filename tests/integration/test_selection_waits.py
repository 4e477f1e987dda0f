"""An operation that has to wait for a server shows it; one that has not, shows nothing."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.timeouts.bounded_waits import Wait
from pymongo_resilience_instrumentation.tools.testbed import Refuse
from support.clients import Side, wait_until
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, wait_for_server

import pymongo_resilience
from pymongo_resilience.testbed import ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

DURATION = "pymongo_resilience.server_selection.duration"
OUTCOME = "pymongo_resilience.outcome"
SELECTION_LOG = "pymongo.serverSelection"
SHORT_MS = 500
"""In which it is seen that there is nobody."""
WAITING = "Waiting for suitable server to become available"


def waits(telemetry: Any) -> dict[tuple[str, str], int]:
    return {
        (attributes["db.operation.name"], attributes[OUTCOME]): point.count
        for attributes, point in telemetry.points(DURATION)
    }


def events(telemetry: Any, name: str) -> list[Any]:
    (span,) = telemetry.operations(name)
    found = [event for event in span.events if event.name == "server_selection.waited"]
    for event in found:
        assert span.start_time < event.timestamp <= span.end_time
        assert 0 < event.attributes["pymongo_resilience.waited"] < 20
    return found


class OnceItWaits(logging.Handler):
    """Does something, in a thread of its own, once the driver says that it waits for a server."""

    def __init__(self, then: Callable[[], Any]) -> None:
        super().__init__()
        self.messages: list[str] = []
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        message = getattr(record.msg, "message", None) or record.getMessage()
        self.messages.append(message)
        if WAITING in message:
            threading.Thread(target=self._then).start()


@contextlib.contextmanager
def once_it_waits(then: Callable[[], Any]) -> Iterator[list[str]]:
    log, handler = logging.getLogger(SELECTION_LOG), OnceItWaits(then)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.messages
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def unreachable(side: Side, proxy: ReplicaSet, telemetry: Any, **options: Any) -> Any:
    """A client of a server that refuses connections until the deployment is cleared."""
    client = side.client(proxy.uri, **options)
    wait_for_server(side, client)
    proxy.inject(Refuse(60))

    def is_unknown() -> bool:
        with contextlib.suppress(PyMongoError):
            with pymongo_resilience.override(timeout_ms=20):
                side.do(client.admin.command, "ping")
        return not client.nodes

    wait_until(is_unknown)
    telemetry.clear()
    return client


def test_an_operation_that_finds_its_server_shows_nothing(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    before = waits(telemetry)
    side.do(client[database].coll.insert_one, {})
    side.documents(client[database].coll.find(batch_size=1))
    assert waits(telemetry) == before
    assert events(telemetry, f"insert {database}.coll") == []


def test_one_that_waited_until_a_server_was_there(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = unreachable(side, proxy, telemetry)
    with once_it_waits(proxy.clear):
        side.do(client[database].coll.insert_one, {})
    (event,) = events(telemetry, f"insert {database}.coll")
    assert event.attributes[OUTCOME] == "selected"
    assert waits(telemetry)["insert", "selected"] == 1


def test_one_that_waited_in_vain(side: Side, instrument: Instrument) -> None:
    telemetry = instrument()
    coll = side.client(NOBODY, serverSelectionTimeoutMS=SHORT_MS)["db"].coll
    with pytest.raises(ServerSelectionTimeoutError):
        side.do(coll.find_one)
    (event,) = events(telemetry, "find db.coll")
    assert event.attributes[OUTCOME] == "timed_out"
    assert event.attributes["pymongo_resilience.waited"] >= 0.05
    assert waits(telemetry) == {("find", "timed_out"): 1}


@pytest.mark.parametrize("broken", ["__init__", "add", "end"])
def test_a_fault_of_ours_waits_as_ever(
    broken: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = unreachable(side, proxy, instrument())

    def raises(*_: Any, **__: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(Wait, broken, raises)
    with once_it_waits(proxy.clear):
        assert side.do(client[database].coll.find_one) is None
    assert "internal error in pymongo-resilience" in caplog.text
