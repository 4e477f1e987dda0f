"""What cannot run in a transaction, refused before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation.clients.collection_kinds import CAPPED, TIME_SERIES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.clients.collection_kinds import Collections
    from pymongo_resilience_instrumentation.interception.steps import Steps

OF_THE_SERVER = frozenset({"admin", "config", "local"})
"""Databases in which no transaction writes."""
REFUSED = (CAPPED, TIME_SERIES)
"""Kinds of collections."""
STANDALONE = "a standalone server has no transactions, but a replica set of one member has"
UNACKNOWLEDGED = "with write concern 0 the result of the transaction would be unknown"


def refuse(call: Call, concern: Any, namespaces: Collection[str], known: Collections) -> Steps:
    """Raises ConfigurationError with the reason.

    What a collection is, the server is asked once, and before each refusal; where it does not say,
    it refuses itself what a transaction cannot do.
    """
    if not concern.acknowledged:
        raise _refusal(call, UNACKNOWLEDGED)
    for namespace in namespaces:
        database, _, name = namespace.partition(".")
        if database in OF_THE_SERVER or name.startswith("system."):
            raise _refusal(call, f"{namespace} belongs to the server: no transaction can write it")
    _refuse_standalone(call)
    for namespace in namespaces:
        kind = yield from known.kind(call.client, namespace, ask_again=REFUSED)
        if kind in REFUSED:
            raise _refusal(call, f"transactions cannot write to {namespace}, a {kind} collection")
    # It may not have been known before.
    _refuse_standalone(call)


def _refuse_standalone(call: Call) -> None:
    servers = call.client.topology_description.server_descriptions().values()
    if any(each.server_type_name == "Standalone" for each in servers):
        raise _refusal(call, STANDALONE)


def _refusal(call: Call, reason: str) -> ConfigurationError:
    return ConfigurationError([f"{call.method} with atomic=True was not sent: {reason}"])
