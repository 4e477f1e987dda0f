"""How exactly operations end with their request, and what the middleware costs without a header.

    python bench/request_deadlines.py                     on the emulator
    python bench/request_deadlines.py mongod=PATH         on a replica set of three mongods

Requests with random deadlines run operations while replies are lost, servers hang and primaries
change. The deployment and its faults have a process of their own. Shown are the operations that
ended more than 20 ms after their request's deadline: with the middleware, and with plain pymongo,
where each request runs in ``pymongo.timeout``. The two take turns. Beside them, a thread or task
that only sleeps shows how late this process itself is, and why.

Then requests without the header send one find each. One request with the middleware and one without
take turns. The medians of the CPU time of this thread are compared, block by block.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import multiprocessing
import random
import statistics
import threading
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import instrument, uninstrument
from pymongo_resilience.deadlines import ASGIMiddleware, WSGIMiddleware
from pymongo_resilience.testbed import (
    BlackHole,
    CutAfter,
    CutBefore,
    Election,
    EmbeddedServer,
    RealReplicaSet,
    ReplicaSet,
    Reset,
    Slow,
)

HEADER = "x-request-timeout-ms"
ALLOWED = 0.02
"""Seconds."""
AT_ONCE = 8
MOST_OPERATIONS = 4
ROUNDS = 10
"""How often plain pymongo and the middleware take turns."""
NAP = 0.005
"""Seconds that the thread or task sleeps that shows how late the process is."""
PLAIN, OURS = "pymongo.timeout", "middleware"


Nap = tuple[float, float, float]
"""One sleep of the thread or task that shows how late the process is, in seconds: when it woke up,
how late, and the CPU time that the process used in that time. A plain tuple of numbers, because
other objects would make garbage collections longer."""


def nap_since(began: float, cpu: float) -> Nap:
    now = time.monotonic()
    return now, now - began - NAP, time.process_time() - cpu


class Lateness:
    """How late each operation ended, in seconds after its request's deadline."""

    def __init__(self) -> None:
        self.requests = 0
        self.ended: list[tuple[float, float]] = []
        """When, and how late."""
        self.expired = 0
        self.naps: list[Nap] = []

    def end(self, deadline: float) -> None:
        now = time.monotonic()
        self.ended.append((now, now - deadline))

    def show(self, name: str) -> None:
        late = [each for each in self.ended if each[1] > ALLOWED]
        stalls = [self._stall(*each) for each in late]
        causes = Counter(each and self._cause(each) for each in stalls)
        del causes[None]
        shown = ", ".join(f"{count} while {cause}" for cause, count in causes.items())
        print(
            f"{name}: {self.requests} requests, {len(self.ended)} operations, "
            f"{self.expired} ended by the deadline; {len(late)} later than 20 ms after it"
            f"{' (' + shown + ')' if shown else ''}, "
            f"the latest {max(each[1] for each in self.ended) * 1000:.1f} ms"
        )
        overslept = sum(late > ALLOWED for _, late, _ in self.naps)
        print(
            f"  a sleep of 5 ms was more than 20 ms late {overslept} times, "
            f"at most {max(late for _, late, _ in self.naps) * 1000:.1f} ms",
            flush=True,
        )

    def _stall(self, ended_at: float, late: float) -> Nap | None:
        """Return the sleep that was about as late at the same time, or None."""
        at_the_time = [
            each for each in self.naps if each[0] > ended_at - late and each[0] - each[1] < ended_at
        ]
        longest = max(at_the_time, key=lambda each: each[1], default=None)
        return longest if longest is not None and longest[1] > late - ALLOWED else None

    def _cause(self, nap: Nap) -> str:
        woke_at, late, cpu = nap
        if any(woke_at - late - NAP < at <= woke_at and took > late / 2 for at, took in PAUSES):
            return "garbage was collected"
        return "the process computed" if cpu > late / 2 else "the machine did not run the process"


PAUSES: list[tuple[float, float]] = []
"""When garbage collections ended, and how many seconds they took."""


def record_collections() -> None:
    """Record the garbage collections of this process from now on."""
    began = 0.0

    def collect(phase: str, _info: object) -> None:
        nonlocal began
        if phase == "start":
            began = time.monotonic()
        else:
            PAUSES.append((time.monotonic(), time.monotonic() - began))

    gc.callbacks.append(collect)


def fault(dice: random.Random) -> Any:
    return dice.choice([
        lambda: CutAfter("update", times=5),
        lambda: CutBefore("find", times=5),
        lambda: Slow(0.2),
        lambda: BlackHole(0.5),
        lambda: Election(gap=0.5),
        Reset,
    ])()  # fmt: skip


