"""With ``strategy=driver`` the library only observes: it patches and sets what telemetry needs."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

import gridfs
import pymongo
import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import driver, patches
from pymongo_resilience_instrumentation.telemetry.transaction_spans import sessions_used
from support.clients import Side, wait_until
from support.patched_places import Places, differences, patched_places
from support.pymongo_state import State, state_of, unstable
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.policies.blocks import policies_used
from pymongo_resilience.testbed import CutAfter, ReplicaSet

pytestmark = pytest.mark.oldest
assert gridfs  # patched as well, once it is imported

TELEMETRY = {
    "*MongoClient.__init__": "the client's options of ours",
    "*MongoClient._init_based_on_options": "its listeners, which its options do not show",
    "*MongoClient.start_session": "the option default_timeout_ms",
    "*MongoClient._run_operation": "the span of a cursor's batch",
    "*ChangeStream._run_aggregation_cmd": "the span of a change stream that resumes",
    "*ClientSession.start_transaction": "the span of a transaction",
    "*ClientSession.end_session": "the end of that span",
    "*ClientSession.__*exit__": "the end of that span",
    "*ClientSession.commit_transaction": "its own span",
    "*ClientSession.abort_transaction": "its own span",
    "pymongo.*.topology.*_cond_wait": "the time that an operation waits for a server",
    "pymongo.*.pool.*_cond_wait": "the time that it waits for a connection",
    "*Pool.connect": "the time that a connection takes",
    "*Topology.on_change": "what readiness() reports of a client's servers",
    "*Pool._raise_wait_queue_timeout": "a wait that ended without a connection",
}
"""What is patched to observe, and what for."""
TIMEOUTS = {
    "*Cursor.__init__": "the override() around a cursor, for its batches",
    "*Cursor.clone": "the same",
    "*Cursor.__*copy__": "the same",
    "*Cursor*.to_list": "one timeout for all batches",
    "*ChangeStream.next": "one timeout for what a step sends",
    "*ChangeStream.try_next": "the same",
    "*ChangeStream.__*next__": "the same",
    "*ClientSession.with_transaction": "one timeout for the whole",
    "*Connection.apply_timeout": "no limit at the server for a cursor whose batches have their own",
    "gridfs.*": "one timeout for each method of a stream",
}
"""What is patched for timeouts of ours; without one, pymongo runs alone."""
PUBLIC = {f"{owner.__name__}.{name}" for owner, table in patches.PUBLIC for name in table}


@pytest.fixture
def plain() -> Places:
    return patched_places()


def named(place: str) -> str:
    """``pymongo.synchronous.pool.Pool.connect`` of a class's or a module's text."""
    return re.sub(r"<(?:class|module) '([\w.]+)'[^>]*>", r"\1", place)


def reason(place: str) -> str | None:
    owner_and_method = ".".join(place.split(".")[-2:])
    if owner_and_method in PUBLIC:
        return "the span of an operation"
    known = TELEMETRY | TIMEOUTS
    return next((why for pattern, why in known.items() if fnmatchcase(place, pattern)), None)


def test_nothing_is_patched_but_what_observing_needs(
    plain: Places, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    for used in (policies_used, sessions_used):
        # Some places are patched once a feature is used.
        monkeypatch.setattr(used, "happened", True)
    instrument(config_strategy="driver")
    patched = {named(place) for place in differences(plain, patched_places())}
    assert {place for place in patched if reason(place) is None} == set()
    unused = [
        pattern
        for pattern in TELEMETRY | TIMEOUTS
        if not any(fnmatchcase(place, pattern) for place in patched)
    ]
    assert unused == []


def test_by_default_more_is_patched(plain: Places, instrument: Instrument) -> None:
    """The comparison sees what acts."""
    instrument()
    patched = {named(place) for place in differences(plain, patched_places())}
    assert {place.rpartition(".")[2] for place in patched if reason(place) is None} >= {
        driver.attempts.LOOP, driver.monitors.CANCEL,
        driver.clients.SYNC_API.connect, driver.connections.FAILED, driver.connections.HELLO,
    }  # fmt: skip


def used(side: Side, uri: str, database: str, **options: Any) -> State:
    """The state of a client that has worked, and lost a connection."""
    client = side.do(side.client, uri, **options)
    coll = client[database].coll
    side.do(coll.insert_many, [{"n": n} for n in range(5)])
    side.documents(coll.find(batch_size=2))
    side.do(coll.update_many, {"n": 1}, {"$set": {"m": 1}})
    state = state_of(client)
    side.do(client.close)
    return state


EXPECTED = re.compile(
    r"\._?pymongo_resilience_\w+$|Settings\._stack$|Executor\._event$|socket\.TCP_QUICKACK$"
    r"|Pool\.(active_sockets|operation_count|requests)$|MovingAverage\.|ServerDescription\._\w*(time|date)$"
)
"""Attributes of ours, which pymongo never reads; the lines that made the client; whether a check
was requested a moment ago; what the kernel decides for each packet; and counts and times."""


@pytest.mark.parametrize("options", [{}, {"timeoutMS": 20_000}], ids=["bare", "timeoutMS"])
def test_no_object_of_pymongo_looks_different(
    options: dict[str, Any], side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Its attributes and the options of its sockets: those that are the same in two plain runs."""
    one, other = (used(side, proxy.uri, database, **options) for _ in range(2))
    varies = unstable(one, other)
    assert "socket.TCP_KEEPIDLE" in one.keys() - varies
    instrument(config_strategy="driver", traces=False, metrics=False)
    observed = used(side, proxy.uri, database, **options)
    found = {name for name in unstable(one, observed) - varies if not EXPECTED.search(name)}
    # A monitor may have no connection at the moment: what counts is what is there in addition.
    more = {name: observed.get(name, set()) - one.get(name, set()) for name in found}
    assert {name: values for name, values in more.items() if values} == {}


