"""A bug in any one function of the library: the application gets what plain pymongo gives.

Each function that a scenario calls is replaced, one after the other, by one that raises. They are
found by running the scenario, so new functions are covered.
"""

from __future__ import annotations

import contextvars
import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from pymongo import InsertOne, UpdateMany
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from support.clients import Side
from support.injected_bugs import Functions, in_order, name_of, recording
from support.known_shortfalls import KNOWN
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import CutAfter, ReplicaSet, Slow

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore:coroutine .* was never awaited:RuntimeWarning",
)
SHORT = {"serverSelectionTimeoutMS": 3_000, "connectTimeoutMS": 3_000, "socketTimeoutMS": 3_000}
SETTLES = 50
MOST = 10
"""Functions whose bugs may reach the application."""
DOCUMENTS = 5
END_OF_BLOCK = "engine.policies.blocks.override.__exit__"
"""The application calls it: a block whose end raises at once has not ended."""
SLOW_S = 2.5
"""How long the server holds back a reply, for an operation that has a deadline."""
LONGEST = 10
"""Seconds after which a scenario hangs."""


def update(side: Side, client: Any, name: str) -> Any:
    return side.do(client[name].coll.update_one, {"_id": 1}, {"$inc": {"n": 1}}).modified_count


def cursor(side: Side, client: Any, name: str) -> Any:
    """One read to its end by batches, one by to_list, one closed before its end."""
    coll = client[name].coll

    def read() -> Any:
        with coll.find({}, batch_size=2) as found:
            documents = list(found)
        closed = coll.find({}, batch_size=2)
        first = next(closed)
        closed.close()
        return documents, coll.find({}, batch_size=2).to_list(), first

    async def read_async() -> Any:
        async with coll.find({}, batch_size=2) as found:
            documents = [each async for each in found]
        closed = coll.find({}, batch_size=2)
        first = await anext(closed)
        await closed.close()
        return documents, await coll.find({}, batch_size=2).to_list(), first

    return side.do(read if side.name == "sync" else read_async)


def transaction(side: Side, client: Any, name: str) -> Any:
    """One by with_transaction, one by hand, one aborted."""
    coll, change = client[name].coll, {"$inc": {"n": 1}}

    def work() -> Any:
        with client.start_session() as session:
            changed = session.with_transaction(
                lambda given: coll.update_one({"_id": 1}, change, session=given).modified_count
            )
            with session.start_transaction():
                coll.update_one({"_id": 2}, change, session=session)
            session.start_transaction()
            coll.update_one({"_id": 3}, change, session=session)
            session.abort_transaction()
        return changed

    async def work_async() -> Any:
        async def callback(given: Any) -> Any:
            return (await coll.update_one({"_id": 1}, change, session=given)).modified_count

        async with client.start_session() as session:
            changed = await session.with_transaction(callback)
            async with await session.start_transaction():
                await coll.update_one({"_id": 2}, change, session=session)
            await session.start_transaction()
            await coll.update_one({"_id": 3}, change, session=session)
            await session.abort_transaction()
        return changed

    return side.do(work if side.name == "sync" else work_async)


def new_client(side: Side, client: Any, name: str) -> Any:
    """The first operation of a client whose construction is part of the scenario."""
    return side.do(client[name].coll.find_one, {"_id": 4})


def atomic_bulk(side: Side, client: Any, name: str) -> Any:
    """A bulk write that fails at its second operation: an atomic one changes nothing."""
    operations = [UpdateMany({"_id": {"$gt": 0}}, {"$inc": {"n": 1}}), InsertOne({"_id": 1})]
    with pymongo_resilience.override(atomic=True):
        return side.do(client[name].coll.bulk_write, operations)


def short_find(side: Side, client: Any, name: str) -> Any:
    with pymongo_resilience.override(timeout_ms=300):
        return side.do(client[name].coll.find_one, {"_id": 4})


def changed_nothing(_bench: Bench, seen: dict[str, str]) -> bool:
    return seen["documents"] == repr([0] * DOCUMENTS)