def deploy(server: str | None, seed: int, to_parent: Connection) -> None:
    """Run a deployment and inject one fault after the other, until told to stop."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    with RealReplicaSet(server, members=3) if server else ReplicaSet() as deployment:
        to_parent.send(deployment.uri)
        while not to_parent.poll(dice.uniform(0.1, 0.5)):
            deployment.inject(fault(dice))
            to_parent.poll(dice.uniform(0.1, 0.8))
            deployment.clear()


@contextmanager
def deployed(server: str | None, seed: int) -> Iterator[str]:
    """Yield the URI of a deployment with faults, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=deploy, args=(server, seed, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        process.join()


@contextmanager
def side(name: str) -> Iterator[None]:
    """Plain pymongo, or the library."""
    if name == OURS:
        instrument(timeout_ms=20_000)
    try:
        yield
    finally:
        if name == OURS:
            uninstrument()


def calls(collection: Any, dice: random.Random) -> list[Callable[[], Any]]:
    number = dice.randrange(100)
    operations: list[Callable[[], Any]] = [
        lambda: collection.find_one({"_id": number}),
        lambda: collection.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True),
        lambda: collection.insert_one({"n": number}),
        lambda: collection.count_documents({"_id": number}),
    ]
    return [dice.choice(operations) for _ in range(dice.randint(1, MOST_OPERATIONS))]


