"""Every command that started ends: with one event and one log line, whatever interrupts it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from pymongo import AsyncMongoClient
from pymongo_resilience_instrumentation import driver
from support.clients import Side
from support.interrupted_calls import CALLS
from support.interruption import NAMES, Held, Journal, cancel, interrupt
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import set_active


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def held(proxy: ReplicaSet) -> Iterator[Callable[[str], Held]]:
    def start(command: str) -> Held:
        held = Held(command)
        proxy.inject(held)
        return held

    yield start
    proxy.clear()


def _seeded(side: Side, proxy: ReplicaSet, database: str, journal: Journal) -> Any:
    coll = side.do(side.client, proxy.uri, event_listeners=[journal])[database].coll
    side.do(coll.insert_many, [{"_id": number} for number in range(5)])
    return coll


def _log_of(caplog: pytest.LogCaptureFixture) -> dict[int, list[str]]:
    """What the driver's own log says of each command, by its request."""
    found: dict[int, list[str]] = {}
    for record in caplog.records:
        if record.name == "pymongo.command":
            line = json.loads(record.getMessage())
            found.setdefault(line["requestId"], []).append(line["message"])
    return found


@pytest.mark.parametrize("kind", CALLS)
def test_an_interrupted_command_has_failed(
    kind: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    held: Callable[[str], Held],
    journal: Journal,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument()
    caplog.set_level(logging.DEBUG, logger="pymongo.command")
    coll = _seeded(side, proxy, database, journal)
    name, prepare = CALLS[kind]
    act = prepare(side, coll)
    interrupt(side, held(name).has_it, *act)

    assert journal.without_exactly_one_end() == []
    started = journal.started_commands(name)[-1]
    (failed,) = journal.ends_of(started)
    assert type(failed).__name__ == "CommandFailedEvent"
    assert failed.failure == {
        "errmsg": f"interrupted by {NAMES[side.name]}",
        "errtype": NAMES[side.name],
    }
    for fact in ("command_name", "database_name", "request_id", "operation_id", "connection_id",
                 "server_connection_id", "service_id"):  # fmt: skip
        assert getattr(failed, fact) == getattr(started, fact), fact
    assert failed.duration_micros > 0
    later = journal.names_after(failed)
    if kind != "exhaust":  # the cursor has the connection, and gives it back when it is closed
        assert later[:2] == ["ConnectionCheckedInEvent", "ConnectionClosedEvent"]

    log = _log_of(caplog)
    assert log[started.request_id] == ["Command started", "Command failed"]
    assert {len(lines) for lines in log.values()} == {2}

    (broken,) = [span for span in _commands(telemetry, name) if span.status.description]
    assert broken.attributes["exception.type"].endswith(NAMES[side.name])
    assert len(_commands(telemetry)) == len(log), "a span for each command, ended once"


def _commands(telemetry: Telemetry, name: str | None = None) -> list[ReadableSpan]:
    found = [span for span in telemetry.spans() if "db.command.name" in span.attributes]
    return [span for span in found if name is None or span.name == name]


def test_also_after_its_reply_has_arrived(
    proxy: ReplicaSet, database: str, journal: Journal, instrument: Instrument
) -> None:
    """pymongo gossips the cluster time before it reports, and may have to wait for a lock there."""
    instrument()

    async def main() -> None:
        arrived = threading.Event()

        async def gossip(*_: Any) -> None:
            arrived.set()
            await asyncio.Event().wait()

        async with AsyncMongoClient(proxy.uri, event_listeners=[journal]) as client:
            await client.admin.command("ping")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client, "_process_response", gossip)
                await cancel(arrived.is_set, client[database].coll.find_one)

    asyncio.run(main())
    assert len(journal.started_commands("find")) == 1
    assert journal.without_exactly_one_end() == []


@pytest.mark.parametrize("is_older", [False, True], ids=["without telemetry", "of an older client"])
def test_also_where_no_listener_of_ours_hears_it(
    is_older: bool,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    held: Callable[[str], Held],
    journal: Journal,
    instrument: Instrument,
) -> None:
    if not is_older:
        instrument(traces=False, metrics=False)
    coll = _seeded(side, proxy, database, journal)
    if is_older:
        instrument()
    interrupt(side, held("find").has_it, coll.find_one)
    assert len(journal.started_commands("find")) == 1
    assert journal.without_exactly_one_end() == []


def _interrupted_find(side: Side, coll: Any, held: Callable[[str], Held], journal: Journal) -> Any:
    interrupt(side, held("find").has_it, coll.find_one)
    (started,) = journal.started_commands("find")
    return journal.ends_of(started)


def test_pymongo_alone_leaves_it_without_an_end(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    held: Callable[[str], Held],
    journal: Journal,
    instrument: Instrument,
) -> None:
    """pymongo 4.18 to 4.20 report what raises an Exception: once one reports more, ours can go."""
    instrument()
    with set_active(False):
        coll = _seeded(side, proxy, database, journal)
        assert _interrupted_find(side, coll, held, journal) == []


def test_a_pymongo_that_reports_it_itself_is_left_alone(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    held: Callable[[str], Held],
    journal: Journal,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in driver.interruptions.SENDERS:
        module = importlib.import_module(name)
        source = inspect.getsource(module._run_command)
        assert source.count("except Exception as exc") == 1
        later: dict[str, Any] = {}
        exec(source.replace("except Exception", "except BaseException"), vars(module), later)  # noqa: S102 - pymongo's own source, of a later day
        monkeypatch.setattr(module, "_run_command", later["_run_command"])
    instrument()
    coll = _seeded(side, proxy, database, journal)
    (failed,) = _interrupted_find(side, coll, held, journal)
    assert failed.failure["errmsg"] != f"interrupted by {NAMES[side.name]}"
