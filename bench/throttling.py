"""How many writes fail on a server without retryable writes that throttles, and how long they take.

    python bench/throttling.py [--quick]

An emulated server executes a number of writes a second and answers the others with Azure Cosmos
DB's code 16500 and its RetryAfterMs. It refuses transaction numbers, so all clients have
``retryWrites=false``. Threads of one client insert documents at a multiple of the server's rate,
each at fixed times, or each as soon as the one before is done. They do so with plain pymongo, with
this library, and with this library and the writes declared idempotent. A row for each: the inserts
that raised an error, the stored documents, the commands for each insert, and the time of the
slowest.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import Config, instrument, override, uninstrument
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from support.engines import RefuseNumbers, RequestUnits  # noqa: E402 - the tests' replies

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 50.0
"""Writes a second that the server executes."""
THREADS = 8
TIMEOUT_MS = 20_000
PLAIN, DECLARED = "plain pymongo", "with the library, declared"
WAYS = (PLAIN, "with the library", DECLARED)


class Writers:
    """The threads of one client, and what came of their inserts."""

    def __init__(self, coll: Any, *, declared: bool) -> None:
        self._coll, self._declared = coll, declared
        self.errors = 0
        self.slowest = 0.0
        self._lock = threading.Lock()

    def run(self, inserts: int, rate: float) -> None:
        begin = time.monotonic()
        threads = [
            threading.Thread(target=self._write, args=(range(first, inserts, THREADS), begin, rate))
            for first in range(THREADS)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _write(self, numbers: range, begin: float, rate: float) -> None:
        for number in numbers:
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
            began = time.monotonic()
            try:
                with override(idempotent=True) if self._declared else nullcontext():
                    self._coll.insert_one({"_id": number})
            except PyMongoError:
                with self._lock:
                    self.errors += 1
            with self._lock:
                self.slowest = max(self.slowest, time.monotonic() - began)


def rows(server: EmbeddedServer, load: float, seconds: float) -> Iterator[str]:
    """A row of Markdown for each way to write."""
    inserts = round(RATE * (1.0 if math.isinf(load) else load) * seconds)
    for way in WAYS:
        if way != PLAIN:
            instrument(Config(timeout_ms=TIMEOUT_MS))
        with ReplicaSet(server.address, members=1) as members:
            client: MongoClient[dict[str, Any]] = MongoClient(members.uri, retryWrites=False)
            coll = client.throttling.documents
            coll.drop()
            members.inject(RefuseNumbers())
            members.inject(units := RequestUnits(RATE, burst=RATE / 5))
            writers = Writers(coll, declared=way == DECLARED)
            writers.run(inserts, RATE * load)
            members.clear()
            stored = coll.count_documents({})
            client.close()
        if way != PLAIN:
            uninstrument()
        sent = (units.injected + stored) / inserts
        shown = "without pauses" if math.isinf(load) else f"{load:g} times"
        yield (
            f"| {shown} | {way} | {writers.errors} of {inserts} | {stored} | {sent:.1f} | "
            f"{writers.slowest:.1f} s |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one load, for half a second")
    quick = parser.parse_args().quick
    # Each error has a line in the log.
    logging.disable()
    print("| load | | inserts with an error | stored | commands per insert | slowest |")
    print("|---|---|---|---|---|---|")
    with EmbeddedServer() as server:
        for load in (1.2,) if quick else (0.8, 1.2, 2.0, math.inf):
            for row in rows(server, load, 0.5 if quick else 5.0):
                print(row, flush=True)


if __name__ == "__main__":
    main()
