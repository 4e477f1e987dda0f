"""Where pymongo waits for a server, its pool and a socket; where it selects a server, and what it
knows of the one it selected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from pymongo.read_preferences import Primary
from pymongo.server_selectors import Selection, any_server_selector, writable_server_selector

from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation.addresses import Address

if TYPE_CHECKING:
    from pymongo.errors import PyMongoError
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.call import AnyClient

    from .attempts import DriverAttempts
    from .protocols import Client, Selector, Server, ServerFilter, Servers, Topology

PRIMARY = Primary().mode
WRITABLE = writable_server_selector
"""The driver's selector for writes."""


def is_no_selector(selector: Selector | ServerFilter | None) -> bool:
    """Whether it leaves no server out: the driver's own, where none is given."""
    return selector is None or selector is any_server_selector


def application_selector(client: Client) -> ServerFilter | None:
    """The application's; None if it gave none."""
    own: ServerFilter | None = client.options.server_selector
    return None if is_no_selector(own) else own


def all_servers(description: TopologyDescription) -> Selection:
    """What a look begins with that leaves no server out. pymongo's own begins with what the last
    look has left: a retry may have avoided a server."""
    known = description.known_servers
    primary = next((each for each in known if each.is_writable), None)
    return Selection(description, known, description.common_wire_version, primary)


SELECT = "_get_server"
"""The loop's method: a server for the attempt at hand."""


address: Callable[[Server], Address] = attrgetter("description.address")
"""The address of a server of the driver."""


def selecting(attempts: DriverAttempts) -> tuple[AnyClient, Selector | None]:
    """The client that the loop selects for, and its selector; one that is bound has none."""
    return (
        attempts.client,
        None if attempts.loop._address is not None else attempts.loop._server_selector,
    )


def is_bound(attempts: DriverAttempts) -> bool:
    """Nothing was selected: a cursor's batch goes where its cursor is, and a transaction, its end
    included, where its first command was sent."""
    if attempts.loop._address is not None or attempts.kind() is Kind.TRANSACTION_END:
        return True
    session = attempts.session
    return (
        session is not None and bool(session.in_transaction) and not session._transaction.starting()
    )


def bound_to(attempts: DriverAttempts) -> Address | None:
    """Return the address of the only server that may serve the loop, if there is one: a cursor's,
    or the mongos that a transaction is pinned to."""
    address, session = attempts.loop._address, attempts.session
    if address is None and session is not None and session.in_transaction:
        address = session._transaction.pinned_address
    return None if address is None else (address[0], address[1])


def has_choice(attempts: DriverAttempts) -> bool:
    """Whether the operation could go to another server: a write to a replica set cannot."""
    return may_choose(attempts.client, attempts.loop._server_selector)


def may_choose(client: Client, preference: Selector) -> bool:
    """Whether the deployment may have several servers for that preference or driver's selector."""
    description = client.topology_description
    if len(description.server_descriptions()) < 2:  # noqa: PLR2004
        return False
    mode = getattr(preference, "mode", PRIMARY)
    return bool(mode != PRIMARY or description.topology_type_name == "Sharded")


def choices(attempts: DriverAttempts, narrowed: Callable[[Servers], Servers]) -> list[Address]:
    """The servers of which one would be selected now, by the client's own selector, then
    ``narrowed``. No server that failed before is avoided."""
    # A look keeps its candidates in the description, which pymongo's lock guards.
    description = copy.copy(attempts.client.topology_description)
    own = application_selector(attempts.client)
    found = description.apply_selector(
        attempts.loop._server_selector,
        None,
        narrowed if own is None else lambda servers: narrowed(own(servers)),
        None,
    )
    return [each.address for each in found]


def known_addresses(client: Client) -> set[Address]:
    """All servers of the deployment, reachable or not; none of a closed client, though pymongo goes
    on describing them."""
    if getattr(client, "_closed", True):
        return set()
    return set(client.topology_description.server_descriptions())


ASYNC_SEND = "async_sendall"
HANDSHAKE = "connect"
"""A pool's method: makes a connection, with hello and authentication."""


def seeds(topology: Topology) -> list[Address]:
    """The addresses that the client was made with: what is left where no server is."""
    return list(topology._settings.seeds)


def forget_transient(error: PyMongoError) -> None:
    """The transaction must not be repeated: pymongo labels every failed selection as transient."""
    error._remove_error_label("TransientTransactionError")


def forget_overload(error: PyMongoError) -> None:
    """Take off the labels that pymongo gives each connection that cannot be made."""
    error._remove_error_label("SystemOverloadedError")
    error._remove_error_label("RetryableError")
