"""Routers of a sharded cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pymongo_resilience_instrumentation.testbed.deployment import Deployment
from pymongo_resilience_instrumentation.testbed.standalone import REPLICATION_FIELDS

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.testbed.member import Member
    from pymongo_resilience_instrumentation.testbed.wire import Document


class ShardedCluster(Deployment):
    """Two routers, or as many as ``members`` says, which serve the same data."""

    default_members: ClassVar[int] = 2

    def describe(self, member: Member, hello: Document) -> None:
        """Present the server as a mongos."""
        del member
        for field in REPLICATION_FIELDS:
            hello.pop(field, None)
        hello["msg"] = "isdbgrid"
