"""Pools: their connections are the sockets that there are, their points are compared whole."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from conftest import Instrument, Side, Telemetry, wait_until
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.testbed import CutAfter, ReplicaSet
from pymongo_resilience_instrumentation.testbed.faults import Reset

sys.path.append(str(Path(__file__).parent.parent / "programs"))
from own_sockets import inodes_to

MONITORS = 1
"""A client that polls looks at its one server over one connection."""
COUNT = "db.client.connection.count"
STATE = "db.client.connection.state"
POOL = "db.client.connection.pool.name"


def counted(telemetry: Telemetry) -> dict[str, int]:
    found: dict[str, int] = {}
    for attributes, point in telemetry.points(COUNT):
        found[attributes[STATE]] = found.get(attributes[STATE], 0) + point.value
    return found


def values(telemetry: Telemetry, metric: str) -> list[tuple[dict[str, Any], Any]]:
    return [(attributes, point.value) for attributes, point in telemetry.points(metric)]


@contextlib.contextmanager
def at_once(side: Side, coll: Any, count: int) -> Iterator[None]:
    """So many cursors, each of which holds its connection while the block runs: exhaust ones."""
    exhaust = pymongo.CursorType.EXHAUST
    cursors = [coll.find(cursor_type=exhaust, batch_size=2) for _ in range(count)]
    for cursor in cursors:
        side.do(cursor.next)
    yield
    for cursor in cursors:
        side.documents(cursor)


class Scene:
    """A client of one server, whose sockets can be told from all others by their port."""

    def __init__(self, side: Side, proxy: ReplicaSet, telemetry: Telemetry, database: str) -> None:
        self.side, self.telemetry = side, telemetry
        self.port = proxy.members[0].address[1]
        self.client = side.do(side.client, proxy.uri, maxIdleTimeMS=60_000)
        self.coll = self.client[database].coll
        side.do(self.coll.insert_many, [{} for _ in range(5)])

    def sockets(self) -> int:
        return len(inodes_to(self.port)) - MONITORS

    def wait_for(self, expected: dict[str, int]) -> None:
        """Until the gauge says so and there are as many sockets."""

        def agree() -> bool:
            if self.side.runner is not None:
                self.side.do(asyncio.sleep, 0)  # the driver closes sockets on its loop
            return counted(self.telemetry) == expected and self.sockets() == sum(expected.values())

        try:
            wait_until(agree)
        except AssertionError:
            raise AssertionError(f"{counted(self.telemetry)}, {self.sockets()} sockets") from None


@pytest.fixture
def scene(side: Side, proxy: ReplicaSet, database: str, instrument: Instrument) -> Scene:
    gc.collect()
    return Scene(side, proxy, instrument(), database)


def test_used_and_idle_connections_are_the_sockets_that_there_are(scene: Scene) -> None:
    scene.wait_for({"idle": 1, "used": 0})
    with at_once(scene.side, scene.coll, 3):
        scene.wait_for({"idle": 0, "used": 3})
    scene.wait_for({"idle": 3, "used": 0})


def test_connections_of_a_cleared_pool_are_gone(scene: Scene, proxy: ReplicaSet) -> None:
    with at_once(scene.side, scene.coll, 3):
        pass
    proxy.inject(CutAfter("update"))
    with pytest.raises(PyMongoError):
        scene.side.do(scene.coll.update_many, {}, {"$inc": {"n": 1}})
    scene.side.do(scene.coll.find_one)
    scene.wait_for({"idle": 1, "used": 0})


def test_connections_that_were_reset_are_gone(scene: Scene, proxy: ReplicaSet) -> None:
    with at_once(scene.side, scene.coll, 3):
        proxy.inject(Reset())
        with contextlib.suppress(PyMongoError):
            scene.side.do(scene.coll.find_one)
        raised = []
        scene.side.do(scene.coll.find_one)
    assert raised == []


def test_connections_that_were_idle_for_too_long_are_gone(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    pass
