"""The retry budget at work: whose it is, how a client asks for one, and what an empty one does."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo_resilience_instrumentation.clients import client_options
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Overload
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer
from support.clients import Side, wait_until
from support.telemetry import Instrument

from pymongo_resilience import status
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules import budget
from pymongo_resilience.rules.budget import CAPACITY, RatioBudget, TokenBucket
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import Interception, ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

AT_ONCE = pytest.mark.alone("all operations have to begin within the grace period of one second")
SPENT = {"retry_budget": "tokens", "retry_token_capacity": 2, "base_backoff_ms": 1}
"""A budget of two retries."""


def decisions(telemetry: Any) -> list[Any]:
    return [
        "again" if isinstance(event, RetryScheduled) else event.rule
        for event in telemetry.decisions.events
    ]


def test_switched_off_there_is_none(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="off", retry_token_capacity=1, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(Overload("find", times=5))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 5


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_by_default_retries_are_in_proportion_to_what_succeeds(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(budget, "GRACE_S", 0.0)
    telemetry = instrument(base_backoff_ms=1, timeout_ms=timeout_ms)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.find_one)
    assert status(client).retry_tokens == 8
    proxy.inject(Overload("find", times=16))
    for _ in range(2):
        with pytest.raises(OperationFailure):
            side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 5 + [Rule.ATTEMPTS, "again", Rule.BUDGET]
    assert status(client).retry_tokens == 0
    proxy.clear()
    for _ in range(10):
        side.do(coll.find_one)
    assert status(client).retry_tokens == 2
    proxy.inject(Overload("find", times=1))
    side.do(coll.find_one)
    assert decisions(telemetry)[8:] == ["again"]
    assert status(client).retry_tokens == 2.2, "pymongo would have had its two retries as well"


class EachRejected(Interception):
    """Rejects the first attempts of each find, which is known by its ``_id``."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts
        self.seen: Counter[int] = Counter()

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name != "find":
            return None
        number = request.body["filter"]["_id"]
        self.seen[number] += 1
        if self.seen[number] > self.attempts:
            return None
        self.injected += 1
        return Answer(Overload().document)


def errors_at_once(side: Side, coll: Any, count: int) -> int:
    """How many of so many finds fail that begin together."""

    def find(number: int) -> bool:
        try:
            coll.find_one({"_id": number})
        except OperationFailure:
            return True
        return False

    async def find_all() -> int:
        finds = (coll.find_one({"_id": number}) for number in range(count))
        results = await asyncio.gather(*finds, return_exceptions=True)
        return sum(isinstance(each, Exception) for each in results)

    if side.runner is not None:
        return int(side.do(find_all))
    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(find, range(count)))


@pytest.mark.each_setup
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("count", [1, pytest.param(40, marks=AT_ONCE)])
def test_a_blip_is_no_error_where_plain_pymongo_has_none(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    count: int, attempts: int, defaults: dict[str, Any],
) -> None:  # fmt: skip
    def play() -> list[int]:
        coll = side.client(proxy.uri, maxPoolSize=10)[database].coll
        side.do(coll.find_one, {"_id": -1})
        errors = []
        for _ in range(2):
            fault = EachRejected(attempts)
            proxy.inject(fault)
            errors.append(errors_at_once(side, coll, count))
            proxy.clear()
            assert fault.struck == count * attempts
        return errors

    assert play() == [0, 0], "plain pymongo"
    instrument(**defaults)
    assert play() == [0, 0]


def test_lost_connections_and_elections_become_no_errors_where_it_is_spent(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=30_000, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    for _ in range(10):
        proxy.inject(CutBefore("find"))
        side.do(coll.find_one)
    telemetry.clear()
    proxy.inject(CutBefore("find", times=3))
    side.do(coll.find_one)
    first, *others = [each.delay for each in telemetry.decisions.events]
    assert first < 0.05
    assert [0.05 <= others[0] <= 0.1, 0.2 <= others[1] <= 0.4] == [True, True]
    assert len(others) == 2
    telemetry.clear()
    proxy.inject(Overload("find", times=2))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 2, "those have an account of their own"


def test_a_collected_client_leaves_nothing(proxy: ReplicaSet, instrument: Instrument) -> None:
    instrument()
    limits = PymongoResilienceInstrumentor()._runtime.limits  # type: ignore[union-attr]
    client: Any = pymongo.MongoClient(proxy.uri, connect=False)
    assert isinstance(limits.of(client).budget, RatioBudget)
    id_ = id(client)
    client.close()
    del client

    def gone() -> bool:
        gc.collect()
        return id_ not in limits

    wait_until(gone)


def test_closing_a_cursor_and_the_client_spends_it_too(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**SPENT)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{"_id": n} for n in range(5)])
    cursor = coll.find(batch_size=2)
    side.do(cursor.__next__ if side.runner is None else cursor.__anext__)
    proxy.inject(Overload("killCursors", times=2))
    side.do(cursor.close)
    proxy.inject(Overload("endSessions", times=1))
    side.do(client.close)
    assert decisions(telemetry) == ["again", "again", "again"]
    assert [event.operation for event in telemetry.decisions.events] == [
        "killCursors",
        "killCursors",
        "endSessions",
    ]


