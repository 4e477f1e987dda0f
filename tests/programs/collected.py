"""Collects what has not ended inside of ``ContextVar.set``, as CPython 3.11 does: its collector
runs in allocations. A span processor sets context variables, as any that exports does.

What is collected: ``sessions`` with an open transaction, or ``coroutines`` that wait for a reply.
Arguments: URI, database, what is collected.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pymongo
from common import client, say
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

import pymongo_resilience

THRESHOLD = (12, 1000, 1000)
ALLOCATIONS = range(8)
"""Of one ``ContextVar.set``, each of which is made the one that the collector runs in."""
VARIABLES = [ContextVar[Any](f"variable_{n}", default=None) for n in range(40)]


class Setting(SpanProcessor):
    def __init__(self) -> None:
        self.collects: int | None = None
        """The thread that collects just now."""
        self.meanwhile = self.ended = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None:
        self.ended += 1
        self.meanwhile += self.collects == threading.get_ident()
        for variable in VARIABLES:
            variable.set(object())


def collect_inside_of_set(make: Callable[[], object], setting: Setting) -> None:
    """Of what ``make`` leaves behind, in every allocation of a ``ContextVar.set``."""
    for allocation in ALLOCATIONS:
        for variable in VARIABLES:
            gc.disable()
            make()
            gc.set_threshold(gc.get_count()[0] + allocation, *THRESHOLD[1:])
            gc.enable()
            setting.collects = threading.get_ident()
            variable.set(allocation)
            gc.collect(0)
            setting.collects = None
    gc.set_threshold(*THRESHOLD)


class Cycle:
    def __init__(self, held: object) -> None:
        self.held = held
        self.itself = self


def sessions(uri: str, setting: Setting) -> int:
    with client(uri) as ours:

        def open_transaction() -> None:
            session = ours.start_session()
            session.start_transaction()
            Cycle(session)

        collect_inside_of_set(open_transaction, setting)
        ours.admin.command("ping")
    return len(ALLOCATIONS) * len(VARIABLES)


async def coroutines(uri: str, setting: Setting, database: str) -> int:
    begun: list[Coroutine[Any, Any, Any]] = []
    # pymongo's own cleanup fails in coroutines that are collected.
    sys.unraisablehook = lambda _: None
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with client(uri, pymongo.AsyncMongoClient, maxPoolSize=None) as ours:
        await ours.admin.command("ping")

        async def begin() -> None:
            operation = ours[database].coll.find_one()
            operation.send(None)
            begun.append(operation)

        # Each in a context of its own, as the task has that it would be part of.
        await asyncio.gather(*(begin() for _ in ALLOCATIONS for _ in VARIABLES))
        count = len(begun)
        collect_inside_of_set(lambda: Cycle(begun.pop()), setting)
        await ours.admin.command("ping")
    return count


def main(uri: str, database: str, what: str) -> None:
    faulthandler.enable()
    setting = Setting()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(setting)
    pymongo_resilience.instrument(tracer_provider=provider)
    gc.set_threshold(*THRESHOLD)
    if what == "sessions":
        made = sessions(uri, setting)
    else:
        made = asyncio.run(coroutines(uri, setting, database))
    say({"made": made, "meanwhile": setting.meanwhile, "ended": setting.ended >= made})


if __name__ == "__main__":
    main(*sys.argv[1:])
