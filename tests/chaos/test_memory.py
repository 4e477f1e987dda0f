"""Memory is flat: what is left of thousands of operations does not grow with their number.

Two bounds, the same for any number of operations:

- What Python allocated for the library, the driver and OpenTelemetry, as tracemalloc counts it
  after a collection, depends on the moment (a heartbeat in between, an exemplar more, a count that
  became a longer integer). Seen were up to 16 KiB after 700 operations, 14 after 40,000 and 27
  after 200,000; 64 are allowed. So 700 show a leak of 94 bytes each, 200,000 one of a third of a
  byte.
- What the process occupies also grows where allocators fill their arenas unevenly: 5 MiB are
  allowed. In a long run, this shows what tracemalloc cannot see.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import bson
import opentelemetry
import pymongo
import pymongo_resilience_instrumentation
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pymongo.errors import DuplicateKeyError
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.chaos.lengths import OPERATIONS
from support.chaos.residue import OpenSpans
from support.clients import Side, fail_command

import pymongo_resilience
from pymongo_resilience import Config

KIB = 1024
TRACED_BOUND = 64 * KIB
RSS_BOUND = 5 * KIB * KIB
WARM_UP = 200
"""Operations until caches, pools and the SDK's attribute sets are full."""
COLLECT_EVERY = 100
LEAKING = 700
PACKAGES = (pymongo_resilience, pymongo_resilience_instrumentation, pymongo, bson, opentelemetry)
COUNTED = [
    tracemalloc.Filter(inclusive=True, filename_pattern=f"{folder}/*")
    for folder in (*(Path(each.__path__[0]) for each in PACKAGES), Path(__file__).parent)
]


@dataclass(frozen=True)
class Footprint:
    """Bytes: those that Python allocated in the packages above, and all of the process."""

    traced: int
    rss: int

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces(COUNTED)
        status = Path("/proc/self/status").read_text()
        rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return cls(sum(each.size for each in traces.traces), int(rss.split()[1]) * KIB)

    def since(self, earlier: Footprint) -> Footprint:
        return Footprint(self.traced - earlier.traced, self.rss - earlier.rss)

    def check(self) -> None:
        assert self.traced < TRACED_BOUND
        assert self.rss < RSS_BOUND


Step = Callable[[], Any]


def calm(coll: Any) -> list[Step]:
    """Operations that succeed, for a client whose writes carry no transaction number.

    SecantusDB 0.7 remembers 10,000 numbers, and beyond that an update takes it 12 ms of processor
    time instead of one.
    """
    return [
        lambda: coll.find_one({"_id": 1}),
        lambda: coll.update_one({"_id": 1}, {"$inc": {"n": 1}}),
        lambda: coll.find_one({"_id": 2}, {"_id": 1}),
        lambda: coll.insert_one({"_id": "new"}),
        lambda: coll.count_documents({"_id": 3}),
        lambda: coll.delete_one({"_id": "new"}),
        lambda: coll.find({"_id": {"$lt": 3}}, batch_size=2).to_list(),
        lambda: coll.find_one_and_update({"_id": 3}, {"$inc": {"n": 1}}),
        lambda: coll.find_one({"_id": 4}),
    ]


def mixed(coll: Any, once: Any, control: pymongo.MongoClient[Any]) -> Generator[Step]:
    """Without end; of each hundred operations, two are retried and two are refused."""
    overload = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}
    while True:
        for tenth in range(10):
            yield from calm(once)
            if tenth == 2:
                with fail_command(control, "find", errorCode=6, times=1):
                    yield lambda: coll.find_one({"_id": 5})
            elif tenth == 4:
                with fail_command(control, "update", times=1, **overload):
                    yield lambda: coll.update_one({"_id": 5}, {"$inc": {"n": 1}})
            elif tenth in {6, 8}:
                yield lambda: coll.insert_one({"_id": 1})
            else:
                yield lambda: coll.find_one({"_id": 5})


