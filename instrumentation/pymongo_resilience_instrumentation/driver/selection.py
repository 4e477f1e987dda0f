"""Where pymongo selects a server, and what it knows of the one it selected."""

from __future__ import annotations

from typing import Any

from pymongo.server_selectors import any_server_selector, writable_server_selector

SELECTOR = "server_selector"
"""The option of a client: a callable that leaves servers out."""
ERROR_MESSAGE = "_error_message"
_SHOWN = "_ClientOptions__server_selector"


def is_no_selector(selector: Any) -> bool:
    """Whether it leaves no server out: the driver's own, where none is given."""
    return selector is None or selector is any_server_selector


def selects_for_writes(selector: Any) -> bool:
    return selector is writable_server_selector


def selector_of(topology: Any) -> Any:
    """The client's ``server_selector``, as its topology calls it."""
    return topology._settings.server_selector


def show_selector(client: Any, name: str, given: tuple[Any, ...]) -> None:
    """Where the client lists its options, show the selector it was given, if any, under that name.

    The topology has ours by then.
    """
    shown = client._options
    if given:
        shown._options[name] = given[0]
    else:
        shown._options.pop(name, None)
    setattr(shown, _SHOWN, given[0] if given else any_server_selector)
