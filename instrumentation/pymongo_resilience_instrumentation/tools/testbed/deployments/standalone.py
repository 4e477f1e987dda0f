"""One server without replication."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from .deployment import Deployment

if TYPE_CHECKING:
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


class Standalone(Deployment):
    """A single server, which knows no transaction numbers: drivers do not retry writes on it."""

    default_members: ClassVar[int] = 1
    most_members: ClassVar[int | None] = 1
    kind: ClassVar[Kind] = "standalone"

    def describe(self, member: Member, hello: Document) -> None:
        """Leave out all fields of replication."""
        del member
        for field in REPLICATION_FIELDS:
            hello.pop(field, None)

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Refuse transaction numbers, as a standalone mongod does."""
        del member
        if "txnNumber" not in request.body:
            return None
        return {
            "ok": 0.0,
            "errmsg": "Transaction numbers are only allowed on a replica set member or mongos",
            "code": 20,
            "codeName": "IllegalOperation",
        }
