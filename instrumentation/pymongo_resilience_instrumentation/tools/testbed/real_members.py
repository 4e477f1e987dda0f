"""Proxies in front of real members: of an existing deployment, or of a replica set of mongods."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from .backend import Backend
from .deployment import Target
from .fault import Fault
from .member import Member
from .processes import Process
from .replica_set import ReplicaSet
from .running import TestbedError
from .server import SET_NAME, EmbeddedServer, initiate, program
from .wire import Document, Message

_ANSWER_WITHIN: Final = 2.0
"""Seconds. A member that takes longer is not considered the primary."""
_STEPPED_DOWN: Final = 10
"""Seconds during which a primary that has stepped down does not run for election."""
_SETTINGS: Final = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}
"""A primary that gets no answer from a majority within its election timeout steps down."""
_RETRY_INTERVAL: Final = 0.05
_SHUTDOWN_TIMEOUT: Final = 20.0


class PassThrough(ReplicaSet):
    """Base of deployments that elect their primary and refuse requests by themselves."""

    passes_hellos: ClassVar[bool] = True

    def refusal(self, member: Member, request: Message) -> Document | None:
        return None

    def describe(self, member: Member, hello: Document) -> None:
        """Leave the reply unchanged."""

    async def strike(self, fault: Fault, on: Target = "all") -> Future[None]:
        """Find the primary first, then inject the fault."""
        await self.find_primary()
        return await super().strike(fault, on)

    async def find_primary(self) -> Member | None:
        """Ask all members which of them is the primary."""
        hellos = await asyncio.gather(*(_hello(each.backend) for each in self.members))
        primaries = (
            each
            for each, hello in zip(self.members, hellos, strict=True)
            if hello.get("ismaster") and "setName" in hello
        )
        self._primary = next(primaries, None)
        return self._primary

    def _elect(self) -> None:
        """Leave elections to the members."""


class InFrontOf(PassThrough):
    """Proxies on this machine in front of an existing deployment, for faults in a staging
    environment.

    Only traffic to which a fault applies is changed, and hellos, which name the proxies instead of
    the members. Clients log in to the deployment itself, through the proxies, with their own
    credentials. The connections from the proxies to the deployment use TLS, with its certificates,
    if the URI says so. The connections to the proxies on this machine do not.

    Args:
        uri: The members, and the TLS options with their files; may be ``mongodb+srv``. All other
            parts of the URI, in particular credentials, are not used.
    """

    elects: ClassVar[bool] = False

    def __init__(self, uri: str, *, port: int | None = None) -> None:
        try:
            parsed = parse_uri(uri, warn=False)
        except (PyMongoError, ValueError) as error:
            # The text of the original error may contain the credentials.
            raise ValueError(
                f"the URI for --in-front-of is not valid ({type(error).__name__}): expected "
                "mongodb://..."
            ) from None
        self._seeds: list[tuple[str, int]] = [
            (host, number or 27017) for host, number in parsed["nodelist"]
        ]
        self._options = {name.lower(): value for name, value in parsed["options"].items()}
        self._set_name: str | None = None
        super().__init__(self._seeds[0], members=1, port=port)

    @property
    def server_description(self) -> str:
        """The number of members. Their version is not asked for, because that may require a
        login.
        """
        return f"in front of {len(self.members)} members"

    @property
    def _parameters(self) -> str:
        parameters = {} if self._set_name is None else {"replicaSet": self._set_name}
        if "authsource" in self._options:
            parameters["authSource"] = self._options["authsource"]
        return f"?{urlencode(parameters)}" if parameters else ""

    async def _backends(self) -> Sequence[Backend]:
        tls = tls_context(self._options) if self._options.get("tls") else None
        hellos = await asyncio.gather(*(_hello(Backend(seed, tls)) for seed in self._seeds))
        found = next((hello for hello in hellos if "setName" in hello), None)
        if not any(hellos):
            raise TestbedError(
                "no member of the deployment answers: check addresses and TLS options in the URI"
            )
        if found is None:
            return [Backend(seed, tls) for seed in self._seeds]
        self._set_name = found["setName"]
        names = [*found.get("hosts", ()), *found.get("passives", ())]
        return [Backend(_address(name), tls) for name in names]

    def describe(self, member: Member, hello: Document) -> None:
        """Name the proxies instead of the members. A member that joined later has no proxy."""
        proxies = {
            "{}:{}".format(*each.backend.address): each.host_and_port for each in self.members
        }
        hello.pop("arbiters", None)
        for field in ("hosts", "passives"):
            if field in hello:
                hello[field] = [proxies[name] for name in hello[field] if name in proxies]
        if "me" in hello:
            hello["me"] = member.host_and_port
        if "primary" in hello:
            hello["primary"] = proxies.get(hello["primary"], hello["primary"])


class RealReplicaSet(PassThrough):
    """Several mongods that replicate and elect, each behind a proxy.

    The members know each other by the addresses of the proxies, so faults of the network also
    separate them from each other.

    The faults act on the processes: ``Election`` makes the primary step down, ``Restart`` kills
    processes, ``RollingRestart`` ends them in an orderly way, and ``SilentPrimary`` stops one with
    SIGSTOP. The members decide who is elected, and when; ``gap`` is not used.

    Args:
        server: ``"mongod"`` or ``"mongod=PATH"``. By default the value of the variable
            PYMONGO_RESILIENCE_TESTBED_SERVER.
    """

    most_members: ClassVar[int | None] = 7

    def __init__(
        self,
        server: str | None = None,
        *,
        members: int | None = None,
        port: int | None = None,
        startup_timeout: float = 60.0,
    ) -> None:
        if program(server) is None:
            raise TestbedError("a RealReplicaSet needs a mongod: RealReplicaSet('mongod=PATH')")
        super().__init__(server, members=members, port=port)
        self._startup_timeout = startup_timeout
        self._embedded = EmbeddedServer(
            server, kind="members", members=self._count, startup_timeout=startup_timeout
        )

    @property
    def _processes(self) -> list[Process]:
        return self._embedded.processes if self._embedded is not None else []

    @property
    def server_description(self) -> str:
        """Name and version of the servers."""
        return f"{super().server_description}, {len(self.members)} members"

    def start(self) -> None:
        """Start the members, and return when they have a primary."""
        super().start()
        try:
            addresses = [each.address for each in self.members]
            initiate(SET_NAME, addresses, **_SETTINGS)
            self._call(self._settle()).result()
        except BaseException:
            self.stop()
            raise

    async def step_down(self, cause: Fault) -> None:
        """Make the primary step down."""
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
        processes = [self._processes[each.index] for each in members]
        for process in processes:
            process.signal(signal.SIGTERM if orderly else signal.SIGKILL)
        waits = (asyncio.to_thread(each.wait, _SHUTDOWN_TIMEOUT) for each in processes)
        await asyncio.gather(*waits)
        for member in members:
            member.shut_down(cause)

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Start the processes that have ended, and wait until they are members again."""
        for member in members:
            process = self._processes[member.index]
            if not process.runs:
                deadline = time.monotonic() + self._startup_timeout
                # A mongod looks for itself in the set's configuration only once, when it starts.
                member.keep_waiting(cause)
                await asyncio.to_thread(process.start, deadline)
            await member.listen(cause)
        await self._settle()

    async def silence(self, member: Member, seconds: float) -> None:
        """Stop a process for a while, without its noticing."""
        process = self._processes[member.index]
        try:
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)

    async def _settle(self) -> None:
        """Wait until there is a primary and all other members follow it."""
        deadline = time.monotonic() + self._startup_timeout
        while time.monotonic() < deadline:
            if await self.find_primary() is not None:
                async with await self.members[0].backend.connect() as upstream:
                    status = await upstream.ask({"replSetGetStatus": 1, "$db": "admin"})
                states = [each["stateStr"] for each in status.get("members", ())]
                serving = sum(state in {"PRIMARY", "SECONDARY"} for state in states)
                if serving >= len(self.members):
                    return
            await asyncio.sleep(_RETRY_INTERVAL)
        raise TestbedError(
            "the members have elected no primary in time: look at the logs of the mongods"
        )

    async def _backends(self) -> Sequence[Backend]:
        return [Backend(each.address) for each in self._processes]


def _address(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    return host.strip("[]"), int(port)


async def _hello(backend: Backend) -> Document:
    """Return the member's hello, or an empty one if it does not answer."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_ANSWER_WITHIN), await backend.connect() as upstream:
            return await upstream.ask({"isMaster": 1, "$db": "admin"})
    return {}


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS settings for a URI's options, as pymongo would create them.

    Args:
        options: The options of the URI, with lowercase names.

    Raises:
        OSError: A file cannot be read.
    """

    def is_on(*names: str) -> bool:
        return any(str(options.get(name)).lower() == "true" for name in names)

    context = ssl.create_default_context(cafile=options.get("tlscafile"))
    if certificate := options.get("tlscertificatekeyfile"):
        password = options.get("tlscertificatekeyfilepassword", "")
        context.load_cert_chain(certificate, password=password)
    unchecked = is_on("tlsallowinvalidcertificates", "tlsinsecure")
    context.check_hostname = not unchecked and not is_on("tlsallowinvalidhostnames")
    if unchecked:
        context.verify_mode = ssl.CERT_NONE
    return context
