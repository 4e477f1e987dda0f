"""Events of commands and connections, published to our listeners without an object for each.

pymongo builds an event for each command that starts and ends, and for each connection taken and
given back, with a property for everything in it. Where a listener of ours is the only one of its
kind, it gets the arguments that the event would be made of.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pymongo import monitoring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KINDS = (monitoring.CommandListener, monitoring.ConnectionPoolListener)
_OF_A_COMMAND = ("request_id", "connection_id", "server_connection_id", "op_id", "service_id")
ARGUMENTS = {
    "publish_command_start": ("command", "database_name", *_OF_A_COMMAND),
    "publish_command_success": (
        "duration", "reply", "command_name", *_OF_A_COMMAND, "speculative_hello", "database_name",
    ),
    "publish_connection_check_out_started": ("address",),
    "publish_connection_checked_out": ("address", "connection_id", "duration"),
    "publish_connection_checked_in": ("address", "connection_id"),
}  # fmt: skip
"""The methods that ``publish_directly`` replaces, as in pymongo 4.17 to 4.20."""


ENABLED = "_EventListeners__enabled_for_commands"
_KEPT = "_pymongo_resilience_command_events"


class CommandEvents:
    """Whether the driver publishes one client's commands at all: what it has to compute for that is
    made for nothing where no span can come of it.

    Thread-safe: one step of a dictionary. Where two threads disagree, the last one wins, and the
    next operation says anew what it wants.
    """

    __slots__ = ("publisher", "wanted")

    def __init__(self, publisher: Any) -> None:
        self.publisher = publisher
        self.wanted = True


def want_commands(client: Any, wanted: bool) -> bool:
    """Have the driver publish commands or not, where that can be switched.

    False once the client has made its listeners anew, as one of an SRV record does when it connects
    (pymongo 4.20): those make events until that is switched off.
    """
    events: CommandEvents | None = getattr(client, _KEPT, None)
    if events is None:
        return True
    if client._event_listeners is not events.publisher:
        return False
    if events.wanted is not wanted:
        events.wanted = wanted
        setattr(events.publisher, ENABLED, wanted)
    return True


def listeners_of(client: Any) -> list[Any]:
    """Of every kind, also those that the client does not show."""
    publisher = getattr(client, "_event_listeners", None)
    return [] if publisher is None else list(type(publisher).event_listeners(publisher))


def publish_directly(
    client: Any,
    listener: Any,
    instead: Mapping[str, Callable[..., None]],
    *,
    dispensable: bool = False,
) -> None:
    """Have ``instead`` called, by the names in ``ARGUMENTS``, in place of making the events.

    ``dispensable``: publishing them may be switched off, by ``want_commands``.

    Nothing changes where another listener of the same kind is registered, or where pymongo's
    methods have other arguments than known. Those of ``instead`` must not raise.
    """
    publisher = client._event_listeners
    if not all(_is_as_known(name) for name in instead):
        return
    kind = next(each for each in _KINDS if isinstance(listener, each))
    if [each for each in listeners_of(client) if isinstance(each, kind)] == [listener]:
        for name, publish in instead.items():
            setattr(publisher, name, publish)
        if dispensable and hasattr(publisher, ENABLED):
            setattr(client, _KEPT, CommandEvents(publisher))


def publish_events(client: Any) -> None:
    """Take back what ``publish_directly`` did."""
    publisher = client._event_listeners
    for name in ARGUMENTS:
        with suppress(AttributeError):
            delattr(publisher, name)
    if getattr(client, _KEPT, None) is not None:
        setattr(client, _KEPT, None)
        setattr(publisher, ENABLED, True)


@lru_cache(maxsize=len(ARGUMENTS))
def _is_as_known(name: str) -> bool:
    method = getattr(monitoring._EventListeners, name, None)
    if method is None:
        return False
    _, *arguments = inspect.signature(method).parameters
    return tuple(arguments) == ARGUMENTS[name]
