"""The server that pymongo's retry loop has selected, before a connection to it is checked out."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pymongo_resilience.operation import Kind

from .retry_loop import kind
from .selection import is_no_selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.addresses import Address

SELECT = "_get_server"
"""The loop's method: a server for the attempt at hand."""


def address(server: Any) -> Address:
    found: Address = server.description.address
    return found


def note_server(loop: Any, server: Any) -> None:
    """Where the attempt ends before the loop has noted by itself which server it was meant for."""
    loop._server = server


def topology_type(loop: Any) -> str:
    return str(loop._client.topology_description.topology_type_name)


def is_bound(loop: Any) -> bool:
    """Nothing was selected: a cursor's batch goes where its cursor is, and a transaction, its end
    included, where its first command was sent."""
    if loop._address is not None or kind(loop) is Kind.TRANSACTION_END:
        return True
    session = loop._session
    return (
        session is not None and bool(session.in_transaction) and not session._transaction.starting()
    )


def choices(loop: Any, narrowed: Callable[[Any], Any]) -> list[Address]:
    """The servers of which one would be selected now: by the client's own selector, then
    ``narrowed``.

    From a copy: a look at the servers keeps its candidates in the description, which pymongo's lock
    guards. No server that failed before is avoided.
    """
    description = copy.copy(loop._client.topology_description)
    own = loop._client.options.server_selector
    found = description.apply_selector(
        loop._server_selector,
        None,
        narrowed if is_no_selector(own) else lambda servers: narrowed(own(servers)),
        None,
    )
    return [each.address for each in found]


def known_addresses(client: Any) -> set[Address]:
    """Of all servers of the deployment, whether they can be reached or not; none once it is closed,
    though pymongo goes on describing them."""
    return set() if client._closed else set(client.topology_description.server_descriptions())
