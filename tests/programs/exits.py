"""Ends in one of the ways in which programs end, with batch processors still to be flushed.

Prints ``end`` and the monotonic clock where its own work is done; then, while the interpreter
exits, the names of the spans and metrics that the SDK exports. Arguments: URI, the way.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Any

import pymongo
from common import client, fail
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.events import Event
from pymongo_resilience.strategies import Failure, RetryAction, RetryState

LONG = 60.0
"""Seconds: longer than any test waits."""


class LongBackoff:
    """Strategy and listener: an operation that failed waits for a minute, and says so."""

    def __init__(self) -> None:
        self.waiting = threading.Event()

    def retry_after(self, operation: RetryState, failure: Failure) -> RetryAction:
        return RetryAction(LONG)

    def on_event(self, event: Event, /) -> None:
        self.waiting.set()


def instrument_with_a_long_back_off() -> threading.Event:
    """The event is set once an operation waits."""
    backoff = LongBackoff()
    instrument(Config(timeout_ms=int(2 * LONG * 1000)), strategy=backoff, listeners=[backoff])
    return backoff.waiting


def an_open_client(uri: str) -> None:
    instrument()
    client(uri).exits.coll.find_one()


def sys_exit_among_threads(uri: str) -> None:
    instrument(Config(timeout_ms=20_000))
    coll = client(uri).exits.coll
    busy = threading.Barrier(5)

    def work(rounds: int) -> None:
        for n in range(rounds):
            coll.find_one()
            if n == 0:
                busy.wait()

    for n in range(4):
        # Two that the interpreter waits for, and two that it does not.
        daemon = n % 2 == 0
        threading.Thread(target=work, args=(10**9 if daemon else 20,), daemon=daemon).start()
    busy.wait()
    end()
    sys.exit(3)


def a_daemon_thread_in_its_back_off(uri: str) -> None:
    waiting = instrument_with_a_long_back_off()
    one = client(uri)
    fail(one, "find", times=1)
    threading.Thread(target=one.exits.coll.find_one, daemon=True).start()
    waiting.wait()


def a_pending_task(uri: str) -> None:
    waiting = instrument_with_a_long_back_off()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # tasks of the driver's are pending too
    loop = asyncio.new_event_loop()

    async def work() -> None:
        # A check that is destroyed while it runs leaves coroutines of pymongo's that were never
        # awaited, with and without this library: there is one after the failure, and no other.
        one = client(uri, pymongo.AsyncMongoClient, heartbeatFrequencyMS=int(LONG * 1000))
        await fail(one, "find", times=1)
        tasks.append(asyncio.create_task(one.exits.coll.find_one()))
        await asyncio.to_thread(waiting.wait)
        await one.admin.command("ping")

    tasks: list[Any] = []
    loop.run_until_complete(work())


def uninstrumented(uri: str) -> None:
    instrument()
    one = client(uri)
    one.exits.coll.find_one()
    uninstrument()
    one.exits.other.find_one()


def end() -> None:
    sys.stdout.write(f"end {time.monotonic()}\n")
    sys.stdout.flush()


def names(data: MetricsData) -> str:
    return "".join(
        f"{metric.name}\n"
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


ways = {
    way.__name__: way
    for way in (
        an_open_client,
        sys_exit_among_threads,
        a_daemon_thread_in_its_back_off,
        a_pending_task,
        uninstrumented,
    )
}

if __name__ == "__main__":
    provider = TracerProvider()
    spans = ConsoleSpanExporter(formatter=lambda span: f"{span.name}\n")
    provider.add_span_processor(BatchSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(formatter=names))
    metrics.set_meter_provider(MeterProvider([reader]))
    ways[sys.argv[2]](sys.argv[1])
    end()
