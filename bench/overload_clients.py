"""The clients of the benchmark of overload: processes with many clients each, in an open loop.

Operations begin when they are due, however many are still waiting, as visitors do. Their times
count from when they were due.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import ServerListener

from pymongo_resilience import Config, instrument

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OPTIONS = {"maxPoolSize": 50}
OK, REJECTED = "ok", "rejected"
"""How an operation ended, unless it is the name of another error's class."""
OVERLOADED = "SystemOverloadedError"
SOON_S = 1.5
CLOSED_LOOP = 32
THREADS = 1500
"""Of a process with synchronous clients: as many as ever wait there at a time."""


@dataclass(frozen=True)
class Side:
    """How operations are repeated: by the library, by pymongo, or not at all."""

    name: str
    config: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sync: bool = False
    """With ``MongoClient``, and a thread for each operation in progress."""
    ignores_rejected_handshakes: bool = False
    """pymongo without its fault: a rejected handshake does not make a server Unknown."""


@dataclass
class Work:
    """What one process does. Times in seconds from the common start."""

    side: Side
    clients: int
    due: list[float]
    """When operations begin; the first client has the first, and so on in turn."""
    seed: int
    timeout_ms: int | None = None
    closed_loop_s: float = 0.0
    """Instead of what is due: for so long, as many operations as there can be."""
    probe_at: float | None = None
    """When each client sends one more operation, whose duration is measured by itself."""
    uri: str = ""


@dataclass(slots=True)
class Operation:
    """Times in seconds from the start."""

    due: float
    begun: float
    ended: float
    how: str


@dataclass
class Result:
    """What one process has seen."""

    operations: list[Operation]
    busy: float
    """Part of a core."""
    unknown: int
    """How often a server that was known became Unknown to a client."""
    probes: list[Operation]


class Unknown(ServerListener):
    """Counts servers that were known and became Unknown."""

    def __init__(self) -> None:
        self.times = 0

    def opened(self, event: Any) -> None: ...

    def closed(self, event: Any) -> None: ...

    def description_changed(self, event: Any) -> None:
        before, now = event.previous_description, event.new_description
        self.times += before.is_server_type_known and not now.is_server_type_known


def ignore_rejected_handshakes() -> None:
    """Put the missing rule into this process's pymongo."""
    from pymongo.asynchronous import topology as asynchronous
    from pymongo.synchronous import topology as synchronous

    def is_rejection(context: Any) -> bool:
        error = context.error
        labeled = isinstance(error, OperationFailure) and error.has_error_label(OVERLOADED)
        return labeled and not context.completed_handshake

    handle, handle_async = synchronous.Topology.handle_error, asynchronous.Topology.handle_error

    def handle_error(self: Any, address: Any, context: Any) -> None:
        if not is_rejection(context):
            handle(self, address, context)

    async def handle_error_async(self: Any, address: Any, context: Any) -> None:
        if not is_rejection(context):
            await handle_async(self, address, context)

    vars(synchronous)["Topology"].handle_error = handle_error
    vars(asynchronous)["Topology"].handle_error = handle_error_async


def run(
    works: list[Work], begun: Callable[[float], object] = lambda _: None
) -> tuple[float, list[Result]]:
    """Each in a process of its own, all at once; the start (``time.monotonic``), and results.

    ``begun`` is called with the start, shortly before it.
    """
    context = multiprocessing.get_context("forkserver")
    ends = []
    for work in works:
        ours, theirs = context.Pipe()
        process = context.Process(target=_process, args=(work, theirs), daemon=True)
        process.start()
        theirs.close()
        ends.append((process, ours))
    for _, connection in ends:
        connection.recv()
    start = time.monotonic() + SOON_S
    begun(start)
    for _, connection in ends:
        connection.send(start)
    results = [connection.recv() for _, connection in ends]
    for process, _ in ends:
        process.join()
    return start, results


def _process(work: Work, control: Connection) -> None:
    # What is said of each retry is not what is measured here.
    logging.getLogger("pymongo_resilience").disabled = True
    logging.getLogger("pymongo_resilience.retry").disabled = True
    random.seed(work.seed)
    if work.side.ignores_rejected_handshakes:
        ignore_rejected_handshakes()
    if work.side.config is not None:
        instrument(Config(traces=False, metrics=False, **work.side.config))
    control.send(_work_sync(work, control) if work.side.sync else asyncio.run(_work(work, control)))


def _options(work: Work, unknown: Unknown) -> dict[str, Any]:
    configured = work.side.config is not None and "timeout_ms" in work.side.config
    timeout = {} if work.timeout_ms is None or configured else {"timeoutMS": work.timeout_ms}
    return OPTIONS | work.side.options | timeout | {"event_listeners": [unknown]}


