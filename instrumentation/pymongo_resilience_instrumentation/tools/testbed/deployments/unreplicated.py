"""Deployments whose members know no replication: routers of a sharded cluster, a standalone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from .deployment import Deployment

if TYPE_CHECKING:
    from bson import ObjectId

    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member
    from pymongo_resilience_instrumentation.tools.testbed.server import Kind
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

REPLICATION_FIELDS: Final = (
    "arbiters",
    "electionId",
    "hosts",
    "lastWrite",
    "me",
    "passives",
    "primary",
    "secondary",
    "setName",
    "setVersion",
    "tags",
)
_TOKEN: Final = {"recoveryShardId": "shard0"}
"""With it a commit can be finished through any router."""
_WRITES: Final = frozenset({"bulkWrite", "delete", "findAndModify", "insert", "update"})

_Session = tuple["ObjectId", bytes]
"""One run of a router, and a session's identifier."""


class ShardedCluster(Deployment):
    """Two routers, or as many as ``members`` says, which serve the same data.

    A router knows the transactions that were begun through it, as a mongos does: a later command of
    one that arrives at another router fails with NoSuchTransaction, as does the abort. So does a
    commit, unless it has the recovery token that the replies to a transaction's writes carry.
    """

    default_members: ClassVar[int] = 2
    most_members: ClassVar[int | None] = 50
    kind: ClassVar[Kind] = "sharded"
    _begun: dict[_Session, int]
    """The number of the last transaction that a session began through a router."""

    async def _open(self) -> None:
        self._begun = {}
        await super()._open()

    def describe(self, member: Member, hello: Document) -> None:
        """Present the server as a mongos."""
        for field in REPLICATION_FIELDS:
            hello.pop(field, None)
        hello["msg"] = "isdbgrid"

    def refusal(self, member: Member, request: Message) -> Document | None:
        """What a mongos says to a command of a transaction that it does not know."""
        body = request.body
        if "autocommit" not in body:
            return None
        session, number = _session(member, request), body["txnNumber"]
        if body.get("startTransaction"):
            self._begun[session] = number
        if self._begun.get(session) == number:
            return None
        if request.command_name == "commitTransaction" and body.get("recoveryToken"):
            return None
        return {
            "ok": 0.0,
            "errmsg": f"cannot continue transaction {number}: not begun through this router",
            "code": 251,
            "codeName": "NoSuchTransaction",
            "errorLabels": ["TransientTransactionError"],
        }

    def addition(self, member: Member, request: Message) -> Document:
        """The recovery token, in the reply to a write of a transaction."""
        is_write = request.is_inside_transaction and request.command_name in _WRITES
        return {"recoveryToken": _TOKEN} if is_write else {}


class Standalone(Deployment):
    """A single server, which knows no transaction numbers: drivers do not retry writes on it."""

    default_members: ClassVar[int] = 1
    most_members: ClassVar[int | None] = 1
    kind: ClassVar[Kind] = "standalone"

    def describe(self, member: Member, hello: Document) -> None:
        """Leave out all fields of replication."""
        for field in REPLICATION_FIELDS:
            hello.pop(field, None)

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Refuse transaction numbers, as a standalone mongod does."""
        if "txnNumber" not in request.body:
            return None
        return {
            "ok": 0.0,
            "errmsg": "Transaction numbers are only allowed on a replica set member or mongos",
            "code": 20,
            "codeName": "IllegalOperation",
        }


def _session(member: Member, request: Message) -> _Session:
    return member.version["processId"], bytes(request.body["lsid"]["id"])
