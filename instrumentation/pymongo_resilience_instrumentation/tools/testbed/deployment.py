"""A deployment: members in front of one server, each with an address, and a thread for them."""

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

_STOP_TIMEOUT: Final = 5.0
MAX_PORT: Final = 65535
_REPLICATION_FIELDS: Final = (
    "arbiters", "electionId", "hosts", "lastWrite", "me", "passives", "primary", "secondary",
    "setName", "setVersion", "tags",
)  # fmt: skip
_NOT_RUNNING: Final = "the deployment is not running: use it in a with block"

Target = Literal["all", "primary", "secondary"] | int
"""Whom a fault strikes: every member, those with a role at that moment, or one by its index."""


class Deployment(Running):
    """The base of all deployments: a context manager around members that serve.

    It runs in a daemon thread of its own; all methods may be called from any thread but that one.

    :param server: host and port of a running server; without one, an embedded server is started
        and stopped together with the deployment: SecantusDB, or what ``EmbeddedServer`` is to start
        instead, for example ``"mongod"``.
    :param members: how many addresses there are.
    :param port: of the first member; those of the others follow it. Without one, all are free ones.
    """

    default_members: ClassVar[int]
    most_members: ClassVar[int | None] = None
    roles: ClassVar[tuple[Literal["primary", "secondary"], ...]] = ()
    kind: ClassVar[Kind] = "replica-set"
    """What an embedded mongod is."""
    passes_hellos: ClassVar[bool] = False
    """Members have a server each, whose hellos they pass on."""
    elects: ClassVar[bool] = False
    """A fault can make it elect a primary."""

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
        """The members; raises :class:`TestbedError` when the deployment does not run."""
        if not self._members:
            raise TestbedError(_NOT_RUNNING)
        return self._members

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first member."""
        return self.members[0].address

    @property
    def uri(self) -> str:
        """What clients connect to: all members, and what else they must know."""
        addresses = ",".join(member.host_and_port for member in self.members)
        return f"mongodb://{addresses}/{self._parameters}"

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server itself, past all members and faults."""
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
        """Let a fault strike; when this returns, it is in force.

        Returns a future that is done when the fault has run its course: when an interception has
        struck as often as it should, or its time is over. Without such an end, and in any case,
        it is done when the deployment is cleared or stopped. Raises ``ValueError`` for a target
        that this deployment has not, and for a fault that does not go with it.
        """
        done: Future[None] = self._call(self.strike(fault, on)).result(_STOP_TIMEOUT)
        self._since_clear.append(fault)
        return done

    def play(self, scenario: Scenario) -> Future[None]:
        """Begin a scenario; returns a future that is done when all its faults are.

        Interceptions are not waited for: what they are meant for may never come. The future is
        done, too, when the deployment is cleared or stopped before that.
        """
        return self._call(self._play(scenario))

    def clear(self, *, strict: bool = False) -> None:
        """End all faults, and scenarios that would bring more, and repair what they did.

        ``strict``: then raises :class:`TestbedError` for every fault that was given to ``inject``
        since the last time, and never struck; those of scenarios need not.
        """
        self._call(self._clear()).result(_STOP_TIMEOUT)
        idle = [fault for fault in self._since_clear if not fault.struck]
        self._since_clear.clear()
        if strict and idle:
            raise TestbedError(f"never struck: {', '.join(map(repr, idle))}")

    def injected(self) -> Counter[str]:
        """How often each kind of fault acted since the start, by the name of its class."""
        counts: Counter[str] = Counter()
        for fault in tuple(self._struck):
            counts[type(fault).__name__] += fault.injected
        return counts

    @property
    def repeats(self) -> int:
        """How many writes, and ends of transactions, arrived again after they were executed."""
        return self.members[0].backend.repeats

    async def strike(self, fault: Fault, on: Target = "all") -> Future[None]:
        """``inject``, for those who are in the deployment's event loop already."""
        if not isinstance(fault, Fault):
            raise refused("fault", fault, 'a fault, for example CutAfter("insert")')
        targets = self.targets(on)
        self._struck.append(fault)
        task = self._begin(fault.strike(self, targets))
        # One turn of the loop: what the fault does before it first waits is done when this returns.
        await asyncio.sleep(0)
        if task.done():
            task.result()
        done: Future[None] = asyncio.run_coroutine_threadsafe(_settled(task), self._loop)
        return done

    def targets(self, on: Target) -> Sequence[Member]:
        """The members that ``on`` names at this moment; raises ``ValueError`` if it cannot."""
        if on == "all":
            return self.members
        if isinstance(on, int) and not isinstance(on, bool) and 0 <= on < len(self.members):
            return (self.members[on],)
        roles = ", ".join(repr(role) for role in ("all", *self.roles))
        raise refused("on", on, f"{roles}, or the index of a member: 0 to {len(self.members) - 1}")

    async def take_down(
        self, members: Sequence[Member], cause: Fault, *, orderly: bool = False
    ) -> None:
        """Stop members as processes stop, which ends their transactions."""
        for member in members:
            member.shut_down(cause)
        # The members do not know which transactions are theirs; a server may abort any.
        await members[0].backend.abort_transactions()

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Let members listen again that ``cause`` has taken down, unless others keep them down."""
        for member in members:
            await member.listen(cause)

    @property
    def _parameters(self) -> str:
        return ""

    def describe(self, member: Member, hello: Document) -> None:
        """Turn the server's reply to a hello into the member's own, in place."""
        for field in _REPLICATION_FIELDS:
            hello.pop(field, None)

    def refusal(self, member: Member, request: Message) -> Document | None:
        """The error with which the member refuses a request, or ``None``."""
        return None

    def addition(self, member: Member, request: Message) -> Document:
        """What the member adds to the server's reply."""
        return {}

    def start(self) -> None:
        """Listen on 127.0.0.1.

        Raises :class:`TestbedError` if a port is taken, or the server does not start.
        """
        if self._thread is not None:
            raise TestbedError("the deployment is running already")
        try:
            if self._embedded is not None:
                self._embedded.start()
            self._loop = asyncio.new_event_loop()
            # Not in the caller's thread, whose own loop may be running.
            self._thread = threading.Thread(
                target=self._serve, name="pymongo_resilience_testbed", daemon=True
            )
            self._thread.start()
            self._call(self._open()).result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Close every address and connection; harmless when it does not run."""
        serves = self._thread is not None and self._thread.is_alive()
        try:
            if serves:
                self._call(self._close()).result(_STOP_TIMEOUT)
        finally:
            thread, self._thread = self._thread, None
            if thread is not None and serves:
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join(_STOP_TIMEOUT)
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
        for index, backend in enumerate(await self._backends()):
            port = 0 if self._port is None else self._port + index
            self._members += (Member(index, backend, self, port),)
        for member in self._members:
            await member.listen()

    async def _backends(self) -> Sequence[Backend]:
        """The server behind each member: one for all."""
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
        await asyncio.shield(task)
