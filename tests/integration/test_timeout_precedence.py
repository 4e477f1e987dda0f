"""Which timeout holds: of override and pymongo.timeout, a rule, the client, and the default.

Seen at the error that it ends in: ``timeout_s`` is what the operation had.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pymongo
import pytest
from pymongo import _csot
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, override

pytestmark = pytest.mark.oldest
SHORT, LONG = 120, 60_000
"""Milliseconds: the one that is to hold, and any other."""


def expired(side: Side, coll: Any, control: Any, function: Any = None) -> float:
    """Seconds that the operation had, once it has run out of them."""
    wait_for_server(side, coll.database.client)
    with fail_command(control, "find", errorCode=6), pytest.raises(OperationTimeoutError) as caught:
        side.do(function or coll.find_one)
    assert _csot.get_timeout() is None or function is None
    return caught.value.timeout_s


@pytest.mark.parametrize(
    ("around", "rule", "client", "default", "holds"),
    [
        (None, None, None, SHORT, "default"),
        (None, None, SHORT, LONG, "client"),
        (None, SHORT, LONG, LONG, "rule"),
        (SHORT, LONG, LONG, LONG, "override"),
        (SHORT, None, 0, 0, "override"),
        (None, SHORT, 0, None, "rule"),
    ],
)
def test_the_nearest_holds(
    around: int | None,
    rule: int | None,
    client: int | None,
    default: int | None,
    holds: str,
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    policies = {} if rule is None else {f"{database}.*": Policy(timeout_ms=rule)}
    instrument(timeout_ms=default, policies=policies)
    options = {} if client is None else {"timeoutMS": client}
    coll = side.client(server.uri, **options)[database].coll
    block: Any = contextlib.nullcontext() if around is None else override(timeout_ms=around)
    with block:
        assert expired(side, coll, control) == SHORT / 1000, f"not that of the {holds}"


def test_each_operation_of_a_block_has_the_whole(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    """Unlike pymongo.timeout, which is one end for all of them."""
    instrument()
    coll = side.client(server.uri)[database].coll
    side.do(coll.find_one)
    with override(timeout_ms=SHORT), fail_command(control, "find", errorCode=6):
        for _ in range(2):
            with pytest.raises(OperationTimeoutError) as caught:
                side.do(coll.find_one)
            assert caught.value.elapsed_s > SHORT / 2000


def test_a_rule_holds_for_its_collections_alone(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(policies={f"{database}.coll": Policy(timeout_ms=SHORT)})
    db = side.client(server.uri)[database]
    assert expired(side, db.coll, control) == SHORT / 1000
    with fail_command(control, "find", errorCode=6):
        with pytest.raises(pymongo.errors.OperationFailure) as caught:
            side.do(db.other.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)
    assert caught.value.attempts == 2  # type: ignore[attr-defined]  # given by the library
