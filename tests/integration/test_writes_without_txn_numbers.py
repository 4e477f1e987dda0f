"""Writes on a server that knows no transaction numbers: what was never sent is sent again.

And a server that ceases to know them, or begins to, between two attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pytest
from pymongo import InsertOne, UpdateOne
from pymongo.errors import AutoReconnect, NotPrimaryError
from support.clients import SentCommands, Side
from support.servers import cases
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    Election,
    Interception,
    Overload,
    ReplicaSet,
    Standalone,
)

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
ONE = {"_id": 0}


Write = tuple[tuple[str, ...], Callable[[Any], Any]]
"""Its commands, and the call of a collection."""
WRITES: dict[str, Write] = {
    "insert_one": (("insert",), lambda coll: coll.insert_one({"_id": 1})),
    "insert_many": (("insert",), lambda coll: coll.insert_many([{"_id": 1}, {"_id": 2}])),
    "update_one": (("update",), lambda coll: coll.update_one(ONE, INC)),
    "update_many": (("update",), lambda coll: coll.update_many({"n": 0}, INC)),
    "replace_one": (("update",), lambda coll: coll.replace_one(ONE, {"n": 1})),
    "delete_one": (("delete",), lambda coll: coll.delete_one(ONE)),
    "findAndModify": (("findAndModify",), lambda coll: coll.find_one_and_update(ONE, INC)),
    "bulk_write": (
        ("insert", "update"),
        lambda coll: coll.bulk_write([InsertOne({"_id": 1}), UpdateOne(ONE, INC)]),
    ),
    "client's bulk_write": (
        ("bulkWrite",),
        lambda coll: coll.database.client.bulk_write(
            [InsertOne({"_id": 1}, namespace=coll.full_name)]
        ),
    ),
}


class Changing(ReplicaSet):
    """A server that is a standalone, or the one member of a set, as ``standalone`` says."""

    standalone = False

    def describe(self, member: Any, hello: Any) -> None:
        kind = Standalone if self.standalone else ReplicaSet
        kind.describe(self, member, hello)  # type: ignore[arg-type]

    def refusal(self, member: Any, request: Any) -> Any:
        kind = Standalone if self.standalone else ReplicaSet
        return kind.refusal(self, member, request)  # type: ignore[arg-type]

    @property
    def _parameters(self) -> str:
        return "?directConnection=true"


@pytest.fixture
def standalone(server: Any) -> Any:
    with Standalone(server.address) as running:
        yield running


@pytest.fixture
def changing(server: Any) -> Any:
    with Changing(server.address, members=1) as running:
        yield running


def monitored(side: Side, deployment: Any, **options: Any) -> tuple[Any, SentCommands]:
    """A client whose monitor is connected, and whose pool is empty."""
    sent = SentCommands()
    client = side.client(deployment.uri, event_listeners=[sent], **options)
    assert side.do(lambda: client.address) == deployment.address
    return client, sent


def refuse_checkouts(
    side: Side, patch: pytest.MonkeyPatch, times: int, then: Callable[[], None] = lambda: None
) -> None:
    """As a pool does that was cleared while somebody asked it for a connection."""
    half = "synchronous" if side.runner is None else "asynchronous"
    pool = import_module(f"pymongo.{half}.pool").Pool
    original, left = pool._get_conn, iter(range(times))

    def refuse(asked: Any) -> None:
        if not asked.is_sdam and next(left, None) is not None:
            then()
            raise AutoReconnect("paused") from AutoReconnect("connection pool paused")

    def get(asked: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(asked)
        return original(asked, *args, **kwargs)

    async def get_async(asked: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(asked)
        return await original(asked, *args, **kwargs)

    patch.setattr(pool, "_get_conn", get if side.runner is None else get_async)


@pytest.fixture(params=["handshake", "checkout"])
def unsent(
    request: pytest.FixtureRequest, side: Side, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any, int], None]:
    """``unsent(deployment, times)``: so many attempts get no connection."""

    def refuse(deployment: Any, times: int) -> None:
        if request.param == "handshake":
            deployment.inject(CutAtHandshake(times=times))
        else:
            refuse_checkouts(side, monkeypatch, times)

    return refuse


Unsent = Callable[[Any, int], None]


@pytest.mark.parametrize("options", [{}, {"timeout_ms": 20_000}], ids=["light", "timed"])
@pytest.mark.parametrize("name", cases(WRITES, {"client's bulk_write": "8.0"}))
def test_what_was_never_sent_is_sent_without_a_number(
    name: str, unsent: Unsent, options: dict[str, Any], standalone: Standalone, side: Side,
    database: str, control: Any, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(base_backoff_ms=1, **options)
    control[database].coll.insert_one({**ONE, "n": 0})
    client, sent = monitored(side, standalone)
    times = 3 if options else 1
    unsent(standalone, times)
    commands, write = WRITES[name]
    side.do(write, client[database].coll)
    assert [type(event) for event in telemetry.decisions.events] == [RetryScheduled] * times
    assert ["txnNumber" in each for each in sent.named(*commands)] == [False] * len(commands)
    assert list(control[database].coll.find()) != [{**ONE, "n": 0}]


def test_a_rejected_write_is_sent_again_without_a_number(
    standalone: Standalone, side: Side, database: str, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1)
    client, sent = monitored(side, standalone)
    standalone.inject(Overload("insert", times=3))
    side.do(client[database].coll.insert_one, {"_id": 1})
    assert ["txnNumber" in each for each in sent.named("insert")] == [False] * 4


class NoSessions(Interception):
    """The member of a set that knows no sessions, and so no transaction numbers."""

    def on_hello(self, reply: Any) -> None:
        reply.pop("logicalSessionTimeoutMinutes", None)


@pytest.mark.parametrize("fault", [NoSessions, lambda: Election(60)])
def test_so_it_is_where_the_server_knows_no_sessions_and_on_a_secondary_that_is_meant(
    fault: Any, unsent: Unsent, changing: Changing, side: Side, database: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    """Its type is no surprise to whoever connected to it directly: it answers for itself."""
    instrument(timeout_ms=20_000, base_backoff_ms=1)
    changing.inject(fault())
    client, sent = monitored(side, changing)
    unsent(changing, 2)
    with nullcontext() if fault is NoSessions else pytest.raises(NotPrimaryError):
        side.do(client[database].coll.insert_one, {"_id": 1})
    assert ["txnNumber" in each for each in sent.named("insert")] == [False]


class TurningAfter(CutAfter):
    """Executes the write and loses its reply; the server comes back as a standalone, and cuts a
    handshake more before it takes one."""

    def __init__(self, command: str, deployment: Changing) -> None:
        super().__init__(command)
        self._deployment = deployment

    def verdict(self, request: Any) -> Any:

        def turn() -> None:
            self._deployment.standalone = True
            self._deployment.members[0].interceptions.append(CutAtHandshake())

        # Once the request has passed.
        asyncio.get_running_loop().call_soon(turn)
        return super().verdict(request)


@pytest.mark.parametrize("options", [{}, {"timeout_ms": 20_000}], ids=["light", "timed"])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("name", ["update_one", "findAndModify", "bulk_write"])
def test_a_write_in_flight_does_not_follow_to_a_standalone(
    name: str,
    idempotent: bool,
    options: dict[str, Any],
    changing: Changing,
    side: Side,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    """It may be applied, and nobody would recognise its repetition there."""
    telemetry = instrument(**options)
    control[database].coll.insert_one({**ONE, "n": 0})
    client, sent = monitored(side, changing)
    (*_, last), write = WRITES[name]
    changing.inject(TurningAfter(last, changing))
    coll = client[database].coll
    with override(idempotent=idempotent):
        if idempotent:
            side.do(write, coll)
        else:
            with pytest.raises(AutoReconnect) as caught:
                side.do(write, coll)
            assert "any more" not in str(caught.value)
            assert telemetry.decisions.events[-1].rule is Rule.NOT_SAFE
    carried = ["txnNumber" in each for each in sent.named(last)]
    assert carried == ([True, False] if idempotent else [True])
    applied = control[database].coll.find_one(ONE)
    assert applied == {**ONE, "n": 1 + idempotent}


def test_a_server_that_begins_to_know_numbers_gets_one(
    changing: Changing,
    side: Side,
    database: str,
    control: Any,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(timeout_ms=20_000)
    changing.standalone = True
    client, sent = monitored(side, changing)

    def turn() -> None:
        changing.standalone = False

    refuse_checkouts(side, monkeypatch, 1, turn)
    changing.inject(CutAfter("insert"))
    side.do(client[database].coll.insert_one, {"_id": 1})
    assert ["txnNumber" in each for each in sent.named("insert")] == [True, True]
    assert control[database].coll.count_documents({}) == 1
