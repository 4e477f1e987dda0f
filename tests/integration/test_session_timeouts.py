"""A session's default_timeout_ms: what it holds for, what wins over it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pymongo
import pytest
from pymongo.errors import ConfigurationError
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import LONG, LOW, DriversTime, drivers_time, limits, session_of

from pymongo_resilience import Policy, override, uninstrument
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import set_active

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest

ENDS = {
    "commit_transaction": "commitTransaction",
    "abort_transaction": "abortTransaction",
    "end_session": "abortTransaction",
}
SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], Callable[[], Any]]] = {
    "Config": ({"timeout_ms": LOW}, {}, {}, nullcontext),
    "client": ({"timeout_ms": LONG}, {"timeoutMS": LOW}, {}, nullcontext),
    "session": (
        {"timeout_ms": LONG, "policies": {"*.*": Policy(timeout_ms=LONG)}},
        {"timeoutMS": LONG}, {"default_timeout_ms": LOW}, nullcontext,
    ),
    "override": (
        {}, {"timeoutMS": LONG}, {"default_timeout_ms": LONG}, lambda: override(timeout_ms=LOW),
    ),
    "pymongo.timeout": (
        {}, {}, {"default_timeout_ms": LONG}, lambda: pymongo.timeout(LOW / 1000),
    ),
}  # fmt: skip
"""What instrument(), the client and the session are given, and what is around the end."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("end", ENDS)
def test_the_nearest_timeout_holds_for_a_transactions_end(
    end: str, source: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    options, of_client, of_session, around = SOURCES[source]
    instrument(**options)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], **of_client)
    with session_of(side, client, **of_session) as session:
        side.do(session.start_transaction)
        side.do(client[database].coll.insert_one, {}, session=session)
        with around():
            side.do(getattr(session, end))
    (limit,) = limits(sent, ENDS[end])
    assert limit is not None
    assert LOW / 2 < limit <= LOW


def test_it_holds_for_nothing_else(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    with session_of(side, client, default_timeout_ms=LOW) as session:
        side.do(client[database].coll.insert_one, {}, session=session)
        side.do(session.start_transaction)
        side.do(client[database].coll.insert_one, {}, session=session)
        side.do(session.commit_transaction)
    assert limits(sent, "insert") == [None, None]


@pytest.mark.parametrize("switched_on", [True, False])
@pytest.mark.parametrize("wrong", [-1, 1.5, "100", True, 2**31])
def test_what_is_no_timeout_is_refused(
    wrong: Any, switched_on: bool, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)
    with set_active(switched_on), pytest.raises(ConfigurationError) as caught:
        client.start_session(default_timeout_ms=wrong)
    allowed = "expected an integer from 0 to 2147483647"
    assert str(caught.value) == f"default_timeout_ms={wrong!r}: {allowed}"


def test_none_inherits_and_what_the_driver_knows_is_handed_on(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], timeoutMS=LOW)
    options = {"default_timeout_ms": None, "causal_consistency": False}
    with session_of(side, client, **options) as session:
        assert session.options.causal_consistency is False
        side.do(session.start_transaction)
        side.do(client[database].coll.insert_one, {}, session=session)
        side.do(session.commit_transaction)
    (limit,) = limits(sent, "commitTransaction")
    assert limit is not None
    assert LOW / 2 < limit <= LOW


def test_start_session_itself_has_no_timeout_of_its_own(
    side: Side, proxy: ReplicaSet, instrument: Instrument, drivers_time: DriversTime
) -> None:
    """Nor does it end with one: nothing is sent, and nothing waited for."""
    instrument()
    client = side.client(proxy.uri)
    with pymongo.timeout(1), override(timeout_ms=1):
        drivers_time.passed = 2
        with session_of(side, client, default_timeout_ms=0) as session:
            assert not session.has_ended


def test_after_uninstrument_the_driver_refuses_it_as_ever(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)
    uninstrument()
    with pytest.raises(TypeError, match="default_timeout_ms"):
        client.start_session(default_timeout_ms=100)
