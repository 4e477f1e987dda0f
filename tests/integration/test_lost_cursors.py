"""A getMore without an answer leaves its cursor open at the server, although pymongo takes it for
closed: the client's background task kills it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import CutAfter, CutBefore, Overload, Refuse, ReplicaSet

pytestmark = [pytest.mark.oldest, pytest.mark.each_setup]


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> str:
    control[database].coll.insert_many([{"_id": n} for n in range(9)])
    return database


def open_cursors(control: Any) -> int:
    count: int = control.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    return count


def background(side: Side, client: Any) -> None:
    """What the task does once a second; here, the one of the client has perhaps been faster."""
    side.do(getattr(client, driver.clients.BACKGROUND))


def killed(sent: SentCommands) -> list[Any]:
    return [command["cursors"] for command in sent.named("killCursors")]


@pytest.mark.parametrize("cut", [CutBefore, CutAfter])
def test_after_a_cut_connection(
    cut: Any, side: Side, proxy: ReplicaSet, coll: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    before = open_cursors(control)
    cursor = client[coll].coll.find(batch_size=2)
    side.do(cursor.next)
    cursor_id = cursor.cursor_id
    assert open_cursors(control) == before + 1
    proxy.inject(cut("getMore"))
    with pytest.raises(AutoReconnect):
        side.documents(cursor)
    proxy.clear()
    side.do(client.admin.command, "ping")  # the server is known again
    background(side, client)
    assert killed(sent) == [[cursor_id]]
    assert open_cursors(control) == before


def test_the_task_does_not_wait_for_a_server_that_is_gone(
    side: Side, proxy: ReplicaSet, coll: str, sent: SentCommands, instrument: Instrument
) -> None:
    """It keeps the pools as well."""
    instrument()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    cursor = client[coll].coll.find(batch_size=2)
    side.do(cursor.next)
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(AutoReconnect):
        side.documents(cursor)
    back = proxy.inject(Refuse(1.0))
    side.wait_until(lambda: not driver.finds.is_known(client, proxy.address))
    began = time.monotonic()
    background(side, client)
    assert killed(sent) == []
    assert not back.done(), time.monotonic() - began
    side.wait_until(lambda: driver.finds.is_known(client, proxy.address))
    background(side, client)
    assert len(killed(sent)) == 1


def test_a_find_that_was_resumed_leaves_no_cursor(
    side: Side, proxy: ReplicaSet, coll: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    before = open_cursors(control)
    with override(resumable=True, timeout_ms=20_000):
        cursor = client[coll].coll.find(batch_size=2)
        side.do(cursor.next)
        proxy.inject(CutBefore("getMore", times=1))
        assert len(side.documents(cursor)) == 8
    background(side, client)
    assert open_cursors(control) == before


def test_what_was_rejected_once_is_forgotten(
    side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1)
    client = side.do(side.client, proxy.uri)
    for _ in range(5):
        cursor = client[coll].coll.find(batch_size=2)
        side.do(cursor.next)
        query = SimpleNamespace(db=coll, coll="coll")
        address = driver.cursors.cursor_address(query, cursor.address)
        driver.clients.kill_later(client, cursor.cursor_id, address)
        proxy.inject(Overload("killCursors", times=1))
        for _ in range(3):
            background(side, client)
        proxy.clear()
    runtime = PymongoResilienceInstrumentor()._runtime
    assert runtime is not None
    assert not runtime.clients.of(client).lost_cursors
