"""No public method of pymongo or GridFS reaches the server without an operation span.

The methods are found by introspection: one that a newer pymongo adds is missing in the table, and
one that it sends something from is found whichever way it sends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from pymongo.errors import InvalidOperation, PyMongoError
from support.clients import SentCommands, Side
from support.every_method import CLASSES, QUIET, SENDING, exists, instances, methods_of
from support.every_operation import Scene
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import ReplicaSet

Walk = Callable[[Callable[[], Any]], int]


@pytest.mark.parametrize("owner", CLASSES)
def test_every_method_is_in_the_table(owner: str) -> None:
    listed = SENDING.get(owner, {}).keys() | QUIET.get(owner, {}).keys()
    assert listed == methods_of(owner), "say in every_method.py how it is called"


@pytest.fixture
def scene(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    # The background task must not close what one method has left behind during another.
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 3600.0)
    telemetry = instrument()
    sent = SentCommands()
    made = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    made.prepare()
    made.sent, made.telemetry = sent, telemetry  # type: ignore[attr-defined]  # for walk() alone
    return made


def walk(scene: Scene, step: Callable[[Scene], Any]) -> tuple[int, list[str]]:
    """How many commands a step has sent, and those that are not below an operation span."""
    sent: SentCommands = scene.sent  # type: ignore[attr-defined]  # as above
    telemetry: Telemetry = scene.telemetry  # type: ignore[attr-defined]  # as above
    before = len(sent.started_events)
    telemetry.clear()
    with suppress(PyMongoError):  # of a server without Atlas Search: it was sent
        step(scene)
    spans = telemetry.spans()
    commands = [span for span in spans if _is_command(span)]
    operations = {s.context.span_id for s in spans if "db.operation.name" in (s.attributes or {})}
    orphans = [s.name for s in commands if s.parent is None or s.parent.span_id not in operations]
    undrawn = len(sent.started_events) - before - len(commands)
    return len(commands), orphans + ["a command without a span"] * undrawn


def _is_command(span: ReadableSpan) -> bool:
    return "db.command.name" in (span.attributes or {})


@pytest.mark.parametrize("owner", CLASSES)
def test_what_a_method_sends_is_below_an_operation_span(owner: str, scene: Scene) -> None:
    _needs(owner)
    wrong = {}
    for method, call in SENDING[owner].items():
        if not exists(owner, method, scene):
            continue
        count, orphans = walk(scene, call)
        if not count or orphans:
            wrong[method] = orphans or "sends nothing"
    assert wrong == {}


@pytest.mark.parametrize("owner", CLASSES)
def test_what_is_said_to_send_nothing_sends_nothing(owner: str, scene: Scene) -> None:
    _needs(owner)
    for method, call in QUIET[owner].items():
        if exists(owner, method, scene):
            assert walk(scene, call) == (0, []), method


def _needs(owner: str) -> None:
    if owner == "ClientEncryption":
        pytest.importorskip("pymongocrypt", reason="client-side encryption needs pymongocrypt")


def test_what_is_read_without_a_call_sends_nothing_undrawn(scene: Scene) -> None:
    """Properties: those of a file that GridFS reads on demand, above all."""
    for owner, instance in instances(scene).items():
        properties = inspect.getmembers(type(instance), lambda v: isinstance(v, property))
        assert properties

        def read_all(_: Scene, instance: Any = instance, properties: Any = properties) -> None:
            for name, _value in properties:
                with suppress(InvalidOperation, AttributeError):
                    scene.do(getattr, instance, name)

        assert walk(scene, read_all)[1] == [], owner


def test_the_walk_finds_a_command_that_has_no_operation(scene: Scene) -> None:
    """Without this, finding none would prove nothing: here pymongo is asked past its own API."""

    def past_the_api(scene: Scene) -> None:
        client = scene.client

        async def awaiting() -> None:
            connected = await client._conn_for_reads(client.read_preference, None, "ping")
            async with connected as (conn, _):
                await conn.command("admin", {"ping": 1}, client=client)

        if scene.side.runner is not None:
            scene.do(awaiting)
            return
        with client._conn_for_reads(client.read_preference, None, "ping") as (conn, _):
            conn.command("admin", {"ping": 1}, client=client)

    assert walk(scene, past_the_api) == (0, ["a command without a span"])
