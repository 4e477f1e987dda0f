"""The comment that leads from the server's profiler to the trace: who has it, and that it changes
nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from bson import encode
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from pymongo import InsertOne, UpdateOne
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.features.command_comments import COMMENTED, ONLY_TEXT
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer, Interception
from support.clients import SentCommands, Side
from support.every_operation import BY_CLASS, Scene
from support.servers import has
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import CutAfter, ReplicaSet

CALLERS = trace.SpanContext(
    trace_id=1,
    span_id=2,
    is_remote=True,
    trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    trace_state=trace.TraceState([("congo", "t61")]),
)
APPLICATIONS = trace.SpanContext(trace_id=1, span_id=2, is_remote=False)
TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]")


def _traceparent(span: ReadableSpan) -> str:
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_all_attempts_of_a_write_say_the_same_and_it_is_applied_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, command_comment=True)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 1, "n": 0})
    proxy.inject(CutAfter("update", times=2))
    side.do(coll.update_one, {"_id": 1}, {"$inc": {"n": 1}})
    assert side.do(coll.find_one, {"_id": 1})["n"] == 1
    (update,) = telemetry.operations(f"update {database}.coll")
    assert [command["comment"] for command in sent.named("update")] == [
        {"traceparent": _traceparent(update)}
    ] * 3
    sent.started_events.clear()
    proxy.inject(CutAfter("update"))
    side.do(coll.bulk_write, [InsertOne({"_id": 2}), UpdateOne({"_id": 2}, {"$inc": {"n": 1}})])
    assert side.do(coll.find_one, {"_id": 2})["n"] == 1
    (bulk,) = telemetry.operations(f"bulkWrite {database}.coll")
    assert [command["comment"] for command in sent.named("insert", "update")] == [
        {"traceparent": _traceparent(bulk)}
    ] * 3


def test_every_command_that_takes_one_has_one(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """But those that an application spells out itself: their document is its own."""
    instrument(command_comment=True)
    sent = SentCommands()
    scene = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    scene.prepare()
    for owner, calls in BY_CLASS.items():
        for each in calls:
            if owner == "Database" and "command" in each.name:
                continue
            try:
                each.call(scene)
            except PyMongoError:  # of a server without Atlas Search
                continue
    silent = {e.command_name for e in sent.started_events if "comment" not in e.command}
    said = [e for e in sent.started_events if "comment" in e.command]
    unsent = {"collMod"} if has("8.0") else {"collMod", "bulkWrite"}
    unsent |= set() if has("6.0") else ONLY_TEXT
    assert {event.command_name for event in said} >= COMMENTED - unsent
    # What the background task sends belongs to no trace.
    assert silent & COMMENTED <= {"killCursors", *(set() if has("6.0") else ONLY_TEXT)}
    assert all(TRACEPARENT.fullmatch(event.command["comment"]["traceparent"]) for event in said)


def test_a_traced_caller_adds_its_state_and_the_comment_of_the_application_is_kept_as_text(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, command_comment=True)
    sent = SentCommands()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    side.do(coll.insert_many, [{"_id": n, "n": 0} for n in range(3)])
    proxy.inject(CutAfter("update", times=2))
    with trace.use_span(trace.NonRecordingSpan(CALLERS)):
        side.do(coll.update_one, {"_id": 1}, {"$inc": {"n": 1}}, comment="mine")
        assert len(side.documents(coll.find(comment="mine", batch_size=2))) == 3
    assert side.do(coll.find_one, {"_id": 1})["n"] == 1
    (update,) = telemetry.operations(f"update {database}.coll")
    expected = {"traceparent": _traceparent(update), "tracestate": "congo=t61", "text": "mine"}
    # All attempts are the same to the last byte.
    comments = [encode(command["comment"]) for command in sent.named("update")]
    assert comments == [encode(expected)] * 3
    for command in sent.named("find", "getMore")[:2]:
        assert [*command["comment"]] == ["traceparent", "tracestate", "text"]
        assert command["comment"]["text"] == "mine"


def _span_of(comment: Any, telemetry: Telemetry) -> ReadableSpan:
    """The span that a comment identifies."""
    found = TRACEPARENT.fullmatch(comment["traceparent"])
    assert found is not None
    _, trace_id, span_id, _ = comment["traceparent"].split("-")
    (span,) = [
        each
        for each in telemetry.spans()
        if (f"{each.context.trace_id:032x}", f"{each.context.span_id:016x}") == (trace_id, span_id)
    ]
    return span


def test_an_entry_of_the_profiler_leads_to_its_trace(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, control: Any
) -> None:
    """Both attempts of a write lead to the same span, and all commands to that of their request."""
    telemetry = instrument(timeout_ms=20_000, command_comment=True)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 0})
    control[database].command("profile", 2)
    try:
        proxy.inject(CutAfter("update"))
        with trace.use_span(trace.NonRecordingSpan(CALLERS)):
            side.do(coll.update_one, {"_id": 1}, {"$set": {"n": 1}}, upsert=True, comment="report")
            assert len(side.documents(coll.find(comment="report"))) == 2
    finally:
        control[database].command("profile", 0)
    kept = control[database]["system.profile"].find({"command.comment.text": "report"})
    spans = [_span_of(entry["command"]["comment"], telemetry) for entry in kept]
    names = [span.name for span in spans]
    assert f"update {database}.coll" in names
    assert f"find {database}.coll" in names
    assert {span.context.trace_id for span in spans} == {CALLERS.trace_id}


@pytest.mark.needs_mongod("a log of slow operations")
def test_a_line_of_the_slow_query_log_leads_to_its_trace(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, control: Any
) -> None:
    telemetry = instrument(command_comment=True)
    coll = side.client(proxy.uri)[database].coll
    before = control[database].command("profile", 0, slowms=-1)
    try:
        side.do(coll.insert_one, {"_id": 1})
        side.do(coll.update_one, {"_id": 1}, {"$set": {"n": 1}}, comment="report")
        side.do(coll.find_one, {"n": 1})
    finally:
        control[database].command("profile", 0, slowms=before["slowms"])
    lines = map(json.loads, control.admin.command("getLog", "global")["log"])
    slow = [line["attr"] for line in lines if line["msg"] == "Slow query"]
    ours = [each["command"] for each in slow if each.get("ns", "").startswith(f"{database}.")]
    shown = {
        name: _span_of(command["comment"], telemetry).name
        for command in ours
        for name in ("insert", "update", "find")
        if name in command and "comment" in command
    }
    assert shown == {name: f"{name} {database}.coll" for name in ("insert", "update", "find")}


class MongoDB44(Interception):
    """Refuses documents as comments where a mongod 4.4.4 does."""

    def on_hello(self, reply: Any) -> None:
        reply["maxWireVersion"] = 9

    def on_request(self, request: Any, connection: Any) -> Answer | None:
        if request.command_name not in {"count", "distinct"}:
            return None
        if isinstance(request.body.get("comment", ""), str):
            return None
        return Answer({"ok": 0.0, "code": 14, "codeName": "TypeMismatch", "errmsg": "a document"})


def test_a_command_that_takes_only_text_keeps_the_comment_of_the_application(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(command_comment=True)
    sent = SentCommands()
    proxy.inject(MongoDB44())
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    for own in ({}, {"comment": "mine"}):
        side.do(coll.distinct, "n", **own)
        side.do(coll.estimated_document_count, **own)
        side.do(coll.find_one, **own)
    said = [event.command.get("comment") for event in sent.started_events]
    assert said[:2] + said[3:5] == [None, None, "mine", "mine"]
    assert [*said[2]] == ["traceparent"]
    assert [*said[5]] == ["traceparent", "text"]


@pytest.mark.parametrize("own", [{"mine": 1}, {"traceparent": "mine"}, ["mine"], 7, True])
def test_what_the_application_says_itself_stays(
    own: Any, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(command_comment=True)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_many, [{}, {}, {}], comment=own)
    cursor = side.do(coll.aggregate, [], comment=own, batchSize=1)
    assert len(side.documents(cursor)) == 3
    document: dict[str, Any] = {"count": "coll"}
    side.do(client[database].command, document)
    assert "comment" not in document
    said = [event.command.get("comment") for event in sent.started_events]
    assert said == [own] * (len(said) - 1) + [None]


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, {}),
        ({"command_comment": True, "traces": False}, {}),
        ({"command_comment": True}, {"tracing": {"enabled": False}}),
    ],
)
def test_without_the_option_or_a_span_there_is_nothing_to_say(
    options: dict[str, Any], own: dict[str, Any], side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(**options)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], **own)
    # A span of the application's is not one of ours.
    with trace.use_span(trace.NonRecordingSpan(APPLICATIONS)):
        side.do(client[database].coll.find_one)
    assert ["comment" in event.command for event in sent.started_events] == [False]
