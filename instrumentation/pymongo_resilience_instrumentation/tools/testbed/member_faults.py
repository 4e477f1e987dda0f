"""Faults of the network and of members: connections cut, elections, restarts, clocks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final

from .deployment import Deployment
from .fault import (
    HELLO_COMMANDS,
    Cut,
    Delay,
    Fault,
    Hang,
    Interception,
    Verdict,
    is_finite,
    not_negative,
    positive,
    refused,
    whole,
)
from .member import Member
from .real_members import RealReplicaSet
from .relay import Connection
from .replica_set import ReplicaSet
from .wire import Document, Message

_YEARS: Final = 10 * 365 * 86_400


class CutAtHandshake(Interception):
    """Cuts new connections at their first hello: the application's, as far as that can be known.

    At its first hello a monitor's connection looks like any other. But a monitor keeps its
    connection open: while one is open, a new connection is taken for the application's; while none
    is, for the monitor's, and let through. The second connection of a streaming monitor, which
    measures round trips, is cut like the application's: it counts, and does no harm.
    """

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = whole("times", times)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        first = connection.hellos == 0 and connection.commands == 0
        if not first or request.command_name not in HELLO_COMMANDS:
            return None
        if not any(sibling.is_monitor for sibling in connection.siblings):
            return None
        self.injected += 1
        return Cut()


class Refuse(Fault):
    """Resets all connections, monitors' too, and has new ones refused for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = positive("seconds", seconds)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        try:
            for member in targets:
                member.refuse(self)
                member.reset()
                self.injected += 1
            await asyncio.sleep(self._seconds)
        finally:
            await deployment.bring_up(targets, self)


class PoolClearingStorm(Fault):
    """Resets every connection again and again, so that clients clear their pools each time.

    :param times: how often.
    :param every: seconds between two resets.
    """

    def __init__(self, times: int = 5, every: float = 0.1) -> None:
        super().__init__()
        self._times = whole("times", times)
        self._every = positive("every", every)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        for turn in range(self._times):
            if turn:
                await asyncio.sleep(self._every)
            for member in targets:
                member.reset()
                self.injected += 1


class Reset(PoolClearingStorm):
    """Resets every open connection once, monitors' too, whatever is under way on it."""

    def __init__(self) -> None:
        super().__init__(times=1)


class BlackHole(Interception):
    """Swallows every request and hello for so many seconds; then their connections are closed.

    Nothing that was dropped is ever executed. New connections are accepted, and get no answer. A
    client that awaits a hello does not learn of a change either.
    """

    parts_members: ClassVar[bool] = True

    def __init__(self, seconds: float) -> None:
        super().__init__(positive("seconds", seconds))

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        self.injected += 1
        return Hang(max(0.0, self.until - time.monotonic()))


class Latency(Interception):
    """Delays every reply, hellos too, until the deployment is cleared.

    :param seconds: the least delay.
    :param jitter: how much is added at most (seconds), evenly distributed.
    :param seed: the random seed of the jitter.
    """

    parts_members: ClassVar[bool] = True

    def __init__(self, seconds: float, jitter: float = 0.0, *, seed: int = 0) -> None:
        super().__init__()
        self._seconds = positive("seconds", seconds)
        self._jitter = not_negative("jitter", jitter)
        self._random = random.Random(whole("seed", seed, least=0))  # noqa: S311 (random faults, not secrets)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        self.injected += 1
        return Delay(self._seconds + self._random.random() * self._jitter)


class Election(Fault):
    """The primary steps down; after a gap without any, the next member is elected.

    In the gap writes, and reads that ask for the primary, are refused as secondaries refuse them.
    Open transactions are aborted. Connections stay. A set of one member elects itself.

    :param gap: seconds without a primary.
    """

    def __init__(self, gap: float = 1.0) -> None:
        super().__init__()
        self._gap = positive("gap", gap)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        replica_set = _replica_set(deployment, self)
        try:
            self.injected += 1
            await replica_set.step_down(self)
            await asyncio.sleep(self._gap)
        finally:
            replica_set.end_gap(self)


