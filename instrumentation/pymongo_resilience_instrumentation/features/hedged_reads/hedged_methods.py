"""Wraps the methods that read: decides which reads may be hedged, and sends each try."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.client_registry import ByClient
from pymongo_resilience_instrumentation.cursor_methods import CursorBatch
from pymongo_resilience_instrumentation.interceptor import Function, Sender
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_api.public_methods import PublicMethod
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts.precedence import write_stage

from .hedge_registry import ClientHedges
from .race import FIRST, HEDGE, AsyncRace, Race, Read, Try

METHODS = (
    "aggregate", "aggregate_raw_batches", "count_documents", "distinct", "estimated_document_count",
    "find_one",
)  # fmt: skip
"""Methods of collections. The first batch of ``find`` is hedged when it is fetched."""


def plug_in(runtime: Runtime, _apply_patches: Any) -> None:
    """Add senders to the methods that read, and to the first batch of cursors."""
    if not runtime.owns_retries:
        return
    clock, limits = runtime.executor.clock, runtime.limits
    runtime.hedges = ByClient(lambda client: ClientHedges(clock, limits.of(client)))
    for name in METHODS:
        runtime.senders.setdefault(name, []).append(Sender(of_method, by_policy=True))
    batches = runtime.senders.setdefault(driver.cursors.RUN_OPERATION, [])
    batches.append(Sender(of_batch, by_policy=True))


def _send(
    runtime: Runtime,
    operation: Operation,
    wanted: int,
    unhedged: Callable[[], Any],
    read: Callable[[], Read],
    *,
    asynchronous: bool,
) -> Any:
    hedges = runtime.hedges.of(operation.client)
    delay = hedges.delay(wanted, operation.namespace)
    if delay is None:
        if asynchronous:
            return _observed_async(hedges, operation.namespace, unhedged)
        with _observed(hedges, operation.namespace):
            return unhedged()
    hedges.budget.read()
    workers = hedges.workers(asynchronous=asynchronous)
    # Call ``read`` only now, because a BatchRead takes the cursor's session away.
    race = AsyncRace if asynchronous else Race
    return race(runtime, hedges, operation, read(), workers, delay=delay).run()


@contextmanager
def _observed(hedges: ClientHedges, namespace: str) -> Iterator[None]:
    began = time.perf_counter()
    # A read that fails shows nothing about the latency, so no ``finally``.
    yield
    hedges.observe(namespace, time.perf_counter() - began)


async def _observed_async(hedges: ClientHedges, namespace: str, unhedged: Any) -> Any:
    with _observed(hedges, namespace):
        return await unhedged()


class MethodRead:
    """A read by a method of the public API, which gives each try its own session."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self._send = send

    def send(self, _: Try) -> Any:
        return self._send()

    def adopt(self, tried: Try) -> None: ...

    def discard(self, tried: Try) -> Callable[[], Any] | None:
        is_cursor = isinstance(tried.result, driver.cursors.cursor_classes())
        return tried.result.close if is_cursor else None


def of_method(public: PublicMethod) -> Any:
    """Return a function that sends a reading method, possibly to two servers."""
    runtime = public.runtime

    def may_hedge(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        writes = public.entry.gives and write_stage(args[1:], kwargs)
        is_resumable = operation.hooks is not None
        if operation.session is not None or writes or is_resumable:
            return False
        return driver.selection.may_choose(operation.client, args[0].read_preference)

    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        unhedged = partial(original, *args, **kwargs)
        wanted = operation.call.option(runtime.rules, "hedge")
        if not wanted or not may_hedge(operation, args, kwargs):
            return unhedged()
        read = partial(MethodRead, unhedged)
        return _send(runtime, operation, wanted, unhedged, read, asynchronous=public.asynchronous)

    return send


class BatchRead:
    """The first batch of a cursor.

    While there are two tries, each has its own session. Then the cursor gets the session of the try
    whose batch it uses.
    """

    def __init__(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._original = original
        self._args = args
        self._kwargs = kwargs
        self._client, self._query, method = driver.cursors.run_operation_arguments(args, kwargs)
        self._cursor = method.__self__
        self._sessions = {FIRST: driver.cursors.swap_session(self._cursor, None)}

    def send(self, tried: Try) -> Any:
        args, kwargs = self._args, self._kwargs
        if tried.name == HEDGE:
            query = driver.cursors.with_new_session(self._client, self._query)
            self._sessions[HEDGE] = query.session
            if len(args) > 1:
                args = (args[0], query, *args[2:])
            else:
                kwargs = {**kwargs, "operation": query}
        return self._original(*args, **kwargs)

    def adopt(self, tried: Try) -> None:
        driver.cursors.swap_session(self._cursor, self._sessions.pop(tried.name, None))

    def discard(self, tried: Try) -> Callable[[], Any] | None:
        session = self._sessions.pop(tried.name, None)
        if tried.result is not None:
            # The unused try may have opened a cursor on its server.
            cursor_id, address = driver.cursors.opened_by(tried.result, self._query)
            if cursor_id:
                driver.clients.kill_later(self._client, cursor_id, address)
        return None if session is None else session.end_session


def of_batch(batch: CursorBatch) -> Any:
    """Return a function that sends a cursor's batches, the first one possibly to two servers."""
    runtime = batch.runtime

    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        unhedged = partial(original, *args, **kwargs)
        is_sent_once = operation.name != "find" or operation.hooks is not None
        # A getMore depends on the server of its cursor, and a resumable find changes its cursor.
        wanted = None if is_sent_once else operation.call.option(runtime.rules, "hedge")
        if not wanted:
            return unhedged()
        _, query, method = driver.cursors.run_operation_arguments(args, kwargs)
        if not (
            driver.cursors.may_be_sent_twice(query, method.__self__)
            and driver.selection.may_choose(operation.client, query.read_preference)
        ):
            return unhedged()
        read = partial(BatchRead, original, args, kwargs)
        return _send(runtime, operation, wanted, unhedged, read, asynchronous=batch.asynchronous)

    return send
