"""A deployment: members in front of one server, each with its own address, and their thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from .backend import Backend
from .fault import Fault, refused, whole
from .member import Member
from .running import Running, TestbedError
from .server import EmbeddedServer, Kind, described
from .wire import Document, Message

if TYPE_CHECKING:
    from .scenario import Scenario

_TIMEOUT: Final = 30.0
"""Maximum wait in seconds for steps that take milliseconds, unless the machine is very busy."""
MAX_PORT: Final = 65535
_REPLICATION_FIELDS: Final = (
    "arbiters", "electionId", "hosts", "lastWrite", "me", "passives", "primary", "secondary",
    "setName", "setVersion", "tags",
)  # fmt: skip
_NOT_RUNNING: Final = "the deployment is not running: use it in a with block"

Target = Literal["all", "primary", "secondary"] | int
"""The members to which a fault applies: all, those that have a role at that moment, or one by its
index.
"""


class Deployment(Running):
    """Base of all deployments: a context manager around members that serve.

    It runs in a daemon thread. All methods may be called from any thread except that one.

    Args:
        server: Host and port of a running server. Otherwise, an embedded server is started and
            stopped together with the deployment: SecantusDB, or another one that ``EmbeddedServer``
            knows, such as ``"mongod"``.
        members: The number of addresses.
        port: The port of the first member; the other members have the following ports. By default
            all ports are free ones.
    """

    default_members: ClassVar[int]
    most_members: ClassVar[int | None] = None
    roles: ClassVar[tuple[Literal["primary", "secondary"], ...]] = ()
    kind: ClassVar[Kind] = "replica-set"
    """The kind of an embedded mongod."""
    passes_hellos: ClassVar[bool] = False
    """True if each member has its own server and passes on that server's hellos."""
    elects: ClassVar[bool] = False
    """True if a fault can make the deployment elect a primary."""

    def __init__(
        self,
        server: tuple[str, int] | str | None = None,
        *,
        members: int | None = None,
        port: int | None = None,
    ) -> None:
        wanted = self.default_members if members is None else members
        self._count = whole("members", wanted, most=self.most_members)
        last_first = MAX_PORT - self._count + 1
        self._port = None if port is None else whole("port", port, most=last_first)
        self._address: tuple[str, int] | None = None
        self._embedded: EmbeddedServer | None = None
        match server:
            case (str(), int()):
                self._address = server
            case None | str():
                self._embedded = EmbeddedServer(server, kind=self.kind)
            case _:
                allowed = "a host and a port, like EmbeddedServer.address, or 'mongod'"
                raise refused("server", server, allowed)
        self._members: tuple[Member, ...] = ()
        self._struck: list[Fault] = []
        self._since_clear: list[Fault] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """The members.

        Raises:
            TestbedError: The deployment is not running.
        """
        if not self._members:
            raise TestbedError(_NOT_RUNNING)
        return self._members

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first member."""
        return self.members[0].address

    @property
    def uri(self) -> str:
        """The URI for clients, with all members and the necessary options."""
        addresses = ",".join(member.host_and_port for member in self.members)
        return f"mongodb://{addresses}/{self._parameters}"

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server itself, without proxies and faults."""
        if self._address is not None:
            return self._address
        if self._embedded is None:
            raise TestbedError("the deployment has no server of its own")
        return self._embedded.address

    @property
    def server_description(self) -> str:
        """Name and version of the server."""
        return described(self.server_address)

    def inject(self, fault: Fault, on: Target = "all") -> Future[None]:
        """Inject a fault. It is active when this method returns.

        Args:
            fault: A new instance. Each instance can be injected once.
            on: The members to which the fault applies.

        Returns:
            A future that is done when the fault has ended: when it has acted as often as it should,
            or its time is over. Otherwise, it is done when the deployment is cleared or stopped.

        Raises:
            ValueError: The deployment has no such members, or the fault does not suit it.
        """
        done: Future[None] = self._call(self.strike(fault, on)).result(_TIMEOUT)
        self._since_clear.append(fault)
        return done

    def play(self, scenario: Scenario) -> Future[None]:
        """Start a scenario.

        Returns:
            A future that is done when all faults of the scenario have ended, or the deployment is
            cleared or stopped. Faults that wait for a command are not waited for, because that
            command may never come.
        """
        return self._call(self._play(scenario))

    def clear(self, *, strict: bool = False) -> None:
        """End all faults and scenarios, and repair what they did.

        Args:
            strict: Raise an error for faults that have never acted. This applies to the faults
                given to ``inject`` since the last call, not to those of scenarios.

        Raises:
            TestbedError: With ``strict``, a fault has never acted.
        """
        self._call(self._clear()).result(_TIMEOUT)
        idle = [fault for fault in self._since_clear if not fault.struck]
        self._since_clear.clear()
        if strict and idle:
            raise TestbedError(
                f"these faults never acted: {', '.join(map(repr, idle))} "
                "(check their commands and targets)"
            )

    def injected(self) -> Counter[str]:
        """How often each kind of fault has acted since the start, by the name of its class."""
        counts: Counter[str] = Counter()
        for fault in tuple(self._struck):
            counts[type(fault).__name__] += fault.injected
        return counts

    @property
    def repeats(self) -> int:
        """The number of writes, commits and aborts that arrived again after they had been
        executed.
        """
        return self.members[0].backend.repeats

    async def strike(self, fault: Fault, on: Target = "all") -> Future[None]:
        """Inject a fault from within the deployment's event loop. Otherwise like ``inject``."""
        if not isinstance(fault, Fault):
            raise refused("fault", fault, 'a fault, for example CutAfter("insert")')
        targets = self.targets(on)
        self._struck.append(fault)
        task = self._begin(fault.strike(self, targets))
        # Run the event loop once, so that the part of the fault before its first ``await`` is done
        # when this method returns.
        await asyncio.sleep(0)
        if task.done():
            task.result()
        done: Future[None] = asyncio.run_coroutine_threadsafe(_settled(task), self._loop)
        return done

    def targets(self, on: Target) -> Sequence[Member]:
        """Return the members that ``on`` names at this moment.

        Raises:
            ValueError: The deployment has no such members.
        """
        if on == "all":
            return self.members
        if isinstance(on, int) and not isinstance(on, bool) and 0 <= on < len(self.members):
            return (self.members[on],)
        roles = ", ".join(repr(role) for role in ("all", *self.roles))
        raise refused("on", on, f"{roles}, or the index of a member: 0 to {len(self.members) - 1}")

    async def take_down(
        self, members: Sequence[Member], cause: Fault, *, orderly: bool = False
    ) -> None:
        """Stop members as if their processes stopped, which ends their transactions."""
        for member in members:
            member.shut_down(cause)
        # The members do not know whose transactions they are. Aborting all of them is allowed: a
        # server may abort any transaction.
        await members[0].backend.abort_transactions()

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Let members that ``cause`` has taken down listen again, unless another cause keeps them
        down.
        """
        for member in members:
            await member.listen(cause)

    @property
    def _parameters(self) -> str:
        return ""

    def describe(self, member: Member, hello: Document) -> None:
        """Change the server's reply to a hello, in place, so that it describes the member."""
        for field in _REPLICATION_FIELDS:
            hello.pop(field, None)

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Return the error with which the member refuses a request, or None."""
        return None

    def addition(self, member: Member, request: Message) -> Document:
        """Return what the member adds to the server's reply."""
        return {}

    def start(self) -> None:
        """Start to listen on 127.0.0.1.

        Raises:
            TestbedError: A port is in use, or the server does not start.
        """
        if self._thread is not None:
            raise TestbedError("the deployment is running already")
        try:
            if self._embedded is not None:
                self._embedded.start()
            self._loop = asyncio.new_event_loop()
            # Not in the caller's thread, where another event loop may be running.
            self._thread = threading.Thread(
                target=self._serve, name="pymongo_resilience_testbed", daemon=True
            )
            self._thread.start()
            self._call(self._open()).result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Close all addresses and connections. Does nothing if the deployment is not running."""
        serves = self._thread is not None and self._thread.is_alive()
        try:
            if serves:
                self._call(self._close()).result(_TIMEOUT)
        finally:
            thread, self._thread = self._thread, None
            if thread is not None and serves:
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join(_TIMEOUT)
            elif thread is not None:
                self._loop.close()
            if self._embedded is not None:
                self._embedded.stop()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._thread is None:
            coroutine.close()
            raise TestbedError(_NOT_RUNNING)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _open(self) -> None:
        # Create all members before one listens, because the hello of each names all of them.
        for index, backend in enumerate(await self._backends()):
            port = 0 if self._port is None else self._port + index
            self._members += (Member(index, backend, self, port),)
        for member in self._members:
            await member.listen()

    async def _backends(self) -> Sequence[Backend]:
        """Return the server behind each member, here one for all."""
        backend = Backend(self.server_address)
        await backend.examine()
        return [backend] * self._count

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _play(self, scenario: Scenario) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._begin(scenario.run(self))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _clear(self) -> None:
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for member in self._members:
            member.clear()

    async def _close(self) -> None:
        await self._clear()
        await asyncio.gather(*(member.close() for member in self._members))
        self._members = ()


async def _settled(task: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        # A caller that stops waiting must not end the fault.
        await asyncio.shield(task)
