"""Where pymongo waits for a server, for its pool and for a socket."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

from .clients import both

SELECTION_TIMEOUT = "get_server_selection_timeout"
ASYNC_SEND = "async_sendall"
HANDSHAKE = "connect"
"""A pool's method: makes a connection, with hello and authentication."""


class Half(NamedTuple):
    """One of pymongo's two APIs, with what its modules call by a name of their own."""

    name: str
    wait: str
    connect: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"pymongo.{self.name}.{name}")


SYNC_HALF = Half("synchronous", "_cond_wait", "_configured_socket_interface")
ASYNC_HALF = Half("asynchronous", "_async_cond_wait", "_configured_protocol_interface")


def selection_timeout_owners() -> set[type]:
    """The classes that define it: each topology class, or what both derive from (4.20)."""
    mros = (module.Topology.__mro__ for module, _ in both("topology"))
    return {next(cls for cls in mro if SELECTION_TIMEOUT in vars(cls)) for mro in mros}


own_selection_timeout = attrgetter("_settings.server_selection_timeout")
"""A topology's ``serverSelectionTimeoutMS``, in seconds."""


def waits_for_server(client: Any, condition: Any) -> bool:
    """Whether ``condition`` is what the selections of the client wait for."""
    topology = client._topology
    return topology is not None and topology._condition is condition


def seeds(topology: Any) -> list[Any]:
    """The addresses that the client was made with: what is left where no server is."""
    return list(topology._settings.seeds)


def cancel_checks(client: Any, addresses: Iterable[Any]) -> None:
    """Have the servers checked anew, as after network errors, also where the check that runs waits
    for news. To be called with the topology's lock held."""
    for address in addresses:
        server = client._topology.get_server_by_address(address)
        if server is not None:
            server._monitor.cancel_check()


def forget_transient(error: Any) -> None:
    """The transaction must not be repeated: pymongo labels every failed selection as transient."""
    error._remove_error_label("TransientTransactionError")
