"""CPU of find_one in the setups of the README, beside plain pymongo and contrib, in one run.

    python bench/healthy.py [--side async] [--at-once 8] [--servers 3] [--bursts 60] [--json FILE]

A process for each setup, a server of canned replies on another core, bursts in turn; what counts
is the lower quartile of CPU per operation, and ratios within the run. "contrib" is
opentelemetry-instrumentation-pymongo: one span, no metric. "By hand" is one span and one record
through OpenTelemetry's public API. Needs a C compiler, and the extra ``dev``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from canned import canned_server, cores
from markdown import table

TIMEOUT_MS = 20_000
NO_SDK, OFF, ON, ON_START = "no SDK", "sampled out", "SDK on", "SDK on, processor on start"
PLAIN, CONTRIB, BY_HAND, OURS = "plain pymongo", "contrib", "by hand", "ours"
TIMED = f"{PLAIN}, timeoutMS"
EMPTY = f"{TIMED}, empty wrappers"
"""The floor of what wraps with wrapt where the library does: none of its wrappers does anything."""
WRAPPED = (
    ("collection", "{A}Collection.find_one"), ("cursor", "{A}Cursor.__init__"),
    ("cursor", "{A}Cursor.close"), ("mongo_client", "{A}MongoClient._run_operation"),
    ("pool", "{A}Connection.apply_timeout"), ("pool", "{a}receive_message"),
)  # fmt: skip
EXECUTOR = f"{OURS}, traces and metrics off"
SETUPS = (
    PLAIN,
    f"{PLAIN} again",
    TIMED,
    EMPTY,
    *(f"{CONTRIB}, {sdk}" for sdk in (NO_SDK, OFF, ON)),
    *(f"{BY_HAND}, {sdk}" for sdk in (ON, ON_START)),
    EXECUTOR,
    *(f"{OURS}, {sdk}" for sdk in (NO_SDK, OFF, ON, ON_START)),
    f"{EXECUTOR}, timeout",
    *(f"{OURS}, {sdk}, timeout" for sdk in (NO_SDK, OFF, ON, ON_START)),
)
"""``timeout``: ``timeout_ms=20_000``, as the README has it."""
SIDES = ("sync", "async")
OPERATIONS = 100
BURSTS = 60
PACKAGES = ("pymongo", "opentelemetry-api", "opentelemetry-sdk", "wrapt")
Section = dict[str, Any]


def prepare(setup: str) -> None:
    """Make this process what ``setup`` says."""
    logging.disable(logging.WARNING)
    if OFF in setup or ON in setup:
        _set_up_sdk(sampled=OFF not in setup, on_start=ON_START in setup)
    if setup.startswith(CONTRIB):
        from opentelemetry.instrumentation.pymongo import PymongoInstrumentor

        PymongoInstrumentor().instrument()
    elif setup == EMPTY:
        from wrapt import wrap_function_wrapper

        for module, name in WRAPPED:
            own, awaited = name.format(A="", a=""), name.format(A="Async", a="async_")
            wrap_function_wrapper(f"pymongo.synchronous.{module}", own, _pass_through)
            wrap_function_wrapper(f"pymongo.asynchronous.{module}", awaited, _pass_through)
    elif setup.startswith(OURS):
        from pymongo_resilience import Config, instrument

        shown = not setup.startswith(EXECUTOR)
        timeout_ms = TIMEOUT_MS if setup.endswith(", timeout") else None
        instrument(Config(timeout_ms=timeout_ms, traces=shown, metrics=shown))


def _pass_through(original: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _set_up_sdk(*, sampled: bool, on_start: bool) -> None:
    """Spans are exported in batches to nowhere; metrics wait for who collects them."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import DEFAULT_OFF, DEFAULT_ON

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002 - of the interface
            return SpanExportResult.SUCCESS

    class OnStart(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002 - as above
            span.set_attribute("user.id", "1")

    provider = TracerProvider(sampler=DEFAULT_ON if sampled else DEFAULT_OFF)
    if on_start:
        provider.add_span_processor(OnStart())
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


class Work:
    """One client, and so many threads or tasks that share a burst."""

    def __init__(self, setup: str, uri: str, side: str, at_once: int) -> None:
        from pymongo import AsyncMongoClient, MongoClient

        kind: Any = MongoClient if side == SIDES[0] else AsyncMongoClient
        options: dict[str, Any] = {"timeoutMS": TIMEOUT_MS} if setup.startswith(TIMED) else {}
        self._at_once = at_once
        self._loop = None if side == SIDES[0] else asyncio.new_event_loop()
        if setup.startswith(BY_HAND):
            import by_hand

            options["event_listeners"] = [by_hand.Commands()]
        collection = kind(uri, **options).bench.coll
        self._find_one: Callable[..., Any] = collection.find_one
        if setup.startswith(BY_HAND):
            self._find_one = by_hand.wrapped(collection)

    def burst(self, count: int) -> None:
        share = count // self._at_once
        if self._loop is not None:
            self._loop.run_until_complete(self._tasks(share))
        elif self._at_once == 1:
            self._share(share)
        else:
            threads = [
                threading.Thread(target=self._share, args=(share,)) for _ in range(self._at_once)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _share(self, count: int) -> None:
        for _ in range(count):
            self._find_one({"_id": 1})

    async def _tasks(self, count: int) -> None:
        await asyncio.gather(*(self._async_share(count) for _ in range(self._at_once)))

    async def _async_share(self, count: int) -> None:
        for _ in range(count):
            await self._find_one({"_id": 1})


def work(setup: str, uri: str, side: str, at_once: int) -> None:
    """One process: for each number of operations on stdin, prints the CPU seconds they took."""
    os.sched_setaffinity(0, {cores()[0]})
    prepare(setup)
    mine = Work(setup, uri, side, at_once)
    mine.burst(2 * max(OPERATIONS, at_once))
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.process_time()
        mine.burst(int(line))
        print(time.process_time() - began, flush=True)
    os._exit(0)


@contextmanager
def workers(
    setups: tuple[str, ...], uri: str, side: str, at_once: int
) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        begun = [
            stack.enter_context(
                subprocess.Popen(  # noqa: S603 - this file
                    [sys.executable, __file__, "--work", each, uri, side, str(at_once)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for each in setups
        ]
        for each in begun:
            if answer_of(each) != "ready":
                raise RuntimeError("a worker of the benchmark did not begin; see its error above")
        yield begun


def answer_of(worker: subprocess.Popen[str]) -> str:
    return "" if worker.stdout is None else worker.stdout.readline().strip()


def healthy(
    *,
    side: str = SIDES[0],
    at_once: int = 1,
    servers: int = 1,
    bursts: int = BURSTS,
    setups: tuple[str, ...] = SETUPS,
    quick: bool = False,
) -> Section:
    """The rows: microseconds of CPU by setup. ``quick``: too few bursts to tell anything."""
    count = -(-OPERATIONS // at_once) * at_once
    costs: dict[str, list[float]] = {each: [] for each in setups}
    with (
        canned_server(servers, heartbeats=False) as uri,
        workers(setups, uri, side, at_once) as begun,
    ):
        for _ in range(2 if quick else bursts):
            for setup, worker in zip(setups, begun, strict=True):
                if worker.stdin is not None:
                    worker.stdin.write(f"{count}\n")
                    worker.stdin.flush()
                costs[setup].append(1e6 * float(answer_of(worker)) / count)
    return {
        "side": side,
        "at_once": at_once,
        "servers": servers,
        "rows": [
            {"setup": each, "us": statistics.quantiles(costs[each], n=4)[0]} for each in costs
        ],
    }


def compared(found: Section) -> list[list[str]]:
    """Each row with what it adds to plain pymongo, as a ratio to that, and of contrib's."""
    us = {row["setup"]: row["us"] for row in found["rows"]}
    plain = us[PLAIN]
    made = []
    for setup, cost in us.items():
        _, *sdk = setup.removesuffix(", timeout").split(", ")
        contrib = us.get(f"{CONTRIB}, {sdk[0]}") if sdk else None
        of_contrib = f"{(cost - plain) / (contrib - plain):.2f}" if contrib else ""
        made.append(
            [setup, f"{cost:.0f}", f"{cost - plain:+.0f}", f"{cost / plain:.2f}", of_contrib]
        )
    return made


def shown(found: Section) -> str:
    headings = [
        "find_one",
        "CPU in us",
        "added",
        "ratio to plain pymongo",
        "added, ratio to contrib",
    ]
    return table(headings, compared(found))


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    return {"python": python_version()} | {name: version(name) for name in packages}


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        setup, uri, side, at_once = sys.argv[2:]
        work(setup, uri, side, int(at_once))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", choices=SIDES, default=SIDES[0], help="of pymongo's two APIs")
    parser.add_argument("--at-once", type=int, default=1, help="threads, or tasks")
    parser.add_argument("--servers", type=int, default=1, help="members of the replica set")
    parser.add_argument("--bursts", type=int, default=BURSTS, help=f"of {OPERATIONS} operations")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = healthy(
        side=given.side, at_once=given.at_once, servers=given.servers, bursts=given.bursts
    )
    print(shown(found))
    if given.json is not None:
        given.json.write_text(json.dumps({"versions": versions(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
