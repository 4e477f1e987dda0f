"""CPython keeps the attributes of an instance where it finds them fast, until somebody reads its
``__dict__``: of what an operation passes through, we do not."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from pymongo_resilience_instrumentation.testbed import CutAfter, ReplicaSet
from support.clients import Side
from support.telemetry import Instrument

import pymongo_resilience

pytestmark = pytest.mark.oldest


def in_a_dict(instance: Any) -> bool:
    """Whether its attributes are; asked of any, they are from then on."""
    return any(
        type(each) is dict and each is instance.__dict__ for each in gc.get_referents(instance)
    )


def passed_through(client: Any) -> list[Any]:
    topology = client._topology
    pools = [server.pool for server in topology._servers.values()]
    return [client, client._event_listeners, topology, *topology._servers.values(), *pools]


@pytest.mark.parametrize("shown", [True, False])
def test_what_an_operation_passes_through_keeps_its_attributes_inline(
    shown: bool, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(traces=shown, metrics=shown, base_backoff_ms=1)
    client = side.do(side.client, proxy.uri)
    session = side.do(client.start_session)
    side.do(client[database].coll.insert_one, {}, session=session)
    proxy.inject(CutAfter("find"))
    side.do(client[database].coll.find_one)
    pymongo_resilience.uninstrument()
    assert [each for each in [*passed_through(client), session] if in_a_dict(each)] == []
