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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience import Config, instrument, status

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OPTIONS = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 60_000, "maxPoolSize": 50}
OK, REJECTED = "ok", "rejected"
"""How an operation ended, unless it is the name of another error's class."""
SOON_S = 0.3
CLOSED_LOOP = 32


@dataclass(frozen=True)
class Side:
    """How operations are repeated: by the library, by pymongo, or by a loop around the call."""

    name: str
    config: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1


@dataclass
class Work:
    """What one process does. Times in seconds from the common start."""

    side: Side
    clients: int
    due: list[float]
    """When operations begin; the first client has the first, and so on in turn."""
    seed: int
    timeout_ms: int | None = None
    look_at: float = 0.0
    """When the tokens that are left are counted."""
    closed_loop_s: float = 0.0
    """Instead of what is due: for so long, as many operations as there can be."""
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
    tokens: list[float]
    """What the clients with a budget had left."""
    busy: float
    """Part of a core."""


def run(works: list[Work]) -> tuple[float, list[Result]]:
    """Each in a process of its own, all at once; the start (``time.monotonic``), and results."""
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
    if work.side.config is not None:
        instrument(Config(traces=False, metrics=False, **work.side.config))
    control.send(asyncio.run(_work(work, control)))


async def _work(work: Work, control: Connection) -> Result:
    options = OPTIONS | work.side.options
    if work.timeout_ms is not None:
        options["timeoutMS"] = work.timeout_ms
    clients: list[Any] = [
        pymongo.AsyncMongoClient(work.uri, **options) for _ in range(work.clients)
    ]
    for client in clients:
        await client.admin.command("ping")
    control.send("connected")
    start = control.recv()
    await asyncio.sleep(start - time.monotonic())
    cpu = time.process_time()
    tokens: list[float] = []
    # Without the library, to ask would import it in the middle of what is measured.
    if work.side.config is not None:
        loop = asyncio.get_running_loop()
        loop.call_at(start + work.look_at, lambda: tokens.extend(_left(clients)))
    if work.closed_loop_s:
        operations = await _closed_loop(clients, start, work.closed_loop_s)
    else:
        operations = await _open_loop(work, clients, start)
    busy = (time.process_time() - cpu) / (time.monotonic() - start)
    for client in clients:
        await client.close()
    return Result(operations, tokens, busy)


def _left(clients: list[Any]) -> list[float]:
    found = [status(client).retry_tokens for client in clients]
    return [each for each in found if each is not None]


async def _open_loop(work: Work, clients: list[Any], start: float) -> list[Operation]:
    running = []
    for due, client in zip(work.due, itertools.cycle(clients), strict=False):
        ahead = start + due - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
        operation = _operation(client, start, due, work.side.attempts)
        running.append(asyncio.create_task(operation))
    return await asyncio.gather(*running)


async def _closed_loop(clients: list[Any], start: float, seconds: float) -> list[Operation]:
    async def one_after_the_other(client: Any) -> list[Operation]:
        done = []
        while (now := time.monotonic() - start) < seconds:
            done.append(await _operation(client, start, now, 1))
        return done

    some = itertools.islice(itertools.cycle(clients), CLOSED_LOOP)
    done = await asyncio.gather(*(one_after_the_other(client) for client in some))
    return [operation for each in done for operation in each]


async def _operation(client: Any, start: float, due: float, attempts: int) -> Operation:
    begun = time.monotonic() - start
    for attempt in range(1, attempts + 1):
        try:
            await client.bench.coll.find_one({"_id": 1})
        except OperationFailure as error:
            if error.has_error_label("RetryableError") and attempt < attempts:
                continue
            how = REJECTED
        except PyMongoError as error:
            how = type(error).__name__
        else:
            how = OK
        break
    return Operation(due, begun, time.monotonic() - start, how)
