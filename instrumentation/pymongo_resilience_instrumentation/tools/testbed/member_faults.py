"""Faults of the network and of members: cut connections, elections, restarts, clocks."""

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
    """Closes new connections of the application at their first hello.

    At its first hello, a monitor's connection looks like any other. But a monitor keeps its
    connection open, so while one is open, a new connection is assumed to be the application's.
    While none is open, a new connection is assumed to be the monitor's, and is not closed. The
    second connection of a streaming monitor, which measures round-trip times, is closed like the
    application's. It counts, but does no harm.
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
    """Resets all connections, including those of monitors, and refuses new ones for a number of
    seconds.
    """

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
    """Resets every connection repeatedly, so that clients clear their pools each time.

    Args:
        times: How often.
        every: Seconds between two resets.
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
    """Resets every open connection once, including those of monitors, even in the middle of a
    command.
    """

    def __init__(self) -> None:
        super().__init__(times=1)


class BlackHole(Interception):
    """Drops every request and hello for a number of seconds, then closes their connections.

    What was dropped is never executed. New connections are accepted but get no answer. A client
    that waits for a hello does not learn about changes either.
    """

    parts_members: ClassVar[bool] = True

    def __init__(self, seconds: float) -> None:
        super().__init__(positive("seconds", seconds))

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        self.injected += 1
        return Hang(max(0.0, self.until - time.monotonic()))


class Latency(Interception):
    """Delays every reply, including those to hellos, until the deployment is cleared.

    Args:
        seconds: The minimum delay.
        jitter: The maximum additional delay in seconds, evenly distributed.
        seed: The random seed of the jitter.
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
    """The primary steps down. After a gap without a primary, the next member is elected.

    During the gap, writes and reads that require the primary are refused as secondaries refuse
    them. Open transactions are aborted. Connections stay open. A set of one member elects that
    member again.

    Args:
        gap: Seconds without a primary.
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
    """The primary does not respond for a number of seconds, while another member is elected.

    What is sent to it in this time is never executed and never answered.

    Args:
        seconds: How long it does not respond. Then its connections are closed.
        gap: Seconds until another member is elected.
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

        # The election takes place while the old primary is silent, so both run at the same time.
        electing = asyncio.ensure_future(elect())
        try:
            await super().strike(deployment, () if primary is None else (primary,))
            await electing
        finally:
            electing.cancel()
            replica_set.end_gap(self)


class Restart(Fault):
    """Members stop as processes do and come back after a while. A primary is replaced in the
    meantime.

    Connections are reset and new ones are refused. Cursors and the topology version are lost. A
    primary steps down, and after the gap the next running member is elected. Open transactions are
    aborted, unless only secondaries restart. If routers restart, the transactions of the other
    routers are aborted as well.

    Args:
        downtime: Seconds until the members are back.
        gap: Seconds without a primary, if one of the members was primary.
        orderly: Processes of a real replica set are asked to end instead of being killed.
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
    """Restarts the members one after the other, as during an upgrade.

    Args:
        downtime: Seconds until a member is back.
        pause: Seconds between two members.
        gap: Seconds without a primary, when the primary restarts.
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
    """Shifts the date of the last write in hellos, until the deployment is cleared.

    Clients see it with their next heartbeat.

    Args:
        seconds: By how much. Negative for a member that seems to lag behind.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        # The shifted date must be one that a hello can contain.
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
            f"{type(fault).__name__} needs a ReplicaSet, because it makes the members elect a "
            f"primary; this is a {type(deployment).__name__}"
        )
    return deployment
