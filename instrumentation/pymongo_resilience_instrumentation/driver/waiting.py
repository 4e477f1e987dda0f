"""A selection of pymongo's that has to wait: whose it is, and what it waits for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

SELECTING = "_select_servers_loop"


def waits_for_server(client: Any, condition: Any) -> bool:
    """Whether ``condition`` is what the selections of the client wait for."""
    topology = client._topology
    return topology is not None and topology._condition is condition


def wake_selections(client: Any) -> None:
    """Of a client that was closed: each finds that out at once, and not with its next look."""
    topology = client._topology
    if topology is not None:
        with topology._condition:
            topology._condition.notify_all()


async def wake_selections_async(client: Any) -> None:
    """As ``wake_selections``."""
    topology = client._topology
    if topology is not None:
        async with topology._condition:
            topology._condition.notify_all()


def seeds(client: Any) -> list[Any]:
    """The addresses that the client was made with: what is left where no server is."""
    return list(client._topology._seed_addresses)


def cancel_checks(client: Any, addresses: Iterable[Any]) -> None:
    """Have the servers checked anew, also where the check that runs is one that waits for news.

    What pymongo does after network errors. To be called with the topology's lock held.
    """
    servers = client._topology._servers
    for address in addresses:
        if address in servers:
            servers[address]._monitor.cancel_check()


def forget_transient(error: Any) -> None:
    """Whoever runs a transaction must not repeat it: pymongo labels every failed selection so."""
    error._remove_error_label("TransientTransactionError")


def log_failed_selection(failure: str) -> None:
    """The driver's own "Server selection failed", for the selection that the caller runs inside of.

    pymongo logs where it raises, and we raise elsewhere. What it needs is in a local variable of
    the function that waits, and None there unless somebody wants the log. pymongo 4.17 has no such
    variable, and logs no end then.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == SELECTING:
            telemetry = frame.f_locals.get("ss")
            if telemetry is not None:
                telemetry.failed(failure, frame.f_locals["self"].description)
            return