def test_the_comparison_of_objects_sees_what_acts(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    plain = used(side, proxy.uri, database)
    instrument()

    def is_seen() -> bool:
        changed = unstable(plain, used(side, proxy.uri, database))
        return {"socket.TCP_USER_TIMEOUT", "socket.TCP_KEEPIDLE"} <= changed

    if driver.connections.can_watch() and hasattr(socket, "TCP_USER_TIMEOUT"):
        # A monitor may have no connection at the moment: then another client is looked at.
        wait_until(is_seen)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How long pymongo means to wait for servers and connections."""
    seen: list[Any] = []

    def noted(original: Any) -> Any:
        def wait(condition: Any, timeout: Any) -> Any:
            seen.append(timeout)
            return original(condition, timeout)

        return wait

    for half in (driver.clients.SYNC_API, driver.clients.ASYNC_API):
        for module in ("topology", "pool"):
            place = half.module(module)
            original = noted(getattr(place, half.wait))
            if half is driver.clients.ASYNC_API:

                def wait(condition: Any, timeout: Any, original: Any = original) -> Any:
                    return original(condition, timeout)

                monkeypatch.setattr(place, half.wait, wait)
            else:
                monkeypatch.setattr(place, half.wait, original)
    return seen


@pytest.mark.parametrize("setting", ["timeoutMS", "pymongo.timeout"])
def test_pymongos_own_timeouts_are_left_alone(
    setting: str, side: Side, waits: list[Any], instrument: Instrument
) -> None:
    """pymongo looks at the clock every half second; with retries of ours a wait is cut."""
    options = {"timeoutMS": 300} if setting == "timeoutMS" else {}
    lengths = {}
    for name in ("plain", "observed"):
        if name == "observed":
            instrument(config_strategy="driver")
        client = side.do(side.client, "mongodb://127.0.0.1:1/", **options)
        waits.clear()
        with suppress(PyMongoError):
            if options:
                side.do(client.db.coll.find_one)
            else:
                with pymongo.timeout(0.3):
                    side.do(client.db.coll.find_one)
        lengths[name] = set(waits)
    assert lengths["observed"] == lengths["plain"]


def test_a_negative_timeout_in_a_uri_is_dropped_as_by_pymongo(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument(config_strategy="driver")
    with pytest.warns(UserWarning, match="timeoutms"):
        client = side.do(side.client, f"{proxy.uri}&timeoutMS=-1")
    side.do(client.admin.command, "ping")


def test_a_timeout_of_ours_is_given_to_pymongo(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Its own loop then retries until it is over, as with ``pymongo.timeout``."""
    instrument(config_strategy="driver")
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(CutAfter("find", times=3))
    with pytest.raises(PyMongoError):
        side.do(coll.find_one)
    proxy.clear()
    proxy.inject(CutAfter("find", times=3))
    with override(timeout_ms=20_000):
        side.do(coll.find_one)


def test_what_has_no_effect_is_logged_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    instrument(config_strategy="driver")
    coll = side.do(side.client, proxy.uri)[database].coll
    with override(idempotent=True, timeout_ms=20_000):
        side.do(coll.update_many, {}, {"$set": {"n": 1}})
        side.do(coll.update_many, {}, {"$set": {"n": 1}})
    lines = [each for each in caplog.messages if "idempotent" in each]
    assert len(lines) == 1
