"""A replica set of mongods, with real elections, and a proxy before each member."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from typing import TYPE_CHECKING, ClassVar, Final

from pymongo_resilience_instrumentation.tools.testbed.mongod import (
    SET_NAME,
    Process,
    data_folder,
    initiate,
    program,
)
from pymongo_resilience_instrumentation.tools.testbed.proxy.backend import Backend
from pymongo_resilience_instrumentation.tools.testbed.running import Running
from pymongo_resilience_instrumentation.tools.testbed.server import TestbedError, described

from .pass_through import PassThrough

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pymongo_resilience_instrumentation.tools.testbed.fault import Fault
    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member

_STEPPED_DOWN: Final = 10
"""Seconds for which a primary that stepped down does not stand for election."""
_ELECTION_TIMEOUT_MS: Final = 2000
_RETRY_INTERVAL: Final = 0.05
_SHUTDOWN_TIMEOUT: Final = 20.0


class RealReplicaSet(PassThrough):
    """Some mongods that replicate and elect, each behind a proxy: the members know each other by
    the proxies' addresses, so faults of the network part them as well.

    Faults do what they say: ``Election`` has the primary step down, ``Restart`` kills processes,
    ``RollingRestart`` ends them in good order, ``SilentPrimary`` stops one with SIGSTOP. Who is
    elected, and when, is the members' affair; ``gap`` is not used.

    :param server: ``"mongod"`` or ``"mongod=PATH"``; by default what the variable says.
    """

    most_members: ClassVar[int | None] = 7
    is_real: ClassVar[bool] = True

    def __init__(
        self,
        server: str | None = None,
        *,
        members: int | None = None,
        port: int | None = None,
        startup_timeout: float = 60.0,
    ) -> None:
        mongod = program(server)
        if mongod is None:
            raise TestbedError("a RealReplicaSet needs a mongod: RealReplicaSet('mongod=PATH')")
        super().__init__(("127.0.0.1", 0), members=members, port=port)
        self._startup_timeout = startup_timeout
        self._mongods = self._embedded = _Mongods(mongod, self._count, startup_timeout)

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the first process, past all faults."""
        return self._mongods.processes[0].address

    @property
    def server_description(self) -> str:
        """Name and version of the servers."""
        return f"{described(self.server_address)}, {len(self.members)} members"

    def start(self) -> None:
        """Start the members, and return once they have a primary."""
        super().start()
        try:
            initiate(
                SET_NAME,
                [each.address for each in self.members],
                electionTimeoutMillis=_ELECTION_TIMEOUT_MS,
            )
            self._call(self._settle(len(self.members))).result()
        except BaseException:
            self.stop()
            raise

    async def step_down(self, cause: Fault) -> None:
        """Have the primary step down."""
        primary = await self.find_primary()
        if primary is None:
            return
        command = {"replSetStepDown": _STEPPED_DOWN, "force": True, "$db": "admin"}
        async with await primary.backend.connect() as upstream:
            await upstream.ask({**command, "secondaryCatchUpPeriodSecs": 2})

    def end_gap(self, cause: Fault) -> None:
        """Leave the election to the members."""

    async def take_down(
        self, members: Sequence[Member], cause: Fault, *, orderly: bool = False
    ) -> None:
        """Kill the processes, or ask them to end."""
        processes = [self._mongods.processes[each.index] for each in members]
        for process in processes:
            process.signal(signal.SIGTERM if orderly else signal.SIGKILL)
        await asyncio.gather(
            *(asyncio.to_thread(each.wait, _SHUTDOWN_TIMEOUT) for each in processes)
        )
        for member in members:
            member.shut_down(cause)

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Start the processes that have ended, and wait until they are members again."""
        for member in members:
            process = self._mongods.processes[member.index]
            if not process.runs:
                deadline = time.monotonic() + self._startup_timeout
                await asyncio.to_thread(process.start, deadline)
            await member.listen(cause)
        await self._settle(len(self.members))

    async def silence(self, member: Member, seconds: float) -> None:
        """Stop a process for a while; it notices nothing."""
        process = self._mongods.processes[member.index]
        try:
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)

    async def _settle(self, count: int) -> None:
        """Until there is a primary, and so many members follow or lead."""
        deadline = time.monotonic() + self._startup_timeout
        while time.monotonic() < deadline:
            if await self.find_primary() is not None and await self._in_service() >= count:
                return
            await asyncio.sleep(_RETRY_INTERVAL)
        raise TestbedError("the members have no primary")

    async def _in_service(self) -> int:
        async with await self.members[0].backend.connect() as upstream:
            status = await upstream.ask({"replSetGetStatus": 1, "$db": "admin"})
        states = [each["stateStr"] for each in status.get("members", ())]
        return sum(state in {"PRIMARY", "SECONDARY"} for state in states)

    async def _backends(self) -> Sequence[Backend]:
        return [Backend(each.address) for each in self._mongods.processes]


class _Mongods(Running):
    """The processes of a set."""

    def __init__(self, executable: Path, count: int, startup_timeout: float) -> None:
        self._executable = executable
        self._count = count
        self._startup_timeout = startup_timeout
        self._folder: Path | None = None
        self.processes: list[Process] = []

    def start(self) -> None:
        deadline = time.monotonic() + self._startup_timeout
        self._folder = data_folder()
        for index in range(self._count):
            process = Process(
                self._executable, self._folder / f"member{index}", "--replSet", SET_NAME
            )
            self.processes.append(process)
            process.start(deadline)

    def stop(self) -> None:
        while self.processes:
            self.processes.pop().stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
