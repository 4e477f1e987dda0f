"""Whether a consumer of a change stream loses or doubles changes while its process is killed and
primaries change.

    python bench/change_streams.py mongod=PATH                         1,000 kills, 50 elections
    python bench/change_streams.py mongod=PATH --kills 20 --elections 2

Two consumers follow one collection on a replica set of three mongods, each in a process of its own
that is killed (SIGKILL) at random moments and started again: one with "exactly_once", one with
"at_least_once". Another process writes all the time. In the end, what the handlers have written is
compared with what was written. Then no member accepts connections for a while, and the attempts of
the consumers to open their streams are counted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.synchronous.collection import Collection

from pymongo_resilience import instrument
from pymongo_resilience.streams import ChangeConsumer, CollectionTokens
from pymongo_resilience.testbed import Election, RealReplicaSet, Refuse

DELIVERIES = ("exactly_once", "at_least_once")
NO_PROGRESS = 60
"""Seconds without a change handled after which nothing more is expected."""
OUTAGE = 30.0
"""Seconds without a server at the end."""
ELECTION_ASKED, OUTAGE_ASKED = b"e", b"o"


class Observed(Collection[Any]):
    """A collection that appends a line to a file for each attempt to watch it."""

    attempts: Path

    def watch(self, *args: Any, **options: Any) -> Any:
        with self.attempts.open("a") as file:
            file.write(f"{os.getpid()} {time.monotonic()}\n")
        return super().watch(*args, **options)


def forked(function: Callable[[], None]) -> int:
    """Run a function in a forked process, and return its id.

    This process has no clients and no threads, so the child inherits none.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        function()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def consume(uri: str, delivery: Any, attempts: Path, *, is_patient: bool = True) -> None:
    instrument(**({"timeout_ms": 20_000} if is_patient else {}))
    # Without patience, an attempt fails at once if there is no server. Otherwise it waits for one.
    limit = {} if is_patient else {"serverSelectionTimeoutMS": 100}
    client: MongoClient[Any] = MongoClient(uri, **limit)
    done = client.shop[f"done_{delivery}"]

    def handle(change: Any, session: Any = None) -> None:
        if change["operationType"] == "insert":
            done.insert_one({"of": change["documentKey"]["_id"]}, session=session)

    orders = Observed(client.shop, "orders")
    orders.attempts = attempts
    consumer = ChangeConsumer(
        orders,
        handle,
        name=delivery,
        tokens=CollectionTokens(client.shop.tokens, delivery),
        delivery=delivery,
        max_await_time_ms=200,
    )
    consumer.run()


def write(uri: str, stop_file: Path) -> None:
    instrument(timeout_ms=60_000)
    client: MongoClient[Any] = MongoClient(uri)
    number = 0
    while not stop_file.exists():
        client.shop.orders.insert_one({"_id": number})
        number += 1
        time.sleep(0.1)
    client.close()


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def outcome(client: MongoClient[Any], delivery: str) -> tuple[int, int, int]:
    """Changes that were written, lost and doubled."""
    written = {each["_id"] for each in client.shop.orders.find({}, {"_id": 1})}
    done = Counter(each["of"] for each in client.shop[f"done_{delivery}"].find({}, {"of": 1}))
    lost = len(written - done.keys())
    return len(written), lost, sum(count - 1 for count in done.values())


def prepare(uri: str) -> None:
    instrument(timeout_ms=60_000)
    with MongoClient[Any](uri) as client:
        for name in ("orders", "tokens", *(f"done_{each}" for each in DELIVERIES)):
            client.shop.create_collection(name)
        for each in DELIVERIES:
            # From before the first change on, as a consumer stores it when it starts.
            with client.shop.orders.watch() as stream:
                CollectionTokens(client.shop.tokens, each).save(stream.resume_token)


