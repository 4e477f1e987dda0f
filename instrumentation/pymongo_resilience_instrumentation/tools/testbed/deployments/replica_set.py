"""A replica set: which member is the primary, since when, and what each says and refuses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from bson import ObjectId

from .deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.tools.testbed.fault import Fault
    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

    from .deployment import Target

_SET_NAME: Final = "rs0"
_READS: Final = frozenset(
    {
        "aggregate",
        "collStats",
        "count",
        "dbStats",
        "distinct",
        "find",
        "listCollections",
        "listDatabases",
        "listIndexes",
        "mapReduce",
    }
)
_WRITES: Final = frozenset(
    {
        "abortTransaction",
        "bulkWrite",
        "collMod",
        "commitTransaction",
        "create",
        "createIndexes",
        "createUser",
        "delete",
        "drop",
        "dropDatabase",
        "dropIndexes",
        "findAndModify",
        "insert",
        "renameCollection",
        "update",
    }
)


class ReplicaSet(Deployment):
    """Three members, or as many as ``members`` says; the first one is the first primary.

    Secondaries serve reads that allow it, always with the newest data, and refuse writes. A member
    is tagged ``{"member": "0"}`` and so on.
    """

    default_members: ClassVar[int] = 3
    most_members: ClassVar[int | None] = 50
    """As MongoDB has it."""
    roles: ClassVar[tuple[Literal["primary", "secondary"], ...]] = ("primary", "secondary")

    elects: ClassVar[bool] = True
    elected_at = 0.0
    """When the latest term began, on the monotonic clock."""
    _primary: Member | None = None
    _gaps: set[Fault]
    """Who wants no primary: there is one again when the last gap has ended."""
    _term = 0
    _next_index = 0

    @property
    def primary(self) -> Member | None:
        """The present primary; ``None`` in the gap of an election."""
        return self._primary

    def targets(self, on: Target) -> Sequence[Member]:
        """The members that ``on`` names at this moment; none in a gap has the role of primary."""
        if on == "primary":
            return () if self._primary is None else (self._primary,)
        if on == "secondary":
            return tuple(member for member in self.members if member is not self._primary)
        return super().targets(on)

    async def step_down(self, cause: Fault) -> None:
        """End the primary's term: it is a secondary at once, and open transactions are aborted.

        Until :meth:`end_gap` there is no primary.
        """
        self._gaps.add(cause)
        if self._primary is None:
            return
        self._primary = None
        self._announce()
        await self.members[0].backend.abort_transactions()

    def end_gap(self, cause: Fault) -> None:
        """Elect a primary, unless others than ``cause`` still want none; harmless if repeated."""
        self._gaps.discard(cause)
        self._elect()

    async def take_down(
        self, members: Sequence[Member], cause: Fault, *, orderly: bool = False
    ) -> None:
        """Stop members as processes stop; a primary's term ends, and its transactions."""
        for member in members:
            member.shut_down(cause)
        if self._primary in members:
            await self.step_down(cause)

    async def silence(self, member: Member, seconds: float) -> None:
        """Only the processes of a real set can be stopped."""
        raise NotImplementedError

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Listen again, and elect a primary where all members were down when it was due."""
        await super().bring_up(members, cause)
        self._elect()

    def _elect(self) -> None:
        """Begin a term of the next member that is up; of none, where none is."""
        if self._primary is not None or self._gaps:
            return
        order = (*self.members[self._next_index :], *self.members[: self._next_index])
        winner = next((member for member in order if member.is_listening), None)
        if winner is None:
            return
        self._primary = winner
        self.elected_at = time.monotonic()
        self._next_index = winner.index + 1
        self._term += 1
        self._announce()

    def describe(self, member: Member, hello: Document) -> None:
        """Present the server as this member of the set."""
        is_primary = member is self._primary
        hello.update(
            setName=_SET_NAME,
            setVersion=1,
            hosts=[each.host_and_port for each in self.members],
            me=member.host_and_port,
            secondary=not is_primary,
            tags={"member": str(member.index)},
        )
        for field in ("isWritablePrimary", "ismaster"):
            if field in hello:
                hello[field] = is_primary
        hello.pop("primary", None)
        hello.pop("electionId", None)
        if self._primary is not None:
            hello["primary"] = self._primary.host_and_port
        if is_primary:
            hello["electionId"] = ObjectId(f"7fffffff{self._term:016x}")

    def refusal(self, member: Member, request: Message) -> Document | None:
        """What a secondary says to writes, and to reads that ask for the primary."""
        if member is self._primary:
            return None
        name = request.command_name
        if name in _WRITES:
            return _not_primary(member, 10107, "NotWritablePrimary", "not primary", request)
        mode = request.body.get("$readPreference", {}).get("mode", "primary")
        if name in _READS and mode == "primary":
            text = "not primary and secondaryOk=false"
            return _not_primary(member, 13435, "NotPrimaryNoSecondaryOk", text, request)
        return None

    @property
    def _parameters(self) -> str:
        return f"?replicaSet={_SET_NAME}"

    async def _open(self) -> None:
        self._primary, self._gaps, self._next_index = None, set(), 0
        await super()._open()
        self._elect()

    def _announce(self) -> None:
        for member in self.members:
            member.announce()


def _not_primary(
    member: Member, code: int, name: str, text: str, request: Message
) -> dict[str, Any]:
    error: dict[str, Any] = {
        "ok": 0.0,
        "errmsg": text,
        "code": code,
        "codeName": name,
        # With it, drivers know whether the error is newer than their last hello.
        "topologyVersion": member.version,
    }
    if request.is_inside_transaction:
        error["errorLabels"] = ["TransientTransactionError"]
    elif "txnNumber" in request.body:
        error["errorLabels"] = ["RetryableWriteError"]
    return error
