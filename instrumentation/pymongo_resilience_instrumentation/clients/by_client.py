"""What is kept for a client that cannot carry it: found by its identity, gone with it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import MutableMapping

T = TypeVar("T")


def keep(values: MutableMapping[int, T], client: object, made: T) -> T:
    """What ``values`` has for the client; ``made`` where it has nothing yet. Holds it not alive:
    two clients of the same servers count as equal, so no weak mapping would do."""
    key = id(client)
    kept = values.setdefault(key, made)
    if kept is made:
        weakref.finalize(client, values.pop, key, None).atexit = False
    return kept