def serve(server: str, ready: int, asked: int) -> None:
    """Run the deployment, whose threads no other process may inherit. Do what is asked for:
    an election, or an outage."""
    with RealReplicaSet(server, members=3) as replica_set:
        os.write(ready, replica_set.uri.encode())
        while request := os.read(asked, 1):
            replica_set.inject(Refuse(OUTAGE) if request == OUTAGE_ASKED else Election())


def judge(uri: str) -> None:
    """Wait until the consumers have caught up, and print what they have done."""
    with MongoClient[Any](uri) as client:
        missing, end = -1, time.monotonic() + NO_PROGRESS
        while missing and time.monotonic() < end:
            before, missing = missing, sum(outcome(client, each)[1] for each in DELIVERIES)
            if missing != before:
                end = time.monotonic() + NO_PROGRESS
            time.sleep(0.5)
        for each in DELIVERIES:
            written, lost, doubled = outcome(client, each)
            print(f"{each}: {written} changes, {lost} lost, {doubled} doubled")


def intervals(attempts: Path, since: float = 0.0) -> tuple[int, list[float]]:
    """Number of attempts to open a stream, and the seconds between two of one process."""
    of_process: dict[str, list[float]] = {}
    for line in attempts.read_text().splitlines():
        process, at = line.split()
        if float(at) >= since:
            of_process.setdefault(process, []).append(float(at))
    found = [b - a for times in of_process.values() for a, b in pairwise(times)]
    return sum(map(len, of_process.values())), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--elections", type=int, default=50)
    parser.add_argument("--election-every", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)  # noqa: S311 - no secret
    folder = Path(tempfile.mkdtemp())
    stop_file, attempts = folder / "stop", folder / "attempts"
    (reading, ready), (asked, asking) = os.pipe(), os.pipe()
    deployment = forked(lambda: closing_first(asking, serve, arguments.server, ready, asked))
    uri = os.read(reading, 1000).decode()
    os.waitpid(forked(lambda: prepare(uri)), 0)
    writer = forked(lambda: write(uri, stop_file))
    consumers = {each: forked(partial(consume, uri, each, attempts)) for each in DELIVERIES}
    began = time.monotonic()
    kills = elections = 0
    while kills < arguments.kills or elections < arguments.elections:
        time.sleep(dice.uniform(0.02, 0.6))
        if kills < arguments.kills:
            each = dice.choice(DELIVERIES)
            kill(consumers[each])
            consumers[each] = forked(partial(consume, uri, each, attempts))
            kills += 1
        if elections < (time.monotonic() - began) / arguments.election_every:
            os.write(asking, ELECTION_ASKED)
            elections += 1
    print(f"{kills} kills and {elections} elections in {time.monotonic() - began:.0f} s")
    stop_file.touch()
    os.waitpid(writer, 0)
    os.waitpid(forked(lambda: judge(uri)), 0)
    replace_all(consumers, uri, attempts)
    time.sleep(5)  # they open their streams
    os.write(asking, OUTAGE_ASKED)
    began = time.monotonic() + 1
    time.sleep(OUTAGE - 2)
    count, _ = intervals(attempts, began)
    _, found = intervals(attempts)
    print(
        f"{count} attempts of two consumers to open their stream in {OUTAGE - 3:.0f} s without a "
        f"server; at least {min(found):.2f} s between two attempts of one consumer in the whole run"
    )
    for child in consumers.values():
        kill(child)
    os.close(asking)  # the deployment ends
    os.waitpid(deployment, 0)


def replace_all(consumers: dict[str, int], uri: str, attempts: Path) -> None:
    """Start consumers again that do not wait for a server."""
    for each, child in consumers.items():
        if os.waitpid(child, os.WNOHANG)[0]:
            print(f"{each}: the consumer has ended by itself")
        else:
            kill(child)
        consumers[each] = forked(partial(consume, uri, each, attempts, is_patient=False))


def closing_first(descriptor: int, function: Callable[..., None], *arguments: Any) -> None:
    os.close(descriptor)
    function(*arguments)


if __name__ == "__main__":
    main()
