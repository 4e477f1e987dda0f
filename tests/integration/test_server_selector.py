"""The selector of clients that have circuit breakers, around the application's own."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import ReadPreference
from pymongo_resilience_instrumentation.selection import client_limits, selector
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

BREAKERS = {"circuit_breaker": "on"}


class Addresses(SentCommands):
    def __init__(self) -> None:
        super().__init__()
        self.of_finds: list[Any] = []

    def started(self, event: Any) -> None:
        if event.command_name == "find":
            self.of_finds.append(event.connection_id)


def known(side: Side, replica_set: ReplicaSet, **options: Any) -> Any:
    """A client that may read from each of the three members."""
    client = side.client(replica_set.uri, localThresholdMS=60_000, **options)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    return client


def nearest(client: Any, database: str) -> Any:
    return client.get_database(database, read_preference=ReadPreference.NEAREST).coll


def choices(side: Side, client: Any) -> set[Any]:
    chosen = side.do(client._topology.select_servers, ReadPreference.NEAREST, "test")
    return {each.description.address for each in chosen}


def leave_out(monkeypatch: pytest.MonkeyPatch, *addresses: Any) -> None:
    """Open the breakers of these servers."""
    breakers = client_limits.ClientBreakers
    monkeypatch.setattr(breakers, "refusing", lambda _: set(addresses))


@pytest.mark.parametrize("option", ["server_selector", "Server_Selector"])
def test_the_application_s_own_selector_is_called_first(
    option: str, side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    wanted, addresses = replica_set.members[1], Addresses()
    seen: list[int] = []

    def own(servers: list[Any]) -> list[Any]:
        seen.append(len(servers))
        return [each for each in servers if each.address == wanted.address] or servers

    instrument(**BREAKERS)
    client = known(side, replica_set, event_listeners=[addresses], **{option: own})
    seen.clear()
    for _ in range(10):
        side.do(nearest(client, database).find_one)
    assert addresses.of_finds == [wanted.address] * 10
    assert seen == [3] * 10


def test_what_the_application_s_own_selector_raises_is_raised(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BREAKERS)

    def own(servers: list[Any]) -> list[Any]:
        raise LookupError("none today")

    client = side.client(proxy.uri, server_selector=own)
    with pytest.raises(LookupError, match="none today"):
        side.do(client[database].coll.find_one)


def test_a_client_made_from_another_s_keywords_has_one_selector_of_its_own(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    def own(servers: list[Any]) -> list[Any]:
        return servers

    instrument(**BREAKERS)
    first = side.do(side.client, server.uri, server_selector=own)
    second = side.do(first._duplicate)
    side.clients.append(second)
    theirs, its = (each._topology_settings.server_selector for each in (first, second))
    assert its is not theirs
    assert its.own is own


def test_what_is_no_selector_is_the_driver_s_to_refuse(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(**BREAKERS)
    with pytest.raises((TypeError, ValueError), match="must be a callable"):
        side.client(server.uri, server_selector="nearest")


@pytest.mark.parametrize("options", [{}, BREAKERS | {"config_strategy": "driver"}])
def test_a_client_without_breakers_has_no_selector_of_ours(
    options: dict[str, Any], side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(**options)
    client = side.do(side.client, server.uri)
    assert not isinstance(client._topology_settings.server_selector, selector.ServerSelector)


def test_a_server_that_is_left_out_serves_only_where_there_is_no_other(
    side: Side,
    replica_set: ReplicaSet,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**BREAKERS)
    client = known(side, replica_set)
    addresses = [member.address for member in replica_set.members]
    leave_out(monkeypatch, *addresses[:2])
    assert choices(side, client) == {addresses[2]}
    leave_out(monkeypatch, *addresses)
    assert choices(side, client) == set(addresses)


@pytest.mark.parametrize("why", ["switched off", "a fault of ours"])
def test_the_choice_is_left_to_the_driver(
    why: str,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**BREAKERS)
    client = known(side, replica_set)
    leave_out(monkeypatch, *(member.address for member in replica_set.members[:2]))
    if why == "switched off":
        pymongo_resilience.uninstrument()
    else:

        def broken(*_: Any) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(client_limits.ClientBreakers, "without_open", broken)
    assert len(choices(side, client)) == 3
    side.do(nearest(client, database).find_one)
