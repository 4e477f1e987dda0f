"""An error says why there was no further attempt: in words, by its rule, and the log the same."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pymongo import InsertOne
from pymongo.errors import OperationFailure, PyMongoError
from pymongo_resilience_instrumentation.tools.testbed import (
    CutAfter,
    CutBefore,
    Election,
    Fail,
    Overload,
)
from support.clients import Side
from support.engines import RefuseNumbers, Throttle
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import RetryDeclined
from pymongo_resilience.rules.retry_rules import Rule, is_explained
from pymongo_resilience.testbed import Fault, ReplicaSet

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
CUT = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
OVERLOADED = RetryReason.OVERLOADED
MOVED = "is never retried once it was sent: the server may have advanced the cursor"


class Refuses:
    def retry_after(self, operation: Any, failure: Any) -> None:
        return None


class Case(NamedTuple):
    call: Callable[[Side, Any], Any]
    fault: Callable[[], Fault]
    rule: Rule
    text: str
    reasons: tuple[RetryReason, ...] = ()
    config: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


def find_one(side: Side, coll: Any) -> None:
    side.do(coll.find_one)


def find_one_twice(side: Side, coll: Any) -> None:
    with pytest.raises(OperationFailure):
        side.do(coll.find_one)
    side.do(coll.find_one)


def update_many(side: Side, coll: Any) -> None:
    side.do(coll.update_many, {}, INC)


def insert_one(side: Side, coll: Any) -> None:
    side.do(coll.insert_one, {})


def declared_command(side: Side, coll: Any) -> None:
    with override(idempotent=True):
        side.do(coll.database.command, "ping")


def declared_get_more(side: Side, coll: Any) -> None:
    reply = side.do(coll.database.command, {"find": "coll", "batchSize": 2})
    with override(idempotent=True):
        side.do(coll.database.command, {"getMore": reply["cursor"]["id"], "collection": "coll"})


def aggregate_out(side: Side, coll: Any) -> None:
    side.do(coll.aggregate, [{"$out": "copy"}])


def get_more(side: Side, coll: Any) -> None:
    side.do(coll.find(batch_size=2).to_list)


def get_more_of_an_aggregate(side: Side, coll: Any) -> None:
    side.documents(side.do(coll.aggregate, [], batchSize=2))


def in_transaction(side: Side, coll: Any) -> None:
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction)
        side.do(coll.find_one, {}, session=session)


def cut(command: str, times: int = 9) -> Callable[[], Fault]:
    return lambda: CutBefore(command, times=times)


def overload(command: str) -> Callable[[], Fault]:
    return lambda: Overload(command, times=50)


CASES = {
    "a batch": Case(get_more, cut("getMore"), Rule.NEVER_RETRIED, f"find/getMore {MOVED}"),
    "a batch of an aggregate": Case(
        get_more_of_an_aggregate, cut("getMore"), Rule.NEVER_RETRIED, f"getMore {MOVED}"
    ),
    "a command": Case(
        lambda side, coll: side.do(coll.database.command, "ping"),
        cut("ping"), Rule.NEVER_RETRIED,
        "command is never retried once it was sent: it is not declared idempotent",
    ),
    "an aggregate that writes": Case(
        aggregate_out, lambda: CutAfter("aggregate"), Rule.NEVER_RETRIED,
        "aggregate is never retried once it was sent: $out or $merge may have written part",
    ),
    "a declared batch of command()": Case(
        declared_get_more, cut("getMore"), Rule.NEVER_RETRIED, f"command/getMore {MOVED}",
    ),
    "no server for a retry": Case(
        insert_one, lambda: Election(gap=3.0), Rule.SELECTION,
        "insert_one: no server could be selected, and a failed selection is not retried",
        (RetryReason.NOT_PRIMARY,), {}, {"serverSelectionTimeoutMS": 300},
    ),
    "a transaction": Case(
        in_transaction, cut("find"), Rule.NEVER_RETRIED,
        "find_one is never retried once it was sent: a transaction must be retried as a whole",
    ),
    "another write": Case(
        update_many, lambda: CutAfter("update"), Rule.NOT_SAFE,
        "update_many was sent and is not declared idempotent",
    ),
    "no timeout": Case(
        find_one, lambda: Fail("find", times=50, code=6), Rule.ATTEMPTS,
        "find_one: reached the limit of one retry without a timeout. Set timeout_ms",
        (RetryReason.TEMPORARILY_UNAVAILABLE,),
    ),
    "overload": Case(
        insert_one, overload("insert"), Rule.ATTEMPTS,
        "insert_one: reached the limit of 5 retries after an overload error", (OVERLOADED,) * 5,
        {"base_backoff_ms": 1},
    ),
    "overload, no retries": Case(
        find_one, overload("find"), Rule.ATTEMPTS,
        "find_one: reached the limit of 0 retries after an overload error", (),
        {"max_retries": 0},
    ),
    "switched off": Case(
        find_one, cut("find"), Rule.SWITCHED_OFF,
        "find_one: retryReads is off for this client. Set retryReads=true", (), {},
        {"retryReads": False},
    ),
    "switched off, a write": Case(
        insert_one, cut("insert"), Rule.NOT_SAFE,
        "insert_one was sent while retryWrites is off. To allow retries, declare it idempotent",
        (), {}, {"retryWrites": False},
    ),
    "switched off, a declared command": Case(
        declared_command, cut("ping"), Rule.SWITCHED_OFF,
        "command: retryReads or retryWrites is off for this client. Set both to true", (), {},
        {"retryReads": False},
    ),
    "throttled": Case(
        insert_one, lambda: Throttle("insert"), Rule.NOT_SAFE,
        "insert_one was sent and the server throttled it, but may have executed a part of it",
        (), {}, {"retryWrites": False},
    ),
    "no retryable writes": Case(
        insert_one, RefuseNumbers, Rule.UNKNOWN_REASON,
        "insert_one: the server does not support retryable writes. Set retryWrites=false",
    ),
    "a strategy": Case(
        find_one, cut("find"), Rule.STRATEGY, "find_one: the retry strategy Refuses declined", (),
        {"strategy": Refuses()},
    ),
    "terminal": Case(
        find_one, lambda: Fail("find", code=13), Rule.TERMINAL,
        "find_one: a retry would not help (access_error)",
    ),
    "an everyday error": Case(
        find_one, lambda: Fail("find", code=2), Rule.UNKNOWN_REASON,
        "find_one: a retry would not help",
    ),
    "a spent budget": Case(
        find_one_twice, overload("find"), Rule.BUDGET,
        "find_one: the server is overloaded, and the client's retry budget allows no further retry",
        (),
        {"retry_budget": "tokens", "retry_token_capacity": 1, "base_backoff_ms": 1},
    ),
    "no room for the wait": Case(
        find_one, lambda: Overload("find", times=9, base_backoff=600), Rule.OVERLOAD_WAIT,
        "find_one: the server is overloaded, and the wait before a retry would pass the deadline",
        (),
        {"timeout_ms": 5_000, "max_backoff_ms": 600_000},
    ),
}  # fmt: skip


@pytest.fixture
def filled(control: Any, database: str) -> str:
    control[database].coll.insert_many([{"_id": n} for n in range(10)])
    return database


@pytest.mark.parametrize("name", CASES)
def test_the_error_and_the_log_say_why(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    filled: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = CASES[name]
    caplog.set_level(logging.DEBUG, logger="pymongo_resilience.retry")
    telemetry = instrument(**case.config)
    coll = side.client(proxy.uri, **case.options)[filled].coll
    side.do(coll.find_one)
    proxy.inject(case.fault())
    with pytest.raises(PyMongoError) as caught:
        case.call(side, coll)
    proxy.clear()
    error: Any = caught.value
    declined = [each for each in telemetry.decisions.events if isinstance(each, RetryDeclined)]
    server = proxy.members[0].host_and_port
    attempts = len(case.reasons) + 1
    tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    # Hardly ever is one made that has ten minutes for its delay.
    if name != "no room for the wait":
        assert (error.attempts, error.retry_reasons) == (attempts, case.reasons)
        if (
            isinstance(error, OperationFailure)
            and attempts == 1
            and not is_explained(case.rule, declined[0].reason)
        ):
            assert server not in str(error)
            assert case.text not in str(error)
        else:
            assert f" ({server}, {tried}; {case.text}" in str(error)
    assert error.retry_rule is case.rule
    # The others are of the abort of a transaction.
    assert declined[0].rule == case.rule
    assert declined[0].why.startswith(case.text)
    if case.rule is not Rule.SELECTION:  # its own error says less than the one before
        assert declined[0].error.startswith(type(error).__name__)
    logged = [each for each in caplog.records if case.text in each.getMessage()]
    is_news = attempts > 1 or is_explained(case.rule, declined[0].reason)
    assert {each.levelno for each in logged} == {logging.WARNING if is_news else logging.DEBUG}
    again: Any = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    for fact in ("retry_rule", "retry_reasons", "server", "attempts"):
        assert getattr(again, fact) == getattr(error, fact)
    assert str(again) == str(error)


def test_what_is_raised_after_the_loop_has_the_reasons_too(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """A bulk write's own error, of a command that was answered at its second attempt."""
    instrument()
    coll = side.client(proxy.uri)[filled].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("insert"))
    with pytest.raises(PyMongoError) as caught:
        side.do(coll.bulk_write, [InsertOne({"_id": 1})])
    error: Any = caught.value
    assert (error.attempts, error.retry_reasons, error.retry_rule) == (2, (CUT,), None)
    assert str(error).endswith(f"({proxy.members[0].host_and_port}, 2 attempts)")
