"""Where pymongo waits for a server, for its pool and for a socket."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from .monitors import topologies

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

SELECTION_TIMEOUT = "get_server_selection_timeout"
ASYNC_SEND = "async_sendall"
HANDSHAKE = "connect"
"""Of a pool: the socket, hello and authentication."""


class Half(NamedTuple):
    """One of pymongo's two APIs, with what its modules call by a name of their own."""

    name: str
    wait: str
    connect: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"pymongo.{self.name}.{name}")


SYNC_HALF = Half("synchronous", "_cond_wait", "_configured_socket_interface")
ASYNC_HALF = Half("asynchronous", "_async_cond_wait", "_configured_protocol_interface")


def lock_module() -> ModuleType:
    """Where pymongo's async waits for a condition call ``wait_for``."""
    return importlib.import_module("pymongo.lock")


def selection_timeout_owners() -> tuple[type, ...]:
    return topology_owners(SELECTION_TIMEOUT)


def topology_owners(name: str) -> tuple[type, ...]:
    """The classes that define a method: each topology class, or what both derive from (4.20)."""
    owners = [
        next(cls for cls in topology.__mro__ if name in vars(cls)) for topology, _ in topologies()
    ]
    return tuple(dict.fromkeys(owners))


own_selection_timeout = attrgetter("_settings.server_selection_timeout")
"""A topology's ``serverSelectionTimeoutMS``, in seconds."""


def own_connect_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The ``connectTimeoutMS`` of a socket to be made, given the arguments, in seconds."""
    options = args[1] if len(args) > 1 else kwargs["options"]
    seconds: float | None = options.connect_timeout
    return seconds


def connects_for_an_operation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a pool's ``connect`` is called by a check-out, given its arguments: monitors, and
    what keeps ``minPoolSize``, have no handler."""
    return (args[0] if args else kwargs.get("handler")) is not None


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


def seeds(topology: Any) -> list[Any]:
    """The addresses that the client was made with: what is left where no server is."""
    return list(topology._settings.seeds)


def cancel_checks(client: Any, addresses: Iterable[Any]) -> None:
    """Have the servers checked anew, also where the check that runs is one that waits for news.

    What pymongo does after network errors. To be called with the topology's lock held.
    """
    servers = client._topology._servers
    for address in addresses:
        if address in servers:
            servers[address]._monitor.cancel_check()


def forget_transient(error: Any) -> None:
    """The transaction must not be repeated: pymongo labels every failed selection as transient."""
    error._remove_error_label("TransientTransactionError")
