"""The selector of clients that have circuit breakers, around the application's own."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

BREAKERS = {"circuit_breaker": "on"}


def test_what_the_application_s_own_selector_raises_is_raised(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BREAKERS)

    def own(servers: list[Any]) -> list[Any]:
        raise LookupError("none today")

    client = side.client(proxy.uri, server_selector=own)
    with pytest.raises(LookupError, match="none today"):
        side.do(client[database].coll.find_one)


def test_what_is_no_selector_is_the_driver_s_to_refuse(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(**BREAKERS)
    with pytest.raises((TypeError, ValueError), match="must be a callable"):
        side.client(server.uri, server_selector="nearest")
