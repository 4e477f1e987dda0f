"""What the application called: the facts of one operation, which never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.synchronous.cursor import Cursor

from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy
from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.public_operations import ABORT, COMMIT, Target

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.synchronous.client_session import ClientSession

    from pymongo_resilience.policies.namespaces import NamespaceRules

    AnyClient = MongoClient[Any] | AsyncMongoClient[Any]
    AnySession = ClientSession | AsyncClientSession


# Every operation makes one: a named tuple takes half as long to make as a frozen dataclass.
class Call(NamedTuple):
    """What the application called. Immutable, so thread- and task-safe."""

    client: AnyClient
    name: str
    """The command's name, for example ``"find"``."""
    target: Target = ("", None)
    """Database and collection; empty if they are unknown: the method was bound before
    ``instrument()``."""
    public_method: str = ""
    """The driver's method that the application called, for example ``"find_one"``; empty for
    none."""
    source: object = None
    """The collection, database, client or session whose method was called."""
    session: AnySession | None = None
    """The session that was passed, or that is bound around the call."""
    block_policy: Policy = EMPTY_POLICY
    """The policy of the ``override`` blocks around the call."""
    bound_policy: Policy = EMPTY_POLICY
    """The policy that the collection, database, session or cursor carries."""
    is_public: bool = True
    """False for what pymongo sends on its own account: it has no telemetry."""
    is_cleanup: bool = False
    """It ends a cursor, a session or a transaction that was left open."""
    unknown_concern: bool = False
    """Its write concern is not known, so the write may be unacknowledged."""
    cursor_class: type | None = None
    """The class of the cursor that a later batch is fetched for."""

    @property
    def method(self) -> str:
        """Return the driver's method, with ``getMore`` for a batch; empty for none."""
        if self.cursor_class is None:
            return self.public_method
        # For any other cursor it is not known which command it is from.
        is_find = issubclass(self.cursor_class, (Cursor, AsyncCursor))
        return "find/getMore" if is_find else "getMore"

    @property
    def namespace(self) -> str:
        """Return ``"db.collection"``, ``"db"``, or an empty text if it is unknown."""
        return "admin" if self.name in {COMMIT, ABORT} else namespace_text(*self.target)

    @property
    def is_acknowledged(self) -> bool:
        """Return False if the write concern asks for no reply, or is unknown."""
        if self.unknown_concern:
            return False
        concern = getattr(self.source, "write_concern", None)
        return concern is None or bool(concern.acknowledged)

    def rule(self, rules: NamespaceRules) -> Policy:
        """Return the rule for the namespace. A client's bulk write goes to several namespaces,
        none of which is ``admin``."""
        if self.name == "bulkWrite" and self.target[1] is None:
            return rules.policy_of("", None)
        return rules.policy_of(*self.target)

    def policy(self, rules: NamespaceRules) -> Policy:
        """Merge the policies: of blocks, over the object's, over the namespace's.

        Merged only when it is needed: a healthy operation without policies never needs it.
        """
        return self.block_policy.over(self.bound_policy).over(self.rule(rules))

    def option(self, rules: NamespaceRules, name: str) -> Any:
        """Return one option of the merged policy, without merging; None if no policy has it."""
        rule = self.rule(rules) if rules.any else EMPTY_POLICY
        for policy in (self.block_policy, self.bound_policy, rule):
            value = getattr(policy, name)
            if value is not None:
                return value
        return None


ENDED = Call(cast("AnyClient", None), "")
"""The call of an operation that has ended: a context that outlives the operation, a connection's or
a task's, must not keep its client alive."""
