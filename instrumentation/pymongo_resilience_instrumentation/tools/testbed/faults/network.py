"""Faults of the network: connections refused, reset, cut, dropped, slowed down."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, ClassVar

from pymongo_resilience_instrumentation.tools.testbed.fault import (
    Fault,
    not_negative,
    positive,
    whole,
)
from pymongo_resilience_instrumentation.tools.testbed.traffic import (
    HELLO_COMMANDS,
    Connection,
    Cut,
    Delay,
    Hang,
    Interception,
    Lasting,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.tools.testbed.deployments.deployment import Deployment
    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member
    from pymongo_resilience_instrumentation.tools.testbed.wire import Message


class CutAtHandshake(Interception):
    """Cuts new connections at their first hello: the application's, as far as that can be known.

    At its first hello a monitor's connection looks like any other. But a monitor keeps its
    connection open: while one is open, a new connection is taken for the application's; while none
    is, for the monitor's, and let through. The second connection of a streaming monitor, which
    measures round trips, is cut like the application's: it counts, and does no harm.
    """

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self._times = whole("times", times)

    @property
    def is_over(self) -> bool:
        """It has cut as often as it should."""
        return self.injected >= self._times or super().is_over

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Cut a handshake that is not a monitor's."""
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
        """Close the addresses for a while."""
        try:
            for member in targets:
                member.refuse(self)
                member.reset()
                self.injected += 1
            await asyncio.sleep(self._seconds)
        finally:
            await deployment.bring_up(targets, self)


class Reset(Fault):
    """Resets every open connection once, monitors' too, whatever is under way on it."""

    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        """Reset."""
        for member in targets:
            member.reset()
            self.injected += 1


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
        """Reset, wait, and again."""
        for number in range(self._times):
            if number:
                await asyncio.sleep(self._every)
            for member in targets:
                member.reset()
                self.injected += 1


class BlackHole(Lasting):
    """Swallows every request and hello for so many seconds; then their connections are closed.

    Nothing that was dropped is ever executed. New connections are accepted, and get no answer. A
    client that awaits a hello does not learn of a change either.
    """

    parts_members: ClassVar[bool] = True

    def __init__(self, seconds: float) -> None:
        super().__init__(positive("seconds", seconds))

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Say nothing for as long as it lasts."""
        self.injected += 1
        return Hang(self.remaining)


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
        """Delay the reply."""
        self.injected += 1
        return Delay(self._seconds + self._random.random() * self._jitter)
