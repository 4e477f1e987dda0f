"""``status(client)``: what a client knows of its servers, made before ``instrument()`` or after."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed import Refuse
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import Config, status, uninstrument
from pymongo_resilience.client_status import ServerStatus
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize("instrumented", ["never", "later", "before"])
def test_every_server_with_its_state_and_round_trip_times(
    instrumented: str, side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    if instrumented == "before":
        instrument(retry_budget="tokens")
    client = side.client(replica_set.uri)
    side.do(client.admin.command, "ping")
    if instrumented == "later":
        instrument(retry_budget="tokens")
    side.wait_until(lambda: all(each.minimum_round_trip_time for each in status(client).servers))
    shown = status(client)
    assert shown.topology == "ReplicaSetWithPrimary"
    assert shown.retry_tokens == (None if instrumented == "never" else 1000.0)
    types = {each.address: each.type for each in shown.servers}
    assert list(types) == sorted(types)
    assert types == {
        member.host_and_port: "RSSecondary" if member.index else "RSPrimary"
        for member in replica_set.members
    }
    for each in shown.servers:
        assert each.round_trip_time is not None
        assert each.minimum_round_trip_time is not None
        assert 0 < each.minimum_round_trip_time <= each.round_trip_time < 1
        assert (each.in_flight, each.circuit_breaker, each.error) == (0, None, None)


@pytest.mark.parametrize("instrumented", [False, True])
def test_an_unknown_server_has_an_error_and_no_round_trip_time(
    instrumented: bool, side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    if instrumented:
        instrument()
    client = side.client(replica_set.uri)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    replica_set.inject(Refuse(60), on=2)
    gone = replica_set.members[2].host_and_port

    def refused() -> ServerStatus | None:
        (found,) = (each for each in status(client).servers if each.address == gone)
        return found if found.error == "Connection refused" else None

    side.wait_until(refused)
    found = refused()
    assert found is not None
    assert found.type == "Unknown"
    assert (found.round_trip_time, found.minimum_round_trip_time) == (None, None)
    replica_set.clear()


class Looking(SentCommands):
    client: Any = None
    seen: list[int | None]

    def started(self, event: Any) -> None:
        if self.client is not None:
            self.seen = [each.in_flight for each in status(self.client).servers]


@pytest.mark.parametrize("options", [None, {}])
def test_what_is_in_progress_is_counted_in_every_client(
    options: Any, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    if options is not None:
        instrument(**options)
    looking = Looking()
    client = side.client(proxy.uri, event_listeners=[looking])
    side.do(client.admin.command, "ping")
    looking.client = client
    side.do(client[database].coll.find_one)
    assert looking.seen == [1]
    assert [each.in_flight for each in status(client).servers] == [0]


def test_a_client_that_has_not_begun_knows_the_addresses(side: Side) -> None:
    client = side.client("mongodb://db1,db2/", connect=False)
    shown = status(client)
    assert (shown.topology, shown.retry_tokens) == ("Unknown", None)
    assert [each.address for each in shown.servers] == ["db1:27017", "db2:27017"]
    for each in shown.servers:
        assert (each.type, each.in_flight, each.circuit_breaker) == ("Unknown", None, None)
        assert (each.round_trip_time, each.minimum_round_trip_time, each.error) == (None,) * 3


@pytest.mark.parametrize("wrong", ["mongodb://user:secret@db1/", None, object()])
def test_what_is_no_client_is_refused_without_its_value(wrong: Any) -> None:
    with pytest.raises(TypeError) as caught:
        status(wrong)
    assert str(caught.value).endswith(f" {type(wrong).__name__}")
    assert "secret" not in str(caught.value)


def test_it_has_the_configuration_in_force(side: Side, instrument: Instrument) -> None:
    client = side.client("mongodb://db1/", connect=False)
    assert status(client).config is None
    instrument(timeout_ms=750)
    assert status(client).config == Config(timeout_ms=750, command_spans="always")
    uninstrument()
    assert status(client).config is None
