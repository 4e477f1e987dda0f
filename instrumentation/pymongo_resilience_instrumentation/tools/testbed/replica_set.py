"""Deployments in front of one server: a replica set, a sharded cluster, a standalone server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from bson import ObjectId

from .deployment import Deployment, Target
from .fault import Fault
from .member import Member
from .server import SET_NAME, Kind
from .wire import Document, Message, error

_READS: Final = frozenset({
    "aggregate", "collStats", "count", "dbStats", "distinct", "find", "listCollections",
    "listDatabases", "listIndexes", "mapReduce",
})  # fmt: skip
_WRITES: Final = frozenset({
    "abortTransaction", "bulkWrite", "collMod", "commitTransaction", "create", "createIndexes",
    "createUser", "delete", "drop", "dropDatabase", "dropIndexes", "findAndModify", "insert",
    "renameCollection", "update",
})  # fmt: skip
_TRANSACTION_WRITES: Final = frozenset({"bulkWrite", "delete", "findAndModify", "insert", "update"})
_TOKEN: Final = {"recoveryShardId": "shard0"}
"""The recovery token, with which any router can finish a commit."""


class ReplicaSet(Deployment):
    """A replica set of three members, or of ``members``. The first one is the first primary.

    Secondaries serve reads that allow it, always with the newest data, and refuse writes. Members
    have the tags ``{"member": "0"}`` and so on.
    """

    default_members: ClassVar[int] = 3
    most_members: ClassVar[int | None] = 50
    """MongoDB's own limit."""
    roles: ClassVar[tuple[Literal["primary", "secondary"], ...]] = ("primary", "secondary")

    elects: ClassVar[bool] = True
    elected_at = 0.0
    """When the latest term began, on the monotonic clock."""
    _primary: Member | None = None
    _gaps: set[Fault]
    """The causes that want no primary. One is elected when the last gap has ended."""
    _term = 0
    _next_index = 0

    @property
    def primary(self) -> Member | None:
        """The current primary, or None in the gap of an election."""
        return self._primary

    def targets(self, on: Target) -> Sequence[Member]:
        """Return the members that ``on`` names at this moment. In a gap, no member is the
        primary.
        """
        if on == "primary":
            return () if self._primary is None else (self._primary,)
        if on == "secondary":
            return tuple(member for member in self.members if member is not self._primary)
        return super().targets(on)

    async def step_down(self, cause: Fault) -> None:
        """End the primary's term. There is no primary until ``end_gap``."""
        self._gaps.add(cause)
        if self._primary is None:
            return
        self._primary = None
        self._announce()
        await self.members[0].backend.abort_transactions()

    def end_gap(self, cause: Fault) -> None:
        """Elect a primary, unless another cause than ``cause`` still wants none. May be called
        repeatedly.
        """
        self._gaps.discard(cause)
        self._elect()

    async def take_down(
        self, members: Sequence[Member], cause: Fault, *, orderly: bool = False
    ) -> None:
        """Stop members as if their processes stopped. If one is the primary, its term and its
        transactions end.
        """
        for member in members:
            member.shut_down(cause)
        if self._primary in members:
            await self.step_down(cause)

    async def bring_up(self, members: Sequence[Member], cause: Fault) -> None:
        """Listen again, and elect a primary if an election was due while all members were down."""
        await super().bring_up(members, cause)
        self._elect()

    def _elect(self) -> None:
        """Begin a term of the next running member, or of none if all members are down."""
        if self._primary is not None or self._gaps:
            return
        # Begin with the member after the last primary, so that each election moves the role.
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
        is_primary = member is self._primary
        hello.update(
            setName=SET_NAME,
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
        """Return the error with which a secondary refuses writes, and reads that require the
        primary.
        """
        if member is self._primary:
            return None
        name, mode = request.command_name, request.body.get("$readPreference", {}).get("mode")
        if name in _WRITES:
            refused = error(10107, "NotWritablePrimary", "not primary")
        elif name in _READS and mode in {None, "primary"}:
            text = "not primary and secondaryOk=false"
            refused = error(13435, "NotPrimaryNoSecondaryOk", text)
        else:
            return None
        if request.is_inside_transaction:
            refused["errorLabels"] = ["TransientTransactionError"]
        elif "txnNumber" in request.body:
            refused["errorLabels"] = ["RetryableWriteError"]
        # The version tells drivers whether the error is newer than their last hello.
        return refused | {"topologyVersion": member.version}

    @property
    def _parameters(self) -> str:
        return f"?replicaSet={SET_NAME}"

    async def _open(self) -> None:
        self._primary, self._gaps, self._next_index = None, set(), 0
        await super()._open()
        self._elect()

    def _announce(self) -> None:
        for member in self.members:
            member.announce()


class ShardedCluster(Deployment):
    """A sharded cluster of two routers, or of ``members``, that serve the same data.

    As a mongos does, a router knows only the transactions that were begun through it. Later
    commands of a transaction that arrive at another router fail with NoSuchTransaction, as does an
    abort. A commit fails as well, unless it contains the recovery token from the replies to the
    transaction's writes.
    """

    default_members: ClassVar[int] = 2
    most_members: ClassVar[int | None] = 50
    kind: ClassVar[Kind] = "sharded"
    _begun: dict[tuple[ObjectId, bytes], int]
    """The number of the last transaction, by run of a router and by session identifier."""

    async def _open(self) -> None:
        self._begun = {}
        await super()._open()

    def describe(self, member: Member, hello: Document) -> None:
        super().describe(member, hello)
        hello["msg"] = "isdbgrid"

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Return the error of a mongos for a command of a transaction that it does not know."""
        body = request.body
        if "autocommit" not in body:
            return None
        session = member.version["processId"], bytes(body["lsid"]["id"])
        number = body["txnNumber"]
        if body.get("startTransaction"):
            self._begun[session] = number
        if self._begun.get(session) == number:
            return None
        if request.command_name == "commitTransaction" and body.get("recoveryToken"):
            return None
        text = f"cannot continue transaction {number}: not begun through this router"
        return error(251, "NoSuchTransaction", text, "TransientTransactionError")

    def addition(self, member: Member, request: Message) -> Document:
        """Return the recovery token for the reply to a write of a transaction."""
        is_write = request.is_inside_transaction and request.command_name in _TRANSACTION_WRITES
        return {"recoveryToken": _TOKEN} if is_write else {}


class Standalone(Deployment):
    """A single server without transaction numbers, on which drivers do not retry writes."""

    default_members: ClassVar[int] = 1
    most_members: ClassVar[int | None] = 1
    kind: ClassVar[Kind] = "standalone"

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Refuse transaction numbers, as a standalone mongod does."""
        if "txnNumber" not in request.body:
            return None
        text = "Transaction numbers are only allowed on a replica set member or mongos"
        return error(20, "IllegalOperation", text)
