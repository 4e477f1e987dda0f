"""The facts about one call of the application, which never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.synchronous.cursor import Cursor

from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.public_operations import ABORT, COMMIT, Target

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.synchronous.client_session import ClientSession

    from pymongo_resilience.policies.namespaces import NamespaceRules

    AnyClient = MongoClient[Any] | AsyncMongoClient[Any]
    AnySession = ClientSession | AsyncClientSession


# Every operation creates a Call. A named tuple takes half as long to create as a frozen dataclass.
class Call(NamedTuple):
    """One call of the application. Immutable, so thread- and task-safe."""

    client: AnyClient
    name: str
    """The command's name, such as ``"find"``."""
    given_target: Target | None = ("", None)
    """See ``target``; None for the collection whose method was called."""
    public_method: str = ""
    """The pymongo method that the application called, such as ``"find_one"``, or empty."""
    source: object = None
    """The collection, database, client or session whose method was called."""
    session: AnySession | None = None
    """The session that was passed, or that is bound around the call."""
    block_policy: Policy = EMPTY_POLICY
    """The policy of the ``override`` blocks around the call."""
    bound_policy: Policy = EMPTY_POLICY
    """The policy that the collection, database, session or cursor carries."""
    is_public: bool = True
    """False for commands that pymongo sends by itself, which have no telemetry."""
    is_cleanup: bool = False
    """True if it ends a cursor, a session or a transaction that was left open."""
    unknown_concern: bool = False
    """True if the write concern is unknown, so the write may be unacknowledged."""
    cursor_class: type | None = None
    """The class of the cursor whose later batch is fetched."""

    @property
    def target(self) -> Target:
        """Return database and collection; empty if they are unknown: the method was bound before
        ``instrument()``.

        A healthy operation without telemetry does not need them, and pymongo builds them with
        several calls.
        """
        if self.given_target is None:
            return driver.clients.names_of_collection(self.source)
        return self.given_target

    def without_client(self) -> Call:
        """Return a copy for deferred telemetry, which keeps no client alive."""
        return self._replace(
            client=ENDED.client, source=None, session=None, given_target=self.target
        )

    @property
    def method(self) -> str:
        """The pymongo method, with ``getMore`` for a later batch; empty if there is none."""
        if self.cursor_class is None:
            return self.public_method
        # For any other cursor, it is unknown which command created it.
        is_find = issubclass(self.cursor_class, (Cursor, AsyncCursor))
        return "find/getMore" if is_find else "getMore"

    @property
    def namespace(self) -> str:
        """``"db.collection"``, ``"db"``, or an empty string if unknown."""
        return "admin" if self.name in {COMMIT, ABORT} else namespace_text(*self.target)

    @property
    def is_acknowledged(self) -> bool:
        """False if the write concern requests no reply, or if it is unknown."""
        if self.unknown_concern:
            return False
        concern = getattr(self.source, "write_concern", None)
        return concern is None or bool(concern.acknowledged)

    def rule(self, rules: NamespaceRules) -> Policy:
        """Return the rule for the namespace.

        A client's bulk write goes to several namespaces, none of which is ``admin``, so only rules
        for all namespaces apply to it.
        """
        if self.name == "bulkWrite" and self.target[1] is None:
            return rules.policy_of("", None)
        return rules.policy_of(*self.target)

    def policy(self, rules: NamespaceRules) -> Policy:
        """Merge the policies: blocks over the object over the namespace.

        Only called when needed, which a healthy operation without policies never does.
        """
        return self.block_policy.over(self.bound_policy).over(self.rule(rules))

    def option(self, rules: NamespaceRules, name: str) -> Any:
        """Return one option of the merged policy without merging; None if no policy sets it."""
        rule = self.rule(rules) if rules.any else EMPTY_POLICY
        for policy in (self.block_policy, self.bound_policy, rule):
            value = getattr(policy, name)
            if value is not None:
                return value
        return None


ENDED = Call(cast("AnyClient", None), "")
"""The call of an operation that has ended. A context that outlives the operation, such as that of a
task, must not keep its client alive.
"""
