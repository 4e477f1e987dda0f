"""The default timeout: as many attempts as fit, one error type at its end, nothing left behind."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError
from pymongo_resilience.errors import Stage
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import Fail, ReplicaSet

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize("strategy", ["fast_fail", "best_effort"])
def test_a_permanent_error_is_repeated_with_back_off_until_the_deadline(
    strategy: str,
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=1500, config_strategy=strategy)
    client = side.client(server.uri)
    wait_for_server(side, client)
    coll = client[database].coll
    with fail_command(control, "find", errorCode=6):
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(coll.find_one)
    error = caught.value
    assert error.timeout is True
    if error.stage is Stage.ANSWERED:  # or the deadline cut off the last attempt
        assert isinstance(error, pymongo.errors.OperationFailure)
        assert isinstance(error.__cause__, pymongo.errors.OperationFailure)
        assert error.code == 6
        assert str(error.__cause__) in str(error)
        assert error.server == "{}:{}".format(*server.address)
    # Fewer than fit, where the machine is busy.
    assert 3 <= error.attempts <= 20
    assert error.timeout_s == 1.5
    # bench/retry_storm.py measures how much more.
    assert 1.4 < error.elapsed_s < 5
    assert telemetry.decisions.events[-1].rule is Rule.DEADLINE
    root = telemetry.operations()[-1]
    assert root.attributes["pymongo_resilience.outcome"] == "deadline"
    assert root.attributes["pymongo_resilience.deadline"] == 1.5


def test_without_a_deadline_no_error_changes_its_type(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(server.uri, serverSelectionTimeoutMS=1000)[database].coll
    with fail_command(control, "find", errorCode=6):
        with pytest.raises(pymongo.errors.OperationFailure) as caught:
            side.do(coll.find_one)
    assert type(caught.value) is pymongo.errors.OperationFailure
    with fail_command(control, "find", closeConnection=True):
        with pytest.raises(pymongo.errors.AutoReconnect) as cut:
            side.do(coll.find_one)
    assert type(cut.value) is pymongo.errors.AutoReconnect


def test_the_chain_of_an_error_is_that_of_plain_pymongo(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    """What the application handles when it calls us is no context of the driver's own error."""
    coll = side.client(server.uri)[database].coll
    side.do(coll.find_one)

    def chain() -> list[tuple[Any, ...]]:
        seen: list[tuple[Any, ...]] = []
        with fail_command(control, "find", closeConnection=True):
            try:
                raise LookupError("of the application")
            except LookupError:
                try:
                    side.do(coll.find_one)
                except pymongo.errors.PyMongoError as error:
                    each: BaseException | None = error
                    while each is not None:
                        seen.append((type(each), type(each.__cause__), each.__suppress_context__))
                        each = each.__cause__ or each.__context__
        return seen

    plain = chain()
    assert len(plain) > 1
    instrument()
    assert chain() == plain


def test_an_error_of_a_retry_that_wrote_nothing_is_kept_as_the_cause_of_the_first(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(Fail("insert", code=91, labels=["RetryableWriteError"]))
    labels = ["RetryableWriteError", "NoWritesPerformed"]
    proxy.inject(Fail("insert", times=50, code=10107, labels=labels))
    with pytest.raises(pymongo.errors.NotPrimaryError) as caught:
        side.do(coll.insert_one, {"_id": 1})
    assert caught.value.details["code"] == 91
    assert isinstance(caught.value.__cause__, pymongo.errors.NotPrimaryError)
    assert caught.value.__cause__.details["code"] == 10107


def test_a_timeout_of_zero_repeats_with_back_off_until_the_selection_timeout(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=0)
    client = side.client(server.uri, serverSelectionTimeoutMS=1500)
    wait_for_server(side, client)
    coll = client[database].coll
    with fail_command(control, "find", errorCode=6):
        with pytest.raises(pymongo.errors.OperationFailure) as caught:
            side.do(coll.find_one)
    assert type(caught.value) is pymongo.errors.OperationFailure
    events = telemetry.decisions.events
    # Fewer than fit, where the machine is busy.
    assert 3 <= len(events) <= 25
    assert events[-1].rule is Rule.ATTEMPTS
    delays = [event.delay for event in events[:-1]]
    assert delays[0] == 0
    assert all(delay > 0 for delay in delays[1:])
    assert 0 < sum(delays) < 1.5
