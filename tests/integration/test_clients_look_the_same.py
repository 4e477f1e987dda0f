"""What an application can see of its client is what it has without the library."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import Fail, ReplicaSet

pytestmark = [pytest.mark.oldest, pytest.mark.each_setup]
EVERYTHING = {"metrics": "all", "circuit_breaker": "on"}
"""Each kind of listener, and a selector."""


class Chosen:
    def __call__(self, servers: Any) -> Any:
        return servers

    def __repr__(self) -> str:
        return "Chosen()"


class Listener(SentCommands):
    def __repr__(self) -> str:
        return "Listener()"


def shown(client: Any) -> dict[str, Any]:
    options = client.options
    public = [name for name in dir(options) if name[0] != "_"]
    seen: dict[str, Any] = {name: getattr(options, name) for name in public}
    listeners, selector = seen["event_listeners"], seen["server_selector"]
    seen |= {"event_listeners": repr(listeners), "server_selector": repr(selector)}
    seen["pool_options"] = {
        name: repr(getattr(options.pool_options, name))
        for name in dir(options.pool_options)
        if name[0] != "_"
    }
    names = {name for name in dir(client) if not name.startswith("_pymongo_resilience")}
    return seen | {"repr": repr(client), "dir": names}


@pytest.mark.parametrize("given", [False, True])
def test_its_options_and_repr(
    given: bool, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    more: dict[str, Any] = {}
    if given:
        more = {"event_listeners": [Listener()], "server_selector": Chosen()}
    plain = shown(side.do(side.client, proxy.uri, **more))
    instrument(**EVERYTHING)
    client = side.do(side.client, proxy.uri, **more)
    assert shown(client) == plain
    assert client.options.event_listeners == more.get("event_listeners", [])
    # A client can be made from what is shown.
    names = {"Listener": Listener, "Chosen": Chosen, type(client).__name__: type(client)}
    made = side.do(lambda: eval(repr(client), names))  # noqa: S307 - our own text
    assert repr(made) == repr(client)
    side.do(made.close)


def test_a_client_made_from_anothers_options(proxy: ReplicaSet, instrument: Instrument) -> None:
    listener = Listener()
    telemetry = instrument(**EVERYTHING)
    with MongoClient[Any](proxy.uri, event_listeners=[listener]) as first:
        options = {"event_listeners": first.options.event_listeners}
        with MongoClient[Any](proxy.uri, **options) as second:
            second.admin.command("ping")
            assert len(listener.named("ping")) == 1
    assert len([span for span in telemetry.spans() if "ping" in span.name]) == 1


def test_listeners_are_called_and_breakers_select(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Although nothing shows them."""
    telemetry = instrument(**EVERYTHING)
    client = side.do(side.client, replica_set.uri)
    side.do(client[database].coll.find_one)
    assert telemetry.points("db.client.connection.use_time")
    assert not repr(client).count("ServerSelector")
    assert type(client._topology_settings.server_selector).__name__ == "ServerSelector"


def test_errors_can_be_pickled_as_pymongos(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(Fail("find", code=2))
    with pytest.raises(OperationFailure) as caught:
        side.do(coll.find_one)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (type(again), again.code, str(again)) == (
        type(caught.value), caught.value.code, str(caught.value),
    )  # fmt: skip


CALLS = {
    "read": lambda coll: (coll.find_one,),
    "write": lambda coll: (coll.insert_one, {}),
    "bulk": lambda coll: (coll.insert_many, [{}]),
}


@pytest.mark.parametrize("name", CALLS)
def test_pymongos_own_lines_about_retries_are_logged(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    lines = {}
    for which in ("plain", "instrumented"):
        if which == "instrumented":
            instrument()
        client = side.do(side.client, proxy.uri)
        coll = client[database].coll
        side.do(coll.find_one)
        caplog.clear()
        for command in ("find", "insert"):
            proxy.inject(Fail(command, code=6, labels=["RetryableWriteError"]))
        with caplog.at_level(logging.DEBUG, "pymongo.command"):
            side.do(*CALLS[name](coll))
        proxy.clear()
        lines[which] = [
            line.partition('"clientId"')[0] for line in caplog.messages if '"Retrying ' in line
        ]
    assert lines["instrumented"] == lines["plain"]
    assert bool(lines["plain"]) == (name != "bulk")


def test_each_retry_has_its_number(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    instrument()
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    proxy.inject(Fail("find", code=6, times=3))
    with caplog.at_level(logging.DEBUG, "pymongo.command"), pymongo.timeout(20):
        side.do(client[database].coll.find_one)
    numbers = [
        number
        for line in caplog.messages
        for number in (1, 2, 3)
        if f"Retrying read attempt number {number}" in line
    ]
    assert numbers == [1, 2, 3]
