"""``pymongo-resilience report``: what is recorded is counted and drawn in one file."""

from __future__ import annotations

import html.parser
import json
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree as ET

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.report import Recorder, records
from pymongo_resilience_instrumentation.tools.report.page import page
from pymongo_resilience_instrumentation.tools.report.records import (
    Fault,
    Operation,
    ReportError,
    Side,
    read,
)

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import (
    BreakerClosed,
    BreakerOpened,
    Event,
    EventLog,
    ReadHedged,
    RetryDeclined,
    RetryScheduled,
)
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, EmbeddedServer, Latency, ReplicaSet

SERVER = "db1:27017"
CLOSED = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
SCHEDULED = RetryScheduled("find", "shop.orders", CLOSED, SERVER, 1, 0.1)
DECLINED = RetryDeclined("find", "shop.orders", CLOSED, SERVER, 2, Rule.ATTEMPTS)
EVENTS = (SCHEDULED, DECLINED, BreakerOpened(SERVER, 20, 15, 1.0), BreakerClosed(SERVER))
HEDGED = ReadHedged("find", "shop.orders", SERVER, None, 0.01, "first")


def operation(at: float, seconds: float = 0.1, error: str | None = None) -> Operation:
    return Operation(at, "find", seconds, error, SERVER)


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


class _Loads(html.parser.HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe", "object", "embed"}:
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name in {"src", "href", "xlink:href"}]


def assert_stands_alone(text: str) -> None:
    loads = _Loads()
    loads.feed(text)
    assert loads.found == []
    assert not re.search(r"url\(|@import|https?://", text)
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(drawn)  # noqa: S314 - written above


def test_quantiles_and_errors() -> None:
    times = [operation(0.0, each / 100) for each in range(1, 100)]
    found = records.latency([*times, operation(0.0, 1.0, "AutoReconnect")])
    assert found == (100, 1, 0.5, 0.99, 1.0)
    assert records.latency([]) == (0, 0, None, None, None)


def test_what_a_recorder_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        for event in (*EVENTS, HEDGED):
            recorder.on_event(event)
        recorder.operation("find", 0.25, error="AutoReconnect", server=SERVER, repeated={"x": 2})
        recorder.operation("find", 0.01, server=SERVER)
        recorder.balance(lost=1, duplicated=2)
    recorder.on_event(SCHEDULED)  # late, and in vain
    assert {type(each) for each in (*EVENTS, HEDGED)} == set(get_args(Event))
    (side,) = read([path])
    assert side.name == "ours"
    assert records.reasons(side) == {CLOSED.value: 1, "x": 2}
    assert [each.is_final for each in side.retries] == [False, True, False, False]
    assert [what for _, _, what in side.breakers] == ["opened", "closed"]
    assert records.by_server(side)[SERVER][1] == 4
    assert [each.error for each in side.operations] == ["AutoReconnect", None]
    assert side.balance == (1, 2)


def test_hedged_reads_are_counted_by_who_answered_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        for waited, winner in ((0.01, "first"), (0.02, "hedge"), (0.04, "hedge"), (0.05, None)):
            recorder.on_event(HEDGED._replace(waited=waited, winner=winner))
        recorder.operation("find", 1.0, server=SERVER)
    (side,) = read([path])
    winners, waited = records.hedges(side)[SERVER]
    assert winners == {"first": 1, "hedge": 2, "neither": 1}
    assert waited == pytest.approx(0.03)
    text = page([side], "run")
    assert_stands_alone(text)
    cells = "".join(f"<td>{each}</td>" for each in (f"ours, {SERVER}", 1, 2, 1, "30.0 ms"))
    assert f"<tr>{cells}</tr>" in text