async def _work(work: Work, control: Connection) -> Result:
    unknown = Unknown()
    clients: list[Any] = [
        pymongo.AsyncMongoClient(work.uri, **_options(work, unknown)) for _ in range(work.clients)
    ]
    for client in clients:
        while not await _is_connected(client):  # noqa: ASYNC110 - the server's tokens come back
            await asyncio.sleep(SOON_S / 5)
    control.send("connected")
    start = control.recv()
    await asyncio.sleep(start - time.monotonic())
    cpu = time.process_time()
    if work.closed_loop_s:
        operations, probes = await _closed_loop(clients, start, work.closed_loop_s), []
    else:
        operations, probes = await asyncio.gather(
            _open_loop(work, clients, start), _probe(work, clients, start)
        )
    busy = (time.process_time() - cpu) / (time.monotonic() - start)
    for client in clients:
        await client.close()
    return Result(operations, busy, unknown.times, probes)


async def _probe(work: Work, clients: list[Any], start: float) -> list[Operation]:
    if work.probe_at is None:
        return []
    await asyncio.sleep(start + work.probe_at - time.monotonic())
    some = (_operation(each, start, work.probe_at, 0) for each in clients)
    return list(await asyncio.gather(*some))


async def _is_connected(client: Any) -> bool:
    try:
        await client.admin.command("ping")
    except PyMongoError:  # it may be rejected, too
        return False
    return True


def _is_connected_sync(client: Any) -> bool:
    try:
        client.admin.command("ping")
    except PyMongoError:
        return False
    return True


def _work_sync(work: Work, control: Connection) -> Result:
    unknown = Unknown()
    clients: list[Any] = [
        pymongo.MongoClient(work.uri, **_options(work, unknown)) for _ in range(work.clients)
    ]
    for client in clients:
        while not _is_connected_sync(client):
            time.sleep(SOON_S / 5)
    control.send("connected")
    start = control.recv()
    time.sleep(start - time.monotonic())
    cpu = time.process_time()
    running: list[Future[Operation]] = []
    with ThreadPoolExecutor(THREADS) as threads:
        numbered = enumerate(zip(work.due, itertools.cycle(clients), strict=False))
        for number, (due, client) in numbered:
            time.sleep(max(0.0, start + due - time.monotonic()))
            running.append(threads.submit(_operation_sync, client, start, due, number))
        probing: list[Future[Operation]] = []
        if work.probe_at is not None:
            time.sleep(max(0.0, start + work.probe_at - time.monotonic()))
            probing = [
                threads.submit(_operation_sync, each, start, work.probe_at, 0) for each in clients
            ]
        operations, probes = ([each.result() for each in some] for some in (running, probing))
    busy = (time.process_time() - cpu) / (time.monotonic() - start)
    for client in clients:
        client.close()
    return Result(operations, busy, unknown.times, probes)


def _operation_sync(client: Any, start: float, due: float, number: int) -> Operation:
    begun, how = time.monotonic() - start, OK
    coll = client.bench.coll
    try:
        if number % 2:
            coll.update_one({"_id": number}, {"$inc": {"n": 1}})
        else:
            coll.find_one({"_id": number})
    except PyMongoError as error:
        how = _name_of(error)
    return Operation(due, begun, time.monotonic() - start, how)


async def _open_loop(work: Work, clients: list[Any], start: float) -> list[Operation]:
    running = []
    numbered = enumerate(zip(work.due, itertools.cycle(clients), strict=False))
    for number, (due, client) in numbered:
        ahead = start + due - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
        operation = _operation(client, start, due, number)
        running.append(asyncio.create_task(operation))
    return await asyncio.gather(*running)


async def _closed_loop(clients: list[Any], start: float, seconds: float) -> list[Operation]:
    async def one_after_the_other(client: Any) -> list[Operation]:
        done = []
        while (now := time.monotonic() - start) < seconds:
            done.append(await _operation(client, start, now, 0))
        return done

    some = itertools.islice(itertools.cycle(clients), CLOSED_LOOP)
    done = await asyncio.gather(*(one_after_the_other(client) for client in some))
    return [operation for each in done for operation in each]


async def _operation(client: Any, start: float, due: float, number: int) -> Operation:
    begun, how = time.monotonic() - start, OK
    coll = client.bench.coll
    try:
        if number % 2:
            await coll.update_one({"_id": number}, {"$inc": {"n": 1}})
        else:
            await coll.find_one({"_id": number})
    except PyMongoError as error:
        how = _name_of(error)
    return Operation(due, begun, time.monotonic() - start, how)


def _name_of(error: PyMongoError) -> str:
    return REJECTED if isinstance(error, OperationFailure) else type(error).__name__