def ended_early(bench: Bench, _seen: dict[str, str]) -> bool:
    return bench.seconds < SLOW_S / 2


REQUESTED: dict[
    str, tuple[Callable[[Side, Any, str], Any], Callable[[Bench, dict[str, str]], bool]]
] = {
    "atomic": (atomic_bulk, changed_nothing),
    "deadline": (short_find, ended_early),
}
"""What the application asked for, which pymongo does not do, and whether it was done or refused."""
SCENARIOS: dict[str, Callable[[Side, Any, str], Any]] = {
    "healthy": update,
    "lost reply": update,
    "cursor": cursor,
    "transaction": transaction,
    "client": new_client,
}


class OpenSpans(SpanProcessor):
    """The spans that have begun and not ended."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.names[span.context.span_id] = span.name

    def on_end(self, span: Any) -> None:
        self.names.pop(span.context.span_id, None)


class Bench:
    """Runs one scenario; what an application sees of it, as texts."""

    def __init__(self, scenario: str, side: Side, bed: ReplicaSet, name: str, control: Any) -> None:
        self.scenario = scenario
        self.side = side
        self.bed = bed
        self.name = name
        self.coll = control[name].coll
        self.spans = OpenSpans()
        self.plain: dict[str, str] = {}
        self.seconds = 0.0
        """How long the last run took."""
        self.work = REQUESTED[scenario][0] if scenario in REQUESTED else SCENARIOS[scenario]

    def run(self, broken: Callable[[], AbstractContextManager[Any]]) -> dict[str, str]:
        """``broken``: around the calls of the application."""
        self.coll.delete_many({})
        self.coll.insert_many([{"_id": number, "n": 0} for number in range(DOCUMENTS)])
        self.spans.names.clear()
        seen: dict[str, str] = {}
        made: list[Any] = []

        def construct() -> Any:
            cls = pymongo.MongoClient if self.side.name == "sync" else pymongo.AsyncMongoClient
            made.append(cls(self.bed.uri, **SHORT))
            return made[0]

        def work() -> Any:
            if self.scenario == "client":
                with broken():
                    return new_client(self.side, construct(), self.name)
            client = construct()
            self.side.do(client.admin.command, "ping")
            if self.scenario == "lost reply":
                self.bed.inject(CutAfter("update"))
            if self.scenario == "deadline":
                self.bed.inject(Slow(SLOW_S))
            began = time.monotonic()
            try:
                with broken():
                    return self.work(self.side, client, self.name)
            finally:
                self.seconds = time.monotonic() - began

        context = contextvars.copy_context()
        before = dict(context)
        seen["result"] = self._outcome(partial(context.run, work))
        seen["active"] = ", ".join(
            var.name
            for var, value in context.items()
            if value != before.get(var, default_of(var)) and value not in (None, math.inf)
            # The next caller skips a block that has ended.
            if not getattr(value, "ended", False)
        )
        self.bed.clear()
        seen["documents"] = repr([each["n"] for each in self.coll.find().sort("_id")])
        for client in made:
            seen["later"] = self._outcome(partial(self._later, client))
            seen["left"] = self._settled(client)
            with limited():
                self.side.do(client.close)
        return seen

    def _outcome(self, call: Callable[[], Any]) -> str:
        try:
            with limited():
                return repr(call())
        except Exception as error:  # noqa: BLE001 - whatever the application gets
            return f"{type(error).__name__} {getattr(error, 'code', '')}: {error!s:.80}"

    def _later(self, client: Any) -> Any:
        found = self.side.do(client[self.name].coll.find_one, {"_id": 4})
        return found, update(self.side, client, self.name)

    def _settled(self, client: Any) -> str:
        """What is left behind once background tasks have had time to finish."""
        for _ in range(SETTLES):
            left = self._left(client)
            if not left:
                break
            self.side.turn()
            time.sleep(0.01)
        return left

    def _left(self, client: Any) -> str:
        left = sorted(self.spans.names.values())
        runtime = PymongoResilienceInstrumentor()._runtime
        if runtime is not None:
            left += ["an attempt in flight" for _ in runtime.attempts_in_flight()]
        servers = client._topology._servers.values()
        left += ["a connection" for each in servers if each.pool.active_sockets]
        return ", ".join(left)


def default_of(var: contextvars.ContextVar[Any]) -> Any:
    """The value of a variable that nobody has set. pymongo sets RTT to its default."""
    try:
        return contextvars.Context().run(var.get)
    except LookupError:
        return None


@contextmanager
def limited() -> Iterator[None]:
    """Ends what hangs, as a signal handler of the application would."""

    def end(*_: object) -> None:
        raise TimeoutError("the scenario hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def bench(
    scenario: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: pymongo.MongoClient[Any],
    defaults: dict[str, Any],
) -> Iterator[Bench]:
    """With the library; ``bench.plain`` is what the application sees without it."""
    made = Bench(scenario, side, proxy, database, control)
    made.plain = made.run(nullcontext)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(made.spans)
    reader = InMemoryMetricReader()
    pymongo_resilience.instrument(
        **defaults,
        tracer_provider=provider,
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
    )
    yield made
    pymongo_resilience.uninstrument()


def shortfalls(bench: Bench, choose: Callable[[list[CodeType]], list[CodeType]]) -> dict[str, str]:
    """By function, how what the application sees differs from plain pymongo."""
    called: set[CodeType] = set()
    assert bench.run(lambda: recording(called)) == bench.plain
    functions = Functions()
    found = {}
    for code in choose(in_order(called)):
        seen = bench.run(lambda: functions.broken(code))  # noqa: B023 - called at once
        differs = {what: text for what, text in seen.items() if text != bench.plain.get(what)}
        if differs:
            found[name_of(code)] = str(differs)
    return found


def dropped(bench: Bench, choose: Callable[[list[CodeType]], list[CodeType]]) -> dict[str, str]:
    """By function, how a feature that the application asked for was dropped without an error."""
    called: set[CodeType] = set()
    honored = REQUESTED[bench.scenario][1]
    whole = bench.run(lambda: recording(called))
    assert honored(bench, whole)
    functions = Functions()
    found = {}
    for code in choose(in_order(called)):
        if name_of(code) == END_OF_BLOCK:
            continue
        seen = bench.run(lambda: functions.broken(code))  # noqa: B023 - called at once
        after = ("active", "later", "left")
        if not honored(bench, seen) or any(seen[each] != whole[each] for each in after):
            found[name_of(code)] = f"{bench.seconds:.1f} s {seen}"
    return found


def one_each_file(codes: list[CodeType]) -> list[CodeType]:
    """The middle one: a random choice would make failures come and go."""
    files: dict[str, list[CodeType]] = defaultdict(list)
    for code in codes:
        files[code.co_filename].append(code)
    return [each[len(each) // 2] for each in files.values()]


def unexpected(found: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in found.items() if name not in KNOWN}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_bug_in_a_function_of_each_file(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert unexpected(shortfalls(bench, one_each_file)) == {}


@pytest.mark.thorough("each of a thousand functions is broken in turn")
@pytest.mark.each_setup
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_bug_in_any_function(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert unexpected(shortfalls(bench, list)) == {}


@pytest.mark.parametrize("scenario", REQUESTED)
def test_no_bug_drops_what_was_asked_for(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert unexpected(dropped(bench, one_each_file)) == {}


@pytest.mark.thorough("each of hundreds of functions is broken in turn")
@pytest.mark.parametrize("scenario", REQUESTED)
def test_no_bug_at_all_drops_what_was_asked_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert unexpected(dropped(bench, list)) == {}


def test_few_functions_fall_short(instrument: Instrument) -> None:
    """What is renamed or removed leaves the list, too."""
    instrument(timeout_ms=20_000)
    exist = {name_of(code) for code in Functions().all_codes()}
    versions = "timeouts.bounded_waits._kept_while_sending.wrapper"
    assert exist | {versions} >= KNOWN.keys()
    assert len(KNOWN) <= MOST
