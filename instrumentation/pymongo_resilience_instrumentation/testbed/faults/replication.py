"""Faults of a replica set: elections, restarts, clocks that disagree."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from pymongo_resilience_instrumentation.testbed.fault import Fault, positive
from pymongo_resilience_instrumentation.testbed.interception import Interception
from pymongo_resilience_instrumentation.testbed.replica_set import ReplicaSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.testbed.deployment import Deployment
    from pymongo_resilience_instrumentation.testbed.member import Member
    from pymongo_resilience_instrumentation.testbed.wire import Document


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
        del targets
        replica_set = _replica_set(deployment, self)
        try:
            self.injected += 1
            await replica_set.step_down()
            await asyncio.sleep(self._gap)
        finally:
            replica_set.elect()


class Restart(Fault):
    """Members stop as processes do, and are back after a while; a primary is replaced meanwhile.

    Connections are reset and new ones refused; cursors and the topology version are lost. A
    primary steps down before, and after the gap the next member that is up is elected.

    :param downtime: seconds until the members are back.
    :param gap: seconds without a primary, when one of the members was it.
    """

    def __init__(self, downtime: float = 0.5, gap: float = 0.2) -> None:
        super().__init__()
        self._downtime = positive("downtime", downtime)
        self._gap = positive("gap", gap)

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        """Restart all targets at the same time."""
        steps_down = isinstance(deployment, ReplicaSet) and deployment.primary in targets
        try:
            if isinstance(deployment, ReplicaSet) and steps_down:
                await deployment.step_down()
            for member in targets:
                member.shut_down()
                self.injected += 1
            await asyncio.gather(
                _listen_after(self._downtime, targets), self._replace(deployment, steps_down)
            )
        finally:
            for member in targets:
                await member.listen()
            if isinstance(deployment, ReplicaSet):
                deployment.elect()

    async def _replace(self, deployment: Deployment, steps_down: bool) -> None:
        if isinstance(deployment, ReplicaSet) and steps_down:
            await asyncio.sleep(self._gap)
            deployment.elect()


class RollingRestart(Fault):
    """Restarts the targets one after the other, as an upgrade does.

    :param downtime: seconds until a member is back.
    :param pause: seconds between two members.
    :param gap: seconds without a primary, when its turn comes.
    """

    def __init__(self, downtime: float = 0.5, pause: float = 0.5, gap: float = 0.2) -> None:
        super().__init__()
        self._downtime = downtime
        self._pause = positive("pause", pause)
        self._gap = gap

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        """Restart one, wait for it, go on with the next."""
        for member in targets:
            restart = Restart(self._downtime, self._gap)
            await restart.strike(deployment, (member,))
            self.injected += restart.injected
            await asyncio.sleep(self._pause)


class SkewedClock(Interception):
    """Shifts the date of the last write that hello tells, until the deployment is cleared.

    :param seconds: by how much; negative for a member that seems to lag behind.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._shift = timedelta(seconds=seconds)

    def on_hello(self, reply: Document) -> None:
        """Shift the date."""
        last_write = reply.get("lastWrite")
        if isinstance(last_write, dict) and "lastWriteDate" in last_write:
            shifted = {**last_write, "lastWriteDate": last_write["lastWriteDate"] + self._shift}
            reply["lastWrite"] = shifted
            self.injected += 1


async def _listen_after(seconds: float, members: Sequence[Member]) -> None:
    await asyncio.sleep(seconds)
    for member in members:
        await member.listen()


def _replica_set(deployment: Deployment, fault: Fault) -> ReplicaSet:
    if not isinstance(deployment, ReplicaSet):
        raise TypeError(
            f"{type(fault).__name__} needs a ReplicaSet, not a {type(deployment).__name__}"
        )
    return deployment
