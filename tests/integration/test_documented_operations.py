"""What docs/retries.md lists as retried or not is what the library does, and nothing is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gridfs
import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import public_operations
from pymongo_resilience_instrumentation.tools.testbed import CutBefore
from support.clients import SentCommands, Side
from support.every_operation import BY_CLASS, TOO_NEW, Operation, Scene
from support.operations_table import NEVER, READ, UNSENT, WRITE, documented
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

SECTION_OF_RULE = {Rule.NOT_SAFE: UNSENT, Rule.NEVER_RETRIED: NEVER}


class Cut(CutBefore):
    """Where the operation sends more than one command, cuts the one that is meant."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation.strikes)
        self._collection = operation.of

    def on_request(self, request: Any, connection: Any) -> Any:
        if self._collection not in (None, request.body.get(request.command_name)):
            return None
        return super().on_request(request, connection)


def what_becomes_of(
    operation: Operation, scene: Scene, proxy: ReplicaSet, telemetry: Any, sent: SentCommands
) -> str:
    for _ in range(3):
        telemetry.clear()
        sent.started_events.clear()
        cut = Cut(operation)
        proxy.inject(cut)
        try:
            operation.call(scene)
        except (PyMongoError, gridfs.NoFile):
            pass  # not retried; or the server knows no such command, and says so to the retry
        finally:
            proxy.clear()
        assert cut.injected == 1, f"{operation.name} sent no such command"
        if telemetry.decisions.events:
            break  # else it struck a killCursors of the driver's background task
    first = telemetry.decisions.events[0]
    if not isinstance(first, RetryScheduled):
        return SECTION_OF_RULE[first.rule]
    struck = [
        event for event in sent.started_events if operation.strikes in (None, event.command_name)
    ]
    return WRITE if "txnNumber" in struck[0].command else READ


@pytest.fixture
def tried(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> Callable[[Operation], str]:
    """Tries an operation whose connection is cut, and returns what becomes of it."""
    telemetry = instrument(timeout_ms=20_000)
    sent = SentCommands()
    scene = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    scene.prepare()
    return lambda operation: what_becomes_of(operation, scene, proxy, telemetry, sent)


def test_every_operation_does_what_the_document_says(tried: Callable[[Operation], str]) -> None:
    seen = {
        f"{owner}.{each.name}": tried(each) for owner, calls in BY_CLASS.items() for each in calls
    }
    said = documented()
    assert said.keys() >= TOO_NEW
    assert seen == {name: said[name] for name in said.keys() - TOO_NEW}


def test_a_declaration_has_an_effect_on_every_operation_except_these(
    tried: Callable[[Operation], str],
) -> None:
    said = documented()
    with override(idempotent=True):
        not_retried = {
            name
            for owner, calls in BY_CLASS.items()
            for each in calls
            if said[name := f"{owner}.{each.name}"] in {UNSENT, NEVER}
            and tried(each) in {UNSENT, NEVER}
        }
    assert not_retried == {"Cursor.next after the first batch", "Cursor.close", "MongoClient.close"}


@pytest.mark.parametrize(
    ("owner", "wrapped"),
    [
        ("Collection", public_operations.COLLECTION),
        ("Database", public_operations.DATABASE),
        ("MongoClient", public_operations.CLIENT),
        ("GridFSBucket", None),
        ("GridFS", None),
    ],
)
def test_no_operation_is_missing(owner: str, wrapped: Any) -> None:
    """Of what is wrapped, and of GridFS whatever is public: it is made of wrapped ones."""
    if wrapped is None:
        cls = getattr(gridfs, owner)
        wrapped = {name for name, _ in inspect.getmembers(cls, callable) if name[0] != "_"}
        wrapped -= {"new_file"}  # makes an object; its write() and close() are those of put()
    listed = {
        name.split(".")[1].split()[0] for name in documented() if name.startswith(owner + ".")
    }
    assert listed >= set(wrapped)
