"""A timeout bounds a whole call, however many commands it sends: a client's own as any other.

pymongo 4.17 to 4.20 give each command of some methods the client's ``timeoutMS`` anew.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from bson import Int64
from pymongo import _csot, monitoring
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer
from support.clients import Side
from support.every_operation import BY_CLASS, Scene
from support.telemetry import Instrument
from support.transactions import DriversTime, drivers_time

from pymongo_resilience import Policy, bind, override
from pymongo_resilience.testbed import Interception, ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest

LONG = 600_000
"""Milliseconds; never passes."""
PAUSE = 5.0
"""Seconds that each command takes, on the driver's clock."""
CALLS = {
    owner: [each for each in BY_CLASS[owner] if each.name not in ("close", "watch")]
    for owner in ("Collection", "Database", "MongoClient", "Cursor")
}
"""Not those that leave something to be closed, which has the time anew."""
SEVERAL = {
    "Collection.find", "Collection.find_raw_batches", "Collection.index_information",
    "Collection.list_indexes","Cursor.next after the first batch",
    "Database.list_collection_names", "Database.list_collections",
}  # fmt: skip


ANY = {"_id": 1, "name": "x", "key": {"x": 1}, "v": 2, "type": "collection", "options": {}}
"""A document, a collection and an index."""


class Paging(Interception):
    """Each cursor has three batches."""

    def on_request(self, request: Any, connection: Any) -> Answer | None:
        name = request.command_name
        ns = f"{request.body.get('$db')}.coll"
        if name == "getMore":
            left = Int64(request.body["getMore"] - 1)
            cursor = {"id": left, "ns": ns, "nextBatch": [ANY]}
        elif name in {"find", "listCollections", "listIndexes"}:
            cursor = {"id": Int64(2), "ns": ns, "firstBatch": [ANY]}
        else:
            return None
        return Answer({"ok": 1, "cursor": cursor})


class Ends(monitoring.CommandListener):
    """When the deadline of each command is, on the driver's clock; each command takes a while."""

    def __init__(self, clock: DriversTime) -> None:
        self._clock = clock
        self.ends: list[float] = []

    def started(self, event: Any) -> None:
        # The background task kills the cursors of the calls before.
        if event.command_name != "killCursors":
            self.ends.append(_csot.get_deadline())

    def _over(self, event: Any) -> None:
        self._clock.passed += PAUSE

    succeeded = failed = _over


@pytest.mark.parametrize("source", ["client", "process", "rule", "bind", "override"])
def test_all_commands_of_a_call_have_one_end(
    source: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    drivers_time: DriversTime,
    instrument: Instrument,
) -> None:
    said = Policy(timeout_ms=LONG, timeout_mode="cursor_lifetime")
    instrument(
        timeout_ms=LONG if source == "process" else None,
        timeout_mode="cursor_lifetime" if source == "process" else None,
        policies={"*.*": said} if source == "rule" else None,
    )
    ends = Ends(drivers_time)
    own = {"timeoutMS": LONG} if source == "client" else {}
    client = side.client(proxy.uri, event_listeners=[ends], **own)

    class Bound(Scene):
        @property
        def db(self) -> Any:
            return bind(super().db, said) if source == "bind" else super().db

    scene = Bound(side, proxy.uri, client, database)
    scene.prepare()
    proxy.inject(Paging())
    several, anew = set(), {}
    for owner, operations in CALLS.items():
        if source == "bind" and owner == "MongoClient":
            continue
        for each in operations:
            ends.ends.clear()
            with override(timeout_ms=LONG if source == "override" else None):
                with contextlib.suppress(PyMongoError):
                    each.call(scene)
            name = f"{owner}.{each.name}"
            if len(ends.ends) > 1:
                several.add(name)
            assert float("inf") not in ends.ends, name
            if max(ends.ends) - min(ends.ends) > PAUSE / 2:
                anew[name] = len(ends.ends)
    assert anew == {}
    assert several >= SEVERAL