@dataclass
class Load:
    """Runs operations; drops each span once it is counted, and reads the metrics now and then."""

    side: Side
    steps: Iterator[Step] = field(default_factory=lambda: iter(()))
    calm: list[Step] = field(default_factory=list)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    spans: OpenSpans = field(default_factory=OpenSpans)
    decisions: dict[str, int] = field(default_factory=dict)
    done: int = 0
    leak: Step = int

    def run(self, operations: int) -> None:
        self.side.do(self._run if self.side.runner is None else self._run_async, operations)

    def _run(self, operations: int) -> None:
        for step in islice(self.steps, operations):
            with contextlib.suppress(DuplicateKeyError):
                step()
            self._count()

    async def _run_async(self, operations: int) -> None:
        for step in islice(self.steps, operations):
            with contextlib.suppress(DuplicateKeyError):
                await step()
            self._count()
        await _forget_cancelled_timers()

    def _count(self) -> None:
        self.leak()
        self.done += 1
        if self.done % COLLECT_EVERY == 0:
            self.reader.get_metrics_data()

    def on_event(self, event: Any) -> None:
        name = type(event).__name__
        self.decisions[name] = self.decisions.get(name, 0) + 1


async def _forget_cancelled_timers() -> None:
    """The driver sets a timer for each message, and takes it back. The loop keeps up to a hundred
    of these, each with the context it was set in, until more than half of all are such."""
    loop = asyncio.get_running_loop()
    for _ in range(500):
        loop.call_later(3600, int).cancel()
    await asyncio.sleep(0)


MEMORY = "other tests of its process would count as its memory"
pytestmark = pytest.mark.alone(MEMORY)


@pytest.fixture
def load(
    side: Side, server: EmbeddedServer, database: str, control: pymongo.MongoClient[Any]
) -> Iterator[Load]:
    control[database].coll.insert_many([{"_id": i} for i in range(10)])
    made = Load(side)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(made.spans)
    pymongo_resilience.instrument(
        Config(base_backoff_ms=1),
        listeners=[made],
        tracer_provider=provider,
        meter_provider=MeterProvider([made.reader], shutdown_on_exit=False),
    )
    coll = side.do(side.client, server.uri)[database].coll
    once = side.do(side.client, server.uri, retryWrites=False)[database].coll
    made.calm = calm(once)
    made.steps = mixing = mixed(coll, once, control)
    yield made
    tracemalloc.stop()
    mixing.close()
    pymongo_resilience.uninstrument()


def growth(load: Load, operations: int) -> Footprint:
    load.run(WARM_UP)
    tracemalloc.start()
    # By the end of this, all that comes and goes is traced.
    load.run(COLLECT_EVERY)
    before = Footprint.now()
    load.run(operations)
    return Footprint.now().since(before)


def test_memory_is_flat(load: Load, figure: Callable[[str], None]) -> None:
    grown = growth(load, OPERATIONS)
    figure(
        f"memory after {OPERATIONS} operations, {load.side.name}: "
        f"traced {grown.traced:+,} bytes, resident {grown.rss / KIB:+,.0f} KiB"
    )
    grown.check()
    assert list(load.spans) == []
    assert load.spans.ended > OPERATIONS
    retried = OPERATIONS // 50
    assert load.decisions["RetryScheduled"] >= retried
    assert load.decisions["RetryDeclined"] >= retried


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_leak_of_100_bytes_an_operation_is_found(load: Load) -> None:
    leaked: list[bytes] = []
    load.leak = lambda: leaked.append(bytes(100 - sys.getsizeof(b"")))
    grown = growth(load, LEAKING)
    assert 0 < grown.traced - 100 * LEAKING < TRACED_BOUND
    with pytest.raises(AssertionError):
        grown.check()


def test_what_succeeds_leaves_nothing_to_the_garbage_collector(load: Load) -> None:
    """What fails does: in pymongo alone, an error and the frames it passed keep each other."""
    load.steps = cycle(load.calm)
    load.run(50)
    gc.collect()
    gc.disable()
    try:
        load.run(100)
        assert gc.collect() < 100
    finally:
        gc.enable()