class SilentPrimary(BlackHole):
    """The primary answers nothing for so many seconds; another member is elected meanwhile.

    What it is sent is never executed, and never answered.

    :param seconds: for how long it is silent; then its connections are closed.
    :param gap: seconds until another member is elected.
    """

    def __init__(self, seconds: float, gap: float = 0.5) -> None:
        super().__init__(seconds)
        self._gap = positive("gap", gap)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        replica_set = _replica_set(deployment, self)
        primary = replica_set.primary
        if isinstance(replica_set, RealReplicaSet) and primary is not None:
            self.injected += 1
            await replica_set.silence(primary, self._lasts)
            return

        async def elect() -> None:
            await asyncio.sleep(self._gap)
            await replica_set.step_down(self)
            replica_set.end_gap(self)

        electing = asyncio.ensure_future(elect())
        try:
            await super().strike(deployment, () if primary is None else (primary,))
            await electing
        finally:
            electing.cancel()
            replica_set.end_gap(self)


class Restart(Fault):
    """Members stop as processes do, and are back after a while; a primary is replaced meanwhile.

    Connections are reset and new ones refused; cursors and the topology version are lost. A
    primary steps down with it, and after the gap the next member that is up is elected. Open
    transactions are aborted, unless only secondaries restart; where routers do, those of the
    other routers too.

    :param downtime: seconds until the members are back.
    :param gap: seconds without a primary, when one of the members was it.
    :param orderly: processes of a real set are asked to end, and not killed.
    """

    def __init__(self, downtime: float = 0.5, gap: float = 0.2, *, orderly: bool = False) -> None:
        super().__init__()
        self._orderly = orderly
        self._downtime = positive("downtime", downtime)
        self._gap = positive("gap", gap)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        replica_set = deployment if isinstance(deployment, ReplicaSet) else None

        async def back() -> None:
            await asyncio.sleep(self._downtime)
            await deployment.bring_up(targets, self)

        async def replaced() -> None:
            if replica_set is not None:
                await asyncio.sleep(self._gap)
                replica_set.end_gap(self)

        try:
            self.injected += len(targets)
            await deployment.take_down(targets, self, orderly=self._orderly)
            await asyncio.gather(back(), replaced())
        finally:
            if replica_set is not None:
                replica_set.end_gap(self)
            await deployment.bring_up(targets, self)


class RollingRestart(Fault):
    """Restarts the targets one after the other, as an upgrade does.

    :param downtime: seconds until a member is back.
    :param pause: seconds between two members.
    :param gap: seconds without a primary, when its turn comes.
    """

    def __init__(self, downtime: float = 0.5, pause: float = 0.5, gap: float = 0.2) -> None:
        super().__init__()
        self._downtime = positive("downtime", downtime)
        self._pause = positive("pause", pause)
        self._gap = positive("gap", gap)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        for member in targets:
            self.injected += 1
            restart = Restart(self._downtime, self._gap, orderly=True)
            await restart.strike(deployment, (member,))
            await asyncio.sleep(self._pause)


class SkewedClock(Interception):
    """Shifts the date of the last write in hello, until the deployment is cleared.

    Clients learn it with their next heartbeat.

    :param seconds: by how much; negative for a member that seems to lag behind.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        # Dates must stay within those that hello can tell.
        if not is_finite(seconds) or abs(seconds) > _YEARS:
            raise refused("seconds", seconds, f"a number from {-_YEARS} to {_YEARS}")
        self._shift = timedelta(seconds=seconds)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        _replica_set(deployment, self)
        await super().strike(deployment, targets)

    def on_hello(self, reply: Document) -> None:
        last_write = reply.get("lastWrite")
        if isinstance(last_write, dict) and "lastWriteDate" in last_write:
            shifted = {**last_write, "lastWriteDate": last_write["lastWriteDate"] + self._shift}
            reply["lastWrite"] = shifted
            self.injected += 1


def _replica_set(deployment: Deployment, fault: Fault) -> ReplicaSet:
    if not isinstance(deployment, ReplicaSet) or not deployment.elects:
        raise ValueError(
            f"{type(fault).__name__} strikes a ReplicaSet alone, not a {type(deployment).__name__}"
        )
    return deployment
