"""The gauge of connections against the sockets that this process really has to a server."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError
from support.clients import Side, wait_until
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import CutAfter, ReplicaSet, Reset
from pymongo_resilience.testing import set_active

MONITORS = 1
"""A client that polls looks at its one server over one connection."""


def inodes_to(port: int) -> set[str]:
    """Of this process's connections to a port, in whatever state, as Linux lists them."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except OSError:  # closed meanwhile
            continue
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port and f"socket:[{fields[9]}]" in own:
            found.add(fields[9])
    return found


class Scene:
    """A client of one server, whose sockets can be told from all others by their port."""

    def __init__(
        self, side: Side, uri: str, telemetry: Telemetry, database: str, **options: Any
    ) -> None:
        self.side, self.telemetry = side, telemetry
        self.client = side.do(side.client, uri, **options)
        self.coll = self.client[database].coll
        side.do(self.coll.insert_many, [{} for _ in range(5)])
        self.port = side.do(lambda: self.client.address)[1]

    def counted(self) -> dict[str, int]:
        """By state, over all pools there are."""
        counts: Counter[str] = Counter()
        for attributes, point in self.telemetry.points("db.client.connection.count"):
            counts[attributes["db.client.connection.state"]] += point.value
        return dict(counts)

    def sockets(self) -> int:
        return len(inodes_to(self.port)) - MONITORS

    def settles(self, *, working: bool = False, **expected: int) -> None:
        """The gauge comes to say so, and there are as many sockets."""

        def agree() -> bool:
            self.side.turn()  # the driver closes sockets on its loop
            if working:
                self.side.do(self.coll.find_one)
            return self.counted() == expected and self.sockets() == sum(expected.values())

        try:
            wait_until(agree)
        except AssertionError:
            raise AssertionError(f"{self.counted()}, {self.sockets()} sockets") from None

    @contextlib.contextmanager
    def three_in_use(self) -> Iterator[None]:
        """By exhaust cursors, each of which keeps its connection until it is closed."""
        exhaust = pymongo.CursorType.EXHAUST
        cursors = [self.coll.find(cursor_type=exhaust, batch_size=2) for _ in range(3)]
        for cursor in cursors:
            self.side.do(cursor.next)
        try:
            yield
        finally:
            for cursor in cursors:
                self.side.do(cursor.close)


@pytest.fixture
def scene(side: Side, proxy: ReplicaSet, database: str, instrument: Instrument) -> Scene:
    return Scene(side, proxy.uri, instrument(), database)


def test_used_and_idle_ones(scene: Scene) -> None:
    scene.settles(idle=1, used=0)
    with scene.three_in_use():
        scene.settles(idle=0, used=3)
    scene.settles(idle=3, used=0)


def test_after_the_pool_was_cleared(scene: Scene, proxy: ReplicaSet) -> None:
    with scene.three_in_use():
        pass
    proxy.inject(CutAfter("update"))
    with pytest.raises(PyMongoError):
        scene.side.do(scene.coll.update_many, {}, {"$inc": {"n": 1}})
    scene.side.do(scene.coll.find_one)
    scene.settles(idle=1, used=0)


def test_after_connections_in_use_were_reset(scene: Scene, proxy: ReplicaSet) -> None:
    with scene.three_in_use():
        proxy.inject(Reset()).result()
    # The monitor may hear of it last, and clear the pool once more.
    scene.settles(working=True, idle=1, used=0)


def test_after_a_while_in_which_the_library_was_switched_off(scene: Scene) -> None:
    with set_active(False):
        cursor = scene.three_in_use()
        cursor.__enter__()
    scene.settles(idle=0, used=3)
    cursor.__exit__(None, None, None)
    scene.settles(idle=3, used=0)


def test_of_a_closed_client_there_are_none(scene: Scene) -> None:
    scene.side.do(scene.client.close)
    assert scene.counted() == {}
    scene.side.wait_until(lambda: not inodes_to(scene.port))