def test_a_report_without_hedged_reads_does_not_speak_of_them() -> None:
    assert "hedge" not in page([Side("ours", operations=[operation(0.0)])], "run").lower()


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        threads = [
            threading.Thread(target=lambda: [recorder.on_event(SCHEDULED) for _ in range(200)])
            for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    (side,) = read([path])
    assert len(side.retries) == 800


def test_the_librarys_log_as_json_lines_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Among other lines of the application, with the times that formatters write."""
    with caplog.at_level(logging.DEBUG, "pymongo_resilience"):
        for event in EVENTS:
            EventLog().on_event(event)
    times: list[Any] = ["2026-01-01T10:00:00Z", "2026-01-01 10:00:01,500+00:00", 1767261603.0, None]
    lines: list[dict[str, Any]] = [
        {"timestamp": time, "pymongo_resilience": vars(record)["pymongo_resilience"]}
        for time, record in zip(times, caplog.records, strict=True)
    ]
    lines[-1] |= {"timestamp": 1767261604.0}
    path = write(tmp_path / "log", {"message": "hello"}, *lines)
    path.write_text("a server says that it listens\n\n[1]\n" + path.read_text())
    (side,) = read([path])
    assert [round(each.at, 1) for each in side.retries] == [0.0, 1.5]
    assert [(round(at, 1), what) for at, _, what in side.breakers] == [
        (3.0, "opened"), (4.0, "closed"),
    ]  # fmt: skip


def test_files_are_laid_over_each_other_from_their_beginnings(tmp_path: Path) -> None:
    def of(side: str, began: float, file: str = "") -> Path:
        base = {"side": side, "name": "find", "error": None, "server": None, "repeated": {}}
        return write(
            tmp_path / (file or side),
            {"at": began, "type": "run", "side": side},
            base | {"at": began + 2.0, "type": "operation", "seconds": 0.5},
        )

    sides = read([of("ours", 100.0), of("plain", 900.0)])
    assert [(each.name, each.operations[0].at) for each in sides] == [("ours", 2.0), ("plain", 2.0)]
    again = read([of("ours", 100.0), of("ours", 900.0, "today.jsonl")])
    assert [each.name for each in again] == ["ours", "ours, today"]
    text = page(sides, "two")
    cells = ("plain", 1, 0, "500.0 ms", "500.0 ms", "500.0 ms", 0, 0, "", "")
    assert f"<tr>{''.join(f'<td>{each}</td>' for each in cells)}</tr>" in text
    assert "nothing to compare" not in text


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    side = Side(
        evil,
        operations=[operation(0.5), operation(1.0, 0.3, evil)],
        faults=[Fault(0.4, evil, 0.3, 1)],
        breakers=[(1.0, evil, "opened")],
    )
    path = tmp_path / "events"
    with Recorder(path) as recorder:
        recorder.operation(evil, 0.1, server=evil, repeated={evil: 1})
    text = page([side, *read([path])], evil)
    assert_stands_alone(text)
    assert "<script" not in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "nothing was recorded"),
        ("no json\n[1]", "nothing was recorded"),
        ('{"at": 1, "type": "operation"}', "line 1: no record"),
        ('{"at": "x", "type": "run"}', "line 1: no record"),
        ('{"message": "hello"}', "nothing was recorded"),
    ],
)
def test_what_is_no_recording_is_an_error(
    tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events"
    path.write_text(content)
    with pytest.raises(ReportError, match=said):
        read([path])
    assert cli.main(["report", str(path), "-o", str(tmp_path / "out")]) == cli.FAILURE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_application_and_its_faults_are_recorded(tmp_path: Path) -> None:
    """With the library and with plain pymongo, through the same faults."""
    with EmbeddedServer() as server, ReplicaSet(server.address) as replica_set:
        with Recorder(tmp_path / "both") as recorder:
            replica_set.observer = recorder.fault
            for name in ("ours", "plain"):
                recorder.run(name)
                if name == "ours":
                    instrument(Config(timeout_ms=20_000), listeners=[recorder])
                _work(replica_set, recorder)
                if name == "ours":
                    uninstrument()
        ours, plain = read([tmp_path / "both"])
    assert [each.text for each in ours.faults] == [
        "CutAfter('insert', times=2) on primary", "Latency() on all",
    ]  # fmt: skip
    assert [each.struck for each in ours.faults if "Cut" in each.text] == [2]
    assert [each.error for each in plain.operations] == ["AutoReconnect", None]
    assert [each.error for each in ours.operations] == [None, None]
    assert records.reasons(ours) == {CLOSED.value: 2}
    assert len(plain.faults) == 2
    (primary,) = {each.server for each in ours.commands}
    found, failed = records.by_server(ours)[primary]
    # ping, three attempts of one insert, another insert, endSessions
    assert (found.operations, found.errors, failed) == (6, 2, 2)
    # pymongo 4.17 has another name for it.
    assert {each.error for each in plain.commands} - {None} <= {"AutoReconnect", "OSError"}
    assert_stands_alone(page([ours, plain], "both"))


def _work(replica_set: ReplicaSet, recorder: Recorder) -> None:
    with MongoClient[dict[str, Any]](
        replica_set.uri, event_listeners=[recorder.commands()]
    ) as client:
        client.admin.command("ping")
        replica_set.inject(CutAfter("insert", times=2), on="primary")
        for _ in range(2):
            began, error = time.monotonic(), None
            try:
                client.shop.orders.insert_one({})
            except PyMongoError as raised:
                error = type(raised).__name__
            recorder.operation("insert_one", time.monotonic() - began, error=error)
        replica_set.inject(Latency(0.001))
        replica_set.clear()


@pytest.mark.thorough("runs the demo once more")
def test_the_demo_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, out = tmp_path / "demo.jsonl", tmp_path / "demo.html"
    assert cli.main(["demo", "--seconds", "1", "--record", str(record)]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(record), "-o", str(out), "--title", "The demo"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    sides = {each.name: each for each in read([record])}
    assert sides.keys() == {"ours", "naive", "plain"}
    assert sides["ours"].balance == (0, 0)
    assert not any(each.error for each in sides["ours"].operations)
    assert any(each.error for each in sides["plain"].operations)
    lost, duplicated = sides["naive"].balance or (0, 0)
    assert lost + duplicated > 0
    text = out.read_text()
    assert_stands_alone(text)
    assert "The demo" in text
    assert text.count("<svg") == 3
