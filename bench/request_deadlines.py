"""How exactly operations end with their request, and what the middleware costs without a header.

    python bench/request_deadlines.py                     on the emulator
    python bench/request_deadlines.py mongod=PATH         on a replica set of three mongods

Requests with random deadlines run operations while replies are lost, servers hang and primaries
change. Shown are the operations that ended more than 20 ms after their request's deadline. The
lateness of the event loop itself, measured by a task that only sleeps, is shown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

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


class Lateness:
    """How late each operation ended, in seconds after its request's deadline."""

    def __init__(self) -> None:
        self.requests = 0
        self.ended: list[float] = []
        self.expired = 0
        self.loop: list[float] = []

    def show(self, name: str) -> None:
        late = [each for each in self.ended if each > ALLOWED]
        print(
            f"{name}: {self.requests} requests, {len(self.ended)} operations, "
            f"{self.expired} ended by the deadline; {len(late)} later than 20 ms after it, "
            f"the latest {max(self.ended) * 1000:.1f} ms"
        )
        if self.loop:
            print(f"  the event loop itself was up to {max(self.loop) * 1000:.1f} ms late")


def fault(dice: random.Random) -> Any:
    return dice.choice([
        lambda: CutAfter("update", times=5),
        lambda: CutBefore("find", times=5),
        lambda: Slow(0.2),
        lambda: BlackHole(0.5),
        lambda: Election(gap=0.5),
        Reset,
    ])()  # fmt: skip


@contextmanager
def faults(deployment: Any, seed: int) -> Iterator[None]:
    """One after the other, in a thread."""
    dice, stop = random.Random(seed), threading.Event()  # noqa: S311 - no secret

    def run() -> None:
        while not stop.wait(dice.uniform(0.1, 0.5)):
            deployment.inject(fault(dice))
            stop.wait(dice.uniform(0.1, 0.8))
            deployment.clear()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def calls(collection: Any, dice: random.Random) -> list[Any]:
    number = dice.randrange(100)
    operations = [
        lambda: collection.find_one({"_id": number}),
        lambda: collection.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True),
        lambda: collection.insert_one({"n": number}),
        lambda: collection.count_documents({"_id": number}),
    ]
    return [dice.choice(operations) for _ in range(dice.randint(1, MOST_OPERATIONS))]


async def serve_asgi(uri: str, requests: int, seed: int) -> Lateness:
    lateness = Lateness()
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    await client.admin.command("ping")

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        for call in calls(client.shop.bench, scope["dice"]):
            try:
                await call()
            except PyMongoError as error:
                lateness.expired += bool(error.timeout)
            lateness.ended.append(time.monotonic() - scope["ends"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def nothing(*_: Any) -> None: ...

    handle = ASGIMiddleware(app, header=HEADER)

    async def caller(number: int) -> None:
        dice = random.Random(seed * 1000 + number)  # noqa: S311 - no secret
        while lateness.requests < requests:
            lateness.requests += 1
            milliseconds = dice.randint(20, 400)
            scope = {
                "type": "http",
                "headers": [(HEADER.encode(), str(milliseconds).encode())],
                "ends": time.monotonic() + milliseconds / 1000,
                "dice": dice,
            }
            await handle(scope, nothing, nothing)
            await asyncio.sleep(0)

    async def watch_loop() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            lateness.loop.append(time.monotonic() - began - 0.005)

    watching = asyncio.create_task(watch_loop())
    await asyncio.gather(*(caller(number) for number in range(AT_ONCE)))
    watching.cancel()
    await client.close()
    return lateness


def serve_wsgi(uri: str, requests: int, seed: int) -> Lateness:
    lateness = Lateness()
    with MongoClient[Any](uri) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        client.admin.command("ping")

        def app(environ: Any, start_response: Any) -> list[bytes]:
            for call in calls(client.shop.bench, environ["dice"]):
                try:
                    call()
                except PyMongoError as error:
                    lateness.expired += bool(error.timeout)
                lateness.ended.append(time.monotonic() - environ["ends"])
            start_response("200 OK", [])
            return []

        handle = WSGIMiddleware(app, header=HEADER)

        def caller(number: int) -> None:
            dice = random.Random(seed * 1000 + number)  # noqa: S311 - no secret
            while lateness.requests < requests:
                lateness.requests += 1
                milliseconds = dice.randint(20, 400)
                handle(
                    {
                        "HTTP_X_REQUEST_TIMEOUT_MS": str(milliseconds),
                        "ends": time.monotonic() + milliseconds / 1000,
                        "dice": dice,
                    },
                    lambda *_: None,
                )

        list(pool.map(caller, range(AT_ONCE)))
    return lateness


def cost(uri: str, rounds: int = 40, requests: int = 150) -> tuple[float, float]:
    """CPU of this process for a request that sends one find, in microseconds: without the
    middleware, and with it, when there is no header. The median of rounds that alternate."""
    with MongoClient[Any](uri) as client:

        def app(_environ: Any, start_response: Any) -> list[bytes]:
            client.shop.bench.find_one({"_id": 1})
            start_response("200 OK", [])
            return []

        sides = (app, WSGIMiddleware(app, header=HEADER))
        took: tuple[list[float], list[float]] = ([], [])
        environ = {f"HTTP_X_{n}": "value" for n in range(15)}
        for _ in range(rounds):
            for handle, found in zip(sides, took, strict=True):
                began = time.process_time()
                for _ in range(requests):
                    handle(environ, lambda *_: None)
                found.append((time.process_time() - began) / requests * 1e6)
    return statistics.median(took[0]), statistics.median(took[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server", nargs="?")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    half = arguments.requests // 2
    instrument(timeout_ms=20_000)
    if arguments.server:
        deployment: Any = RealReplicaSet(arguments.server, members=3)
    else:
        deployment = ReplicaSet()
    with deployment:
        with faults(deployment, arguments.seed):
            found = asyncio.run(serve_asgi(deployment.uri, half, arguments.seed))
        found.show("ASGI")
        with faults(deployment, arguments.seed):
            found = serve_wsgi(deployment.uri, half, arguments.seed)
        found.show("WSGI")
    uninstrument()
    instrument()
    with EmbeddedServer(arguments.server) as server:
        without, with_it = cost(server.uri)
    print(
        f"without a header: {without:.1f} us of CPU for a request with one find, "
        f"{with_it:.1f} us with the middleware ({(with_it / without - 1) * 100:+.1f} %)"
    )


if __name__ == "__main__":
    main()
