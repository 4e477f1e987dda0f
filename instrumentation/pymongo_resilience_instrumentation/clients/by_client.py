"""What is kept for a client that cannot carry it: found by its identity, gone with it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

T = TypeVar("T")


def keep(values: MutableMapping[int, T], client: object, made: T) -> T:
    """What ``values`` has for the client; ``made`` where it has nothing yet. Holds it not alive:
    two clients of the same servers count as equal, so no weak mapping would do."""
    key = id(client)
    kept = values.setdefault(key, made)
    if kept is made:
        weakref.finalize(client, values.pop, key, None).atexit = False
    return kept


class HasLocks(Protocol):
    """What a forked child must not take over as it is."""

    def reset_after_fork(self) -> None: ...


K = TypeVar("K", bound=HasLocks)


class ByClient(Generic[K]):
    """A value for each client, made when it is first asked for. Thread- and task-safe."""

    def __init__(self, make: Callable[[object], K]) -> None:
        self._make = make
        self._values: dict[int, K] = {}

    def of(self, client: object) -> K:
        """The client's; one that was made before ``instrument()`` gets its own here."""
        found = self._values.get(id(client))
        return keep(self._values, client, self._make(client)) if found is None else found

    def known(self, client: object) -> K | None:
        """None where nobody has asked for the client's yet."""
        return self._values.get(id(client))

    def all(self) -> list[K]:
        return list(self._values.values())

    def reset_after_fork(self) -> None:
        for each in self.all():
            each.reset_after_fork()