async def serve_asgi(uri: str, name: str, requests: int, seed: int, lateness: Lateness) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    await client.aconnect()
    left = iter(range(requests))

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        for call in calls(client.shop.bench, scope["dice"]):
            try:
                await call()
            except PyMongoError as error:
                lateness.expired += bool(error.timeout)
            lateness.end(scope["ends"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ignore(*_: Any) -> None: ...

    handle: Any = ASGIMiddleware(app, header=HEADER) if name == OURS else app

    async def caller(number: int) -> None:
        dice = random.Random(seed * 1000 + number)  # noqa: S311 - no secret
        for _ in left:
            lateness.requests += 1
            milliseconds = dice.randint(20, 400)
            scope = {
                "type": "http",
                "headers": [(HEADER.encode(), str(milliseconds).encode())],
                "ends": time.monotonic() + milliseconds / 1000,
                "dice": dice,
            }
            with nullcontext() if name == OURS else pymongo.timeout(milliseconds / 1000):
                await handle(scope, ignore, ignore)
            await asyncio.sleep(0)

    async def nap() -> None:
        while True:
            began = time.monotonic(), time.process_time()
            await asyncio.sleep(NAP)
            lateness.naps.append(nap_since(*began))

    napping = asyncio.create_task(nap())
    await asyncio.gather(*(caller(number) for number in range(AT_ONCE)))
    napping.cancel()
    await client.close()


def serve_wsgi(uri: str, name: str, requests: int, seed: int, lateness: Lateness) -> None:
    left = iter(range(requests))
    is_over = threading.Event()
    with MongoClient[Any](uri) as client, ThreadPoolExecutor(AT_ONCE + 1) as pool:

        def app(environ: Any, start_response: Any) -> list[bytes]:
            for call in calls(client.shop.bench, environ["dice"]):
                try:
                    call()
                except PyMongoError as error:
                    lateness.expired += bool(error.timeout)
                lateness.end(environ["ends"])
            start_response("200 OK", [])
            return []

        handle: Any = WSGIMiddleware(app, header=HEADER) if name == OURS else app

        def caller(number: int) -> None:
            dice = random.Random(seed * 1000 + number)  # noqa: S311 - no secret
            for _ in left:
                lateness.requests += 1
                milliseconds = dice.randint(20, 400)
                environ = {
                    "HTTP_X_REQUEST_TIMEOUT_MS": str(milliseconds),
                    "ends": time.monotonic() + milliseconds / 1000,
                    "dice": dice,
                }
                with nullcontext() if name == OURS else pymongo.timeout(milliseconds / 1000):
                    handle(environ, lambda *_: None)

        def nap() -> None:
            while not is_over.is_set():
                began = time.monotonic(), time.process_time()
                time.sleep(NAP)
                lateness.naps.append(nap_since(*began))

        napping = pool.submit(nap)
        list(pool.map(caller, range(AT_ONCE)))
        is_over.set()
        napping.result()


def measure_lateness(uri: str, requests: int, seed: int) -> None:
    """Show the lateness of both APIs, and of plain pymongo beside."""
    record_collections()
    for interface in ("ASGI", "WSGI"):
        found = {PLAIN: Lateness(), OURS: Lateness()}
        for turn in range(ROUNDS):
            for name, lateness in found.items():
                # What has been loaded so far is no garbage, and takes 10 to 20 ms to look through.
                gc.collect()
                gc.freeze()
                given = (uri, name, requests // ROUNDS, seed + turn, lateness)
                with side(name):
                    if interface == "ASGI":
                        asyncio.run(serve_asgi(*given))
                    else:
                        serve_wsgi(*given)
        for name, lateness in found.items():
            lateness.show(f"{interface}, {name}")


BLOCK = 500
"""Requests of each kind, whose medians are compared."""
HEADERS = 15
"""Of each request, none of them the one that the middleware reads."""
ENVIRON = {f"HTTP_X_{n}": "value" for n in range(HEADERS)}
SCOPE = {"type": "http", "headers": [(b"x-%d" % n, b"value") for n in range(HEADERS)]}


class Blocks:
    """CPU time of a request without and with the middleware: medians of blocks of requests."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._without: list[float] = []
        self._added: list[float] = []

    def add(self, took: tuple[list[float], list[float]]) -> None:
        without, with_it = map(statistics.median, took)
        self._without.append(without)
        self._added.append((with_it / without - 1) * 100)

    def show(self) -> None:
        added, count = sorted(self._added), len(self._added)
        # The ranks between which the true median lies with a probability of 95 %.
        margin = 1.96 * math.sqrt(count) / 2
        low = added[max(0, math.floor(count / 2 - margin))]
        high = added[min(count - 1, math.ceil(count / 2 + margin))]
        print(
            f"{self._interface} without a header: {statistics.median(self._without) * 1e6:.0f} us "
            f"of CPU for a request with one find; the middleware adds "
            f"{statistics.median(added):+.2f} % (95 % interval {low:+.2f} to {high:+.2f} %, "
            f"{count} blocks of {BLOCK} pairs)",
            flush=True,
        )


def show_cost_alone() -> None:
    """Show how long each middleware takes around an application that does nothing."""

    def wsgi_app(_environ: Any, _start_response: Any) -> list[bytes]:
        return []

    async def asgi_app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    def run(app: Any) -> None:
        with suppress(StopIteration):
            app(SCOPE, None, None).send(None)

    def shortest(call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, number=500, repeat=500)) / 500 * 1e6

    wsgi, asgi = WSGIMiddleware(wsgi_app, header=HEADER), ASGIMiddleware(asgi_app, header=HEADER)
    wsgi_alone = shortest(lambda: wsgi(ENVIRON, print)) - shortest(lambda: wsgi_app(ENVIRON, print))
    asgi_alone = shortest(lambda: run(asgi)) - shortest(lambda: run(asgi_app))
    print(f"the middleware alone: WSGI {wsgi_alone:.2f} us, ASGI {asgi_alone:.2f} us", flush=True)


def cost_wsgi(uri: str, blocks: int) -> Blocks:
    found = Blocks("WSGI")
    with MongoClient[Any](uri) as client:

        def app(_environ: Any, start_response: Any) -> list[bytes]:
            client.shop.bench.find_one({"_id": 1})
            start_response("200 OK", [])
            return []

        handlers: tuple[Any, Any] = (app, WSGIMiddleware(app, header=HEADER))
        for _ in range(blocks):
            took: tuple[list[float], list[float]] = ([], [])
            for number in range(2 * BLOCK):
                began = time.thread_time()
                handlers[number % 2](ENVIRON, lambda *_: None)
                took[number % 2].append(time.thread_time() - began)
            found.add(took)
    return found


async def cost_asgi(uri: str, blocks: int) -> Blocks:
    found = Blocks("ASGI")
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await client.shop.bench.find_one({"_id": 1})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ignore(*_: Any) -> None: ...

    handlers: tuple[Any, Any] = (app, ASGIMiddleware(app, header=HEADER))
    for _ in range(blocks):
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(2 * BLOCK):
            began = time.thread_time()
            await handlers[number % 2](SCOPE, ignore, ignore)
            took[number % 2].append(time.thread_time() - began)
        found.add(took)
    await client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server", nargs="?")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("lateness", "cost"))
    arguments = parser.parse_args()
    # Log lines are made, and not printed.
    logger = logging.getLogger("pymongo_resilience")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    if arguments.only != "cost":
        with deployed(arguments.server, arguments.seed) as uri:
            measure_lateness(uri, arguments.requests // 2, arguments.seed)
    if arguments.only != "lateness":
        show_cost_alone()
        instrument()
        with EmbeddedServer(arguments.server) as server:
            cost_wsgi(server.uri, arguments.blocks).show()
            asyncio.run(cost_asgi(server.uri, arguments.blocks)).show()


if __name__ == "__main__":
    main()
