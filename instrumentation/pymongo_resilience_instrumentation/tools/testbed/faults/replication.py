"""Faults of a replica set: elections, restarts, clocks that disagree."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pymongo_resilience_instrumentation.tools.testbed.deployments.replica_set import ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.fault import Fault, number, positive, refused
from pymongo_resilience_instrumentation.tools.testbed.traffic import Interception

from .network import BlackHole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.tools.testbed.deployments.deployment import Deployment
    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document

_YEARS: Final = 10 * 365 * 86_400


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
        """Hold the election."""
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
        """Fall silent, hold the election."""
        replica_set = _replica_set(deployment, self)
        primary = replica_set.primary
        if replica_set.is_real and primary is not None:
            self.injected += 1
            await replica_set.silence(primary, self._seconds)
            return
        electing = asyncio.ensure_future(self._elect(replica_set))
        try:
            await super().strike(deployment, () if primary is None else (primary,))
            await electing
        finally:
            electing.cancel()
            replica_set.end_gap(self)

    async def _elect(self, replica_set: ReplicaSet) -> None:
        await asyncio.sleep(self._gap)
        await replica_set.step_down(self)
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
        """Restart all targets at the same time."""
        replica_set = deployment if isinstance(deployment, ReplicaSet) else None
        try:
            self.injected += len(targets)
            await deployment.take_down(targets, self, orderly=self._orderly)
            await asyncio.gather(self._return(deployment, targets), self._replace(replica_set))
        finally:
            if replica_set is not None:
                replica_set.end_gap(self)
            await deployment.bring_up(targets, self)

    async def _return(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        await asyncio.sleep(self._downtime)
        await deployment.bring_up(targets, self)

    async def _replace(self, replica_set: ReplicaSet | None) -> None:
        if replica_set is not None:
            await asyncio.sleep(self._gap)
            replica_set.end_gap(self)


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
        """Restart one, wait for it, go on with the next."""
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
        if abs(number("seconds", seconds)) > _YEARS:
            raise refused("seconds", seconds, f"a number from {-_YEARS} to {_YEARS}")
        self._shift = timedelta(seconds=seconds)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        """Begin, where there is replication."""
        _replica_set(deployment, self)
        await super().strike(deployment, targets)

    def on_hello(self, reply: Document) -> None:
        """Shift the date."""
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
