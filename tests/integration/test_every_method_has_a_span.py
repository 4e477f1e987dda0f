"""No public method of pymongo or GridFS reaches the server without an operation span.

The methods are found by introspection: one that a newer pymongo adds is missing in the table, and
one that it sends something from is found whichever way it sends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pymongo.errors import PyMongoError
from support.clients import SentCommands, Side
from support.every_method import CLASSES, QUIET, SENDING, exists, methods_of
from support.every_operation import Scene
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import ReplicaSet


@pytest.mark.parametrize("owner", CLASSES)
def test_every_method_is_in_the_table(owner: str) -> None:
    assert methods_of(owner) - SENDING[owner].keys() == QUIET[owner], (
        "say in every_method.py how it is called"
    )


def orphans(telemetry: Telemetry, sent: SentCommands) -> list[str]:
    """The commands that are not below the span of an operation."""
    operations = {span.context.span_id for span in telemetry.operations()}
    commands = [s for s in telemetry.spans() if "db.command.name" in (s.attributes or {})]
    undrawn = len(sent.started_events) - len(commands)
    return ["a command without a span"] * undrawn + [
        each.name
        for each in commands
        if each.parent is None or each.parent.span_id not in operations
    ]


@pytest.mark.parametrize("owner", CLASSES)
def test_what_a_method_sends_is_below_an_operation_span(
    owner: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if owner == "ClientEncryption":
        pytest.importorskip("pymongocrypt", reason="client-side encryption needs pymongocrypt")
    # The background task must not close what one method has left behind during another.
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 3600.0)
    telemetry, sent = instrument(), SentCommands()
    scene = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    scene.prepare()
    wrong: dict[str, Any] = {}
    for method, call in SENDING[owner].items():
        if exists(owner, method, scene):
            telemetry.clear()
            sent.started_events.clear()
            with suppress(PyMongoError):  # of a server without Atlas Search: it was sent
                call(scene)
            if not telemetry.operations() or orphans(telemetry, sent):
                wrong[method] = orphans(telemetry, sent) or "sends nothing"
    assert wrong == {}
