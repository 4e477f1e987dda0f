"""Looking up the hosts of a mongodb+srv URI: what may succeed later is retried within the deadline.

``MongoClient`` looks them up in its constructor, or in the first operation with
``connect=False``; ``AsyncMongoClient`` in the first operation.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.errors import ConfigurationError
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.dns_server import Faults, resolving
from support.telemetry import Instrument

from pymongo_resilience import OperationTimeoutError
from pymongo_resilience.rules.retry_rules import Rule

HOST = "db.example.test"
URI = f"mongodb+srv://{HOST}/?tls=false"
RECORDS = "_mongodb._tcp." + HOST
FAILS = "SERVFAIL"


@pytest.fixture
def faults(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """SRV and TXT records that lead to the server, until the test plants a fault."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        here = "127.0.0.1" if str(host).endswith("example.test") else host
        return resolve(here, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    records = {
        (RECORDS, "SRV"): [f"0 0 {server.address[1]} n0.{HOST}."],
        (HOST, "TXT"): ['"authSource=admin"'],
    }
    with resolving(records) as planted:
        yield planted


def plant(faults: Faults, kind: str, rcode: str | None, times: float) -> None:
    faults.kind, faults.rcode, faults.left = kind, rcode, times


def used(side: Side, **options: Any) -> Any:
    """The first find of a client that is made here."""
    client = side.client(URI, **options)
    return side.do(client["db"].coll.find_one)


LAZY = {"connect": False}
"""For ``MongoClient``; it changes nothing in ``AsyncMongoClient``."""


@pytest.mark.parametrize("options", [LAZY, {}])
@pytest.mark.parametrize("kind", ["SRV", "TXT"])
@pytest.mark.parametrize("rcode", [FAILS, "REFUSED", None])
def test_a_lookup_that_may_succeed_later_is_retried(
    options: dict[str, Any],
    kind: str,
    rcode: str | None,
    side: Side,
    faults: Faults,
    instrument: Instrument,
) -> None:
    # dnspython drops a name server that answers so. It asks one that is silent again by itself.
    times = 5 if rcode else 1
    plant(faults, kind, rcode, times)
    with pytest.raises(ConfigurationError):  # plain pymongo
        used(side, connectTimeoutMS=300, **options)
    plant(faults, kind, rcode, times)
    instrument(timeout_ms=20_000)
    assert used(side, connectTimeoutMS=300, **options) is None
    assert faults.left <= 0


@pytest.mark.parametrize("options", [LAZY, {}])
def test_without_a_timeout_it_is_retried_for_a_moment(
    options: dict[str, Any], side: Side, faults: Faults, instrument: Instrument
) -> None:
    instrument()
    plant(faults, "SRV", FAILS, 1)
    assert used(side, **options) is None
    plant(faults, "SRV", FAILS, 1000)
    with pytest.raises(ConfigurationError, match=FAILS):
        used(side, **options)


@pytest.mark.parametrize("options", [LAZY, {}])
def test_without_a_timeout_lost_packets_take_no_longer_than_in_pymongo(
    options: dict[str, Any], side: Side, faults: Faults, instrument: Instrument
) -> None:
    instrument()
    plant(faults, "SRV", None, float("inf"))
    began = time.monotonic()
    with pytest.raises(ConfigurationError):
        used(side, connectTimeoutMS=2000, **options)
    assert time.monotonic() - began < 3.5


@pytest.mark.parametrize("rcode", [FAILS, None])
@pytest.mark.parametrize("options", [LAZY, {}])
def test_it_ends_with_the_deadline(
    rcode: str | None,
    options: dict[str, Any],
    side: Side,
    faults: Faults,
    instrument: Instrument,
) -> None:
    """And not with ``connectTimeoutMS``, which is 20 s."""
    telemetry = instrument(timeout_ms=600)
    plant(faults, "SRV", rcode, float("inf"))
    began = time.monotonic()
    with pytest.raises(ConfigurationError) as caught:
        used(side, **options)
    assert time.monotonic() - began < 5
    in_constructor = side.runner is None and not options
    assert isinstance(caught.value, OperationTimeoutError) is not in_constructor
    if not in_constructor:
        assert telemetry.decisions.events[-1].rule is Rule.DEADLINE
    plant(faults, "SRV", None, 0)
    assert used(side, **options) is None


def no_such_name(faults: Faults) -> None:
    plant(faults, "SRV", "NXDOMAIN", float("inf"))


def no_such_record(faults: Faults) -> None:
    plant(faults, "SRV", "NOERROR", float("inf"))


@pytest.mark.parametrize("planted", [no_such_name, no_such_record])
@pytest.mark.parametrize("options", [LAZY, {}])
def test_a_definite_answer_is_an_error_at_once(
    planted: Callable[[Faults], None],
    options: dict[str, Any],
    side: Side,
    faults: Faults,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    planted(faults)
    began = time.monotonic()
    with pytest.raises(ConfigurationError):
        used(side, **options)
    assert time.monotonic() - began < 5


def test_by_the_specification_it_is_not_retried(
    side: Side, faults: Faults, instrument: Instrument
) -> None:
    instrument(config_strategy="mongodb")
    plant(faults, "SRV", FAILS, 1)
    with pytest.raises(ConfigurationError):
        used(side)
