"""No public method of pymongo silently ignores ``override(idempotent=True)``.

The methods are found by introspection. Each command that one of them sends is cut once, and has to
be retried, or is listed here with the reason why it never is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, PyMongoError
from support.clients import SentCommands, Side
from support.every_method import QUIET, SENDING, exists, methods_of
from support.every_operation import OF_EVERY_VERSION, TOO_NEW, Scene
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.testbed import CutBefore, ReplicaSet

OWNERS = ("Collection", "Database", "MongoClient")
CLEANUP = {
    "killCursors": "the background task sends it again",
    "endSessions": "the server ends idle sessions by itself",
}
"""Commands that pymongo sends by itself when a cursor or a client is closed, and why they are never
retried.
"""


def calls_of(owner: str, scene: Scene) -> dict[str, Callable[[Scene], Any]]:
    """How to call each method that sends something, with the variants that the documents list."""
    calls = SENDING[owner] | {each.name: each.call for each in OF_EVERY_VERSION[owner]}
    unknown = methods_of(owner) - QUIET[owner] - {name.partition(" ")[0] for name in calls}
    assert not unknown, "say in every_method.py how it is called"
    return {
        name: call
        for name, call in calls.items()
        if f"{owner}.{name}" not in TOO_NEW and exists(owner, name.partition(" ")[0], scene)
    }


def run(call: Callable[[Scene], Any], scene: Scene) -> None:
    # Some have done their work already, and some need a server with Atlas Search.
    with override(idempotent=True), suppress(PyMongoError):
        call(scene)


@pytest.mark.thorough("each command of each method")
@pytest.mark.parametrize("owner", OWNERS)
def test_each_command_of_a_declared_method_is_retried(
    owner: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The background task must not close what one method has left behind during another.
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 3600.0)
    telemetry, sent = instrument(timeout_ms=20_000), SentCommands()
    scene = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    scene.prepare()
    ignored: set[tuple[str, str]] = set()
    for method, call in calls_of(owner, scene).items():
        sent.started_events.clear()
        run(call, scene)
        for name in {event.command_name for event in sent.started_events} - CLEANUP.keys():
            telemetry.clear()
            proxy.inject(cut := CutBefore(name))
            run(call, scene)
            proxy.clear()
            retried = any(isinstance(each, RetryScheduled) for each in telemetry.decisions.events)
            if cut.injected and not retried:
                ignored.add((method, name))
    assert ignored == set()


def _in_transaction(side: Side, db: Any) -> None:
    with session_of(side, db.client) as session:
        side.do(session.start_transaction)
        try:
            side.do(db.coll.update_many, {}, {"$set": {"n": 1}}, session=session)
        finally:
            side.do(session.abort_transaction)


def _get_more(side: Side, db: Any) -> None:
    side.do(db.command, {"getMore": 1, "collection": "coll"})


@pytest.mark.parametrize(
    ("command", "call", "why"),
    [
        ("getMore", _get_more, "the server may have advanced the cursor"),
        ("update", _in_transaction, "a transaction must be retried as a whole"),
    ],
)
def test_where_a_declaration_has_no_effect_the_error_says_so(
    command: str, call: Callable[[Side, Any], None], why: str, side: Side, proxy: ReplicaSet,
    database: str, instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    db = side.client(proxy.uri)[database]
    side.do(db.coll.insert_one, {})
    proxy.inject(struck := CutBefore(command))
    with override(idempotent=True), pytest.raises(AutoReconnect, match=why):
        call(side, db)
    assert struck.injected == 1