def test_each_client_has_its_own_and_one_that_was_made_before(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    before = side.client(proxy.uri)
    side.do(before.admin.command, "ping")
    telemetry = instrument(**SPENT)
    for client in (before, side.client(proxy.uri)):
        telemetry.clear()
        proxy.inject(Overload("find", times=3))
        with pytest.raises(OperationFailure):
            side.do(client[database].coll.find_one)
        assert decisions(telemetry) == ["again", "again", Rule.BUDGET]
        last = telemetry.operations(f"find {database}.coll")[-1]
        assert last.attributes["pymongo_resilience.outcome"] == "budget"


@pytest.mark.parametrize(
    ("in_uri", "keyword", "everywhere", "has_one"),
    [
        ("adaptiveRetries=True", None, False, True),
        ("ADAPTIVERETRIES=%74rue", None, False, True),
        (None, True, False, True),
        (None, "True", False, True),
        (None, "FALSE", True, False),
        ("adaptiveRetries=false", True, False, True),
        ("adaptiveRetries=true", False, False, False),
        ("adaptiveRetries=false", None, True, False),
        (None, None, True, True),
        (None, None, False, False),
    ],
)
def test_a_client_says_so_itself(
    in_uri: str | None,
    keyword: Any,
    everywhere: bool,
    has_one: bool,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    kind = "tokens" if everywhere else "off"
    telemetry = instrument(retry_budget=kind, retry_token_capacity=1, base_backoff_ms=1)
    uri = proxy.uri if in_uri is None else f"{proxy.uri}&{in_uri}&retryReads=true"
    assert "?" in proxy.uri, "the options below are appended"
    more = {} if keyword is None else {"adaptiveRetries": keyword}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the driver would warn of an option it does not know
        coll = side.client(uri, **more)[database].coll
    proxy.inject(Overload("find", times=2))
    if has_one:
        with pytest.raises(OperationFailure):
            side.do(coll.find_one)
        assert decisions(telemetry) == ["again", Rule.BUDGET]
    else:
        side.do(coll.find_one)
        assert decisions(telemetry) == ["again", "again"]


@pytest.mark.parametrize("value", [1, "yes", None, 0.5, ""])
def test_what_is_no_boolean_is_refused(
    value: Any, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    with pytest.raises(ConfigurationError, match=r"adaptiveRetries=.*: expected True or False"):
        side.client(proxy.uri, adaptiveRetries=value)
    with pytest.raises(ConfigurationError, match=f"={value} in the URI: expected true or false"):
        side.client(f"{proxy.uri}&adaptiveRetries={value}")


def test_the_driver_alone_refuses_it(proxy: ReplicaSet) -> None:
    """The evidence for taking it out: with a driver that knows the option this test fails."""
    with pytest.raises(ConfigurationError, match="adaptiveRetries"):
        pymongo.MongoClient(proxy.uri, adaptiveRetries=True)


@pytest.mark.parametrize(
    ("host", "left", "said"),
    [
        ("mongodb://h", "mongodb://h", None),
        ("mongodb://h/?adaptiveRetries=True", "mongodb://h/", True),
        ("mongodb://h/db?adaptiveretries=false&w=1", "mongodb://h/db?w=1", False),
        ("mongodb://h/?w=1;adaptiveRetries=true;j=true", "mongodb://h/?w=1;j=true", True),
        ("mongodb://h/?maxAdaptiveRetries=3", "mongodb://h/?maxAdaptiveRetries=3", None),
        ("mongodb://adaptiveRetries:x@h/?w=1", "mongodb://adaptiveRetries:x@h/?w=1", None),
        (
            "mongodb+srv://u:p%3F@h.example/?authSource=a%26b&adaptiveRetries=true",
            "mongodb+srv://u:p%3F@h.example/?authSource=a%26b",
            True,
        ),
        (["h", "mongodb://i/?adaptiveRetries=true"], ["h", "mongodb://i/"], True),
        (None, None, None),
        (b"h", b"h", None),
    ],
    ids=lambda each: str(each)[:28],
)
def test_only_ours_is_taken_out(host: Any, left: Any, said: bool | None) -> None:
    assert client_options.take((host,), {"w": 1}) == (((left,), {"w": 1}), said)
    assert client_options.take((), {"host": host}) == (((), {"host": left}), said)


@pytest.mark.parametrize("own", [0, 7])
def test_a_clients_own_number_of_retries_wins(
    own: int, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri, maxAdaptiveRetries=own)[database].coll
    proxy.inject(Overload("find", times=50))
    with pytest.raises(OperationFailure):
        side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * own + [Rule.ATTEMPTS]


def test_many_threads_spend_it_once(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """As many retries as there were tokens, however many threads want one."""
    telemetry = instrument(retry_budget="tokens", retry_token_capacity=20, base_backoff_ms=1)
    with pymongo.MongoClient(proxy.uri) as client:
        client.admin.command("ping")
        proxy.inject(Overload("find", times=10_000))

        def fails(_: int) -> bool:
            try:
                client[database].coll.find_one()
            except OperationFailure:
                return True
            return False

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(fails, range(60)))
        proxy.clear()
    made = decisions(telemetry)
    assert (made.count("again"), len(made)) == (20, 20 + 60)


def test_a_child_has_it_full_and_unlocked(proxy: ReplicaSet, instrument: Instrument) -> None:
    """Also the one that a call in progress holds."""
    instrument(retry_budget="tokens")
    limits = PymongoResilienceInstrumentor()._runtime.limits  # type: ignore[union-attr]
    with pymongo.MongoClient(proxy.uri) as client:
        mine = limits.of(client).budget
        assert isinstance(mine, TokenBucket)
        assert mine.consume(3)
        mine._lock.acquire()  # as another thread of the parent's may have at the fork
        limits.reset_after_fork()
        assert limits.of(client).budget is mine
        assert mine.tokens == CAPACITY
        assert mine.consume()


def test_switched_off_the_option_keeps_no_client_from_being_made(
    proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    with set_active(False), pymongo.MongoClient(proxy.uri, adaptiveRetries=True) as client:
        client.admin.command("ping")
