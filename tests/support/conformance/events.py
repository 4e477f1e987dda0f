"""What a client under test was seen to do, and whether that is what a case expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pymongo.monitoring import CommandListener, ConnectionPoolListener
from support.conformance.matching import CaseFailed, match, only_known

# What no case wants to see unless it says so: credentials, and the failpoints of the case itself.
_NEVER_OBSERVED: Final = frozenset(
    {
        "authenticate",
        "configureFailPoint",
        "createUser",
        "getnonce",
        "saslContinue",
        "saslStart",
        "updateUser",
    }
)


class Recorder(CommandListener, ConnectionPoolListener):
    """Keeps the events that a client's description asks for, in their order."""

    def __init__(self, observed: Sequence[str], ignored_commands: Sequence[str]) -> None:
        self._observed = frozenset(observed)
        self._ignored = _NEVER_OBSERVED.union(ignored_commands)
        self.events: list[Any] = []

    def _keep(self, event: Any) -> None:
        if name_of(event) in self._observed and (
            getattr(event, "command_name", None) not in self._ignored
        ):
            self.events.append(event)

    started = succeeded = failed = _keep
    pool_created = pool_ready = pool_cleared = pool_closed = _keep
    connection_created = connection_ready = connection_closed = _keep
    connection_check_out_started = connection_check_out_failed = _keep
    connection_checked_out = connection_checked_in = _keep


def name_of(event: Any) -> str:
    """The event's name in the format: pymongo's class name with a small first letter."""
    name = type(event).__name__
    return name[0].lower() + name[1:]


def is_of(event: Any, kind: str) -> bool:
    """Whether an event is one of the kind ``command`` or ``cmap``."""
    return name_of(event).startswith("command") == (kind == "command")


def match_events(expected: Mapping[str, Any], observed: Sequence[Any]) -> None:
    """Raise :class:`CaseFailed` unless one entry of ``expectEvents`` holds: all, and no others."""
    only_known(expected, ("client", "eventType", "events", "ignoreExtraEvents"), "expectEvents")
    kind = expected.get("eventType", "command")
    only_known([kind], ("command", "cmap"), "eventType")
    actual = [event for event in observed if is_of(event, kind)]
    wanted = [next(iter(each.items())) for each in expected["events"]]
    _match_names(wanted, actual, more_allowed=expected.get("ignoreExtraEvents", False))
    for index, ((_, fields), event) in enumerate(zip(wanted, actual, strict=False)):
        _match_fields(fields, event, f"events[{index}]")


def _match_names(
    wanted: Sequence[tuple[str, Any]], actual: Sequence[Any], *, more_allowed: bool
) -> None:
    """Which, how many and in which order; before their fields, since a retry shows here."""
    names = [name for name, _ in wanted]
    found = [name_of(event) for event in actual]
    if names != (found[: len(names)] if more_allowed else found):
        seen = ", ".join(map(_shown, actual))
        raise CaseFailed(f"events: expected {', '.join(names)}; seen: {seen or 'none'}")


def _match_fields(fields: Mapping[str, Any], event: Any, where: str) -> None:
    only_known(fields, _FIELDS, where)
    for name, value in fields.items():
        match(value, _FIELDS[name](event), f"{where}.{name}")


def _shown(event: Any) -> str:
    return " ".join([name_of(event), *filter(None, [getattr(event, "command_name", None)])])


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "command": lambda event: event.command,
    "commandName": lambda event: event.command_name,
    "databaseName": lambda event: event.database_name,
    "reply": lambda event: event.reply,
}
