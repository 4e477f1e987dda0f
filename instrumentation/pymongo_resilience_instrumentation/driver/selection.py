"""How pymongo selects a server, and how it waits for a server, a pool and a socket."""

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
"""pymongo's selector for writes."""


def is_no_selector(selector: Selector | ServerFilter | None) -> bool:
    """Return True if the selector excludes no server: pymongo's default."""
    return selector is None or selector is any_server_selector


def application_selector(client: Client) -> ServerFilter | None:
    """Return the application's server selector, or None."""
    own: ServerFilter | None = client.options.server_selector
    return None if is_no_selector(own) else own


def all_servers(description: TopologyDescription) -> Selection:
    """Return a selection of all known servers, to apply selectors to.

    pymongo's own one starts with the servers that its last selection left, which may lack a server
    that a retry avoided.
    """
    known = description.known_servers
    primary = next((each for each in known if each.is_writable), None)
    return Selection(description, known, description.common_wire_version, primary)


SELECT = "_get_server"
"""The method of the loop that selects a server for the current attempt."""


address: Callable[[Server], Address] = attrgetter("description.address")
"""The address of one of pymongo's servers."""


def selecting(attempts: DriverAttempts) -> tuple[AnyClient, Selector | None]:
    """Return the client that the loop selects a server for, and its selector. A loop that is bound
    to a server has none.
    """
    return (
        attempts.client,
        None if attempts.loop._address is not None else attempts.loop._server_selector,
    )


def is_bound(attempts: DriverAttempts) -> bool:
    """Return True if nothing was selected, because the operation is bound to a server."""
    # A cursor's batch goes to the server of its cursor, whose address it has. A commit or an abort
    # goes to the server of its transaction.
    if attempts.loop._address is not None or attempts.kind() is Kind.TRANSACTION_END:
        return True
    session = attempts.session
    # Other commands of a transaction go to the server of the first one.
    return (
        session is not None and bool(session.in_transaction) and not session._transaction.starting()
    )


def bound_to(attempts: DriverAttempts) -> Address | None:
    """Return the address of the only server that may serve the loop, or None.

    That is a cursor's server, or the mongos that a transaction is pinned to.
    """
    address, session = attempts.loop._address, attempts.session
    if address is None and session is not None and session.in_transaction:
        address = session._transaction.pinned_address
    return None if address is None else (address[0], address[1])


def has_choice(attempts: DriverAttempts) -> bool:
    """Return True if the operation could go to another server. A write to a replica set cannot."""
    return may_choose(attempts.client, attempts.loop._server_selector)


def may_choose(client: Client, preference: Selector) -> bool:
    """Return True if the deployment may have several servers for the preference or selector."""
    description = client.topology_description
    if len(description.server_descriptions()) < 2:  # noqa: PLR2004
        return False
    # The selector of writes has no mode. Writes go to the primary, or to any mongos of a sharded
    # cluster.
    mode = getattr(preference, "mode", PRIMARY)
    return bool(mode != PRIMARY or description.topology_type_name == "Sharded")


def choices(attempts: DriverAttempts, narrowed: Callable[[Servers], Servers]) -> list[Address]:
    """Return the servers among which one would be selected now.

    Applies the client's own selector, then ``narrowed``. Servers that failed before are not
    avoided.
    """
    # A selection stores its candidates in the description, which pymongo's lock protects. Use a
    # copy.
    description = copy.copy(attempts.client.topology_description)
    application = application_selector(attempts.client)
    candidates = description.apply_selector(
        attempts.loop._server_selector,
        None,
        narrowed if application is None else lambda servers: narrowed(application(servers)),
        None,
    )
    return [candidate.address for candidate in candidates]


def known_addresses(client: Client) -> set[Address]:
    """Return all servers of the deployment, reachable or not; none for a closed client."""
    # pymongo keeps the description of a closed client.
    if getattr(client, "_closed", True):
        return set()
    return set(client.topology_description.server_descriptions())


ASYNC_SEND = "async_sendall"
HANDSHAKE = "connect"
"""A method of pools that creates a connection, including hello and authentication."""


def seeds(topology: Topology) -> list[Address]:
    """Return the addresses from the URI. They remain even if pymongo has dropped every server."""
    return list(topology._settings.seeds)


def forget_transient(error: PyMongoError) -> None:
    """Remove the label TransientTransactionError, so that the transaction is not retried.

    pymongo adds it to every failed selection in a transaction.
    """
    error._remove_error_label("TransientTransactionError")


def forget_overload(error: PyMongoError) -> None:
    """Remove the labels that pymongo adds to every connection that could not be made."""
    error._remove_error_label("SystemOverloadedError")
    error._remove_error_label("RetryableError")
