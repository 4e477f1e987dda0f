"""How often one operation passes between pymongo and the library, and through which code.

    python bench/crossings.py            a summary for each operation and API
    python bench/crossings.py --frames   and every frame of the library, in order
    python bench/crossings.py --unused   the frames of features that the application does not use

A crossing is a call from pymongo's code into the library's. A frame is one Python call of the
library's own functions. With a timeout, without an SDK. The operations are healthy, except for the
last one: an update whose reply is lost, so that it is retried on a new connection.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pymongo
from canned import canned_server

import pymongo_resilience
from pymongo_resilience.testbed import CutAfter, ReplicaSet

if TYPE_CHECKING:
    from types import FrameType

DRIVER = tuple(str(Path(each.__file__).parent) for each in (pymongo, bson))
ROOT = Path(pymongo_resilience.__file__).parent.parent
OURS = tuple(
    str(path)
    for path in (
        ROOT / "pymongo_resilience",
        ROOT / "instrumentation" / "pymongo_resilience_instrumentation",
    )
)
WARM_UP = 20
LOST_REPLIES = 10
"""How many are counted. The fewest calls are reported: an update that also has to wait for the
server makes about fifty more.
"""
OPERATIONS: dict[str, Any] = {
    "find_one": lambda coll: coll.find_one({"_id": 1}),
    "insert_one": lambda coll: coll.insert_one({}),
    "update_one": lambda coll: coll.update_one({"_id": 1}, {"$set": {"a": 1}}),
    "aggregate": lambda coll: coll.aggregate([{"$match": {"_id": 1}}]),
    "command": lambda coll: coll.database.command("ping"),
}
INSTRUMENTATION = "instrumentation/pymongo_resilience_instrumentation/"
UNUSED: dict[str, tuple[str, ...]] = {
    "request deadlines": ("pymongo_resilience/deadlines/",),
    "readiness": (
        "pymongo_resilience/ready_states.py", f"{INSTRUMENTATION}public_api/readiness.py",
    ),
    "change streams": (
        "pymongo_resilience/streams.py", "pymongo_resilience/stream_rules.py",
        f"{INSTRUMENTATION}streams/",
    ),
    "resumable finds": (f"{INSTRUMENTATION}features/resumable_finds/",),
    "compatible engines": (
        f"{INSTRUMENTATION}failures/engines.py", f"{INSTRUMENTATION}retries/own_documents.py",
        f"{INSTRUMENTATION}retries/throttled_bulks.py",
    ),
    "query text": (f"{INSTRUMENTATION}telemetry/query_text.py",),
    "command comments": (f"{INSTRUMENTATION}features/command_comments.py",),
}  # fmt: skip
"""Features that are not used in this program, and their files and folders."""


def frames_of(counted: Crossings, feature: str) -> int:
    return sum(each.startswith(UNUSED[feature]) for each in counted.frames)


class Crossings:
    """Counts the calls of one thread while it is a profile function."""

    def __init__(self) -> None:
        self.crossings = 0
        self.frames: list[str] = []
        self._seen: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(OURS):
            return
        if any(frame is each for each in self._seen):
            return  # a coroutine that goes on
        self._seen.append(frame)
        path = Path(frame.f_code.co_filename).relative_to(ROOT)
        self.frames.append(f"{path}:{frame.f_code.co_qualname}")
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(DRIVER):
            self.crossings += 1


def sync_operation(uri: str, operation: Any) -> Crossings:
    counted = Crossings()
    with pymongo.MongoClient(uri) as client:
        for _ in range(WARM_UP):
            operation(client.bench.coll)
        sys.setprofile(counted)
        try:
            operation(client.bench.coll)
        finally:
            sys.setprofile(None)
    return counted


async def async_operation(uri: str, operation: Any) -> Crossings:
    counted = Crossings()
    async with pymongo.AsyncMongoClient(uri) as client:
        for _ in range(WARM_UP):
            await operation(client.bench.coll)
        collection = client.bench.coll
        sys.setprofile(counted)
        try:
            await operation(collection)
        finally:
            sys.setprofile(None)
    return counted


def lost_reply() -> Crossings:
    every: list[Crossings] = []
    with ReplicaSet() as replica_set, pymongo.MongoClient(replica_set.uri) as client:
        update = OPERATIONS["update_one"]
        for _ in range(WARM_UP):
            update(client.bench.coll)
        for _ in range(LOST_REPLIES):
            replica_set.inject(CutAfter("update", times=1))
            counted = Crossings()
            sys.setprofile(counted)
            try:
                update(client.bench.coll)
            finally:
                sys.setprofile(None)
            every.append(counted)
    return min(every, key=lambda each: len(each.frames))


def report(name: str, counted: Crossings, *, with_frames: bool) -> None:
    files = Counter(each.partition(":")[0] for each in counted.frames)
    print(
        f"{name}: {counted.crossings} crossings, {len(counted.frames)} frames in {len(files)} files"
    )
    if with_frames:
        print("".join(f"    {each}\n" for each in counted.frames), end="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", action="store_true", help="print every frame of the library")
    parser.add_argument("--unused", action="store_true", help="print those of unused features")
    given = parser.parse_args()
    pymongo_resilience.instrument(pymongo_resilience.Config(timeout_ms=20_000))
    with canned_server(heartbeats=False) as uri:
        for name, operation in OPERATIONS.items():
            for side in ("sync", "async"):
                if side == "sync":
                    counted = sync_operation(uri, operation)
                else:
                    counted = asyncio.run(async_operation(uri, operation))
                report(f"{name}, {side}", counted, with_frames=given.frames)
                if given.unused:
                    shown = (f"{each}: {frames_of(counted, each)}" for each in UNUSED)
                    print(f"    frames of unused features: {', '.join(shown)}")
    report("update_one with a lost reply, sync", lost_reply(), with_frames=given.frames)


if __name__ == "__main__":
    main()
