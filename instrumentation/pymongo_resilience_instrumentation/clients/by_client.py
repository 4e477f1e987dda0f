"""What is kept for a client that cannot carry it: found by its identity, gone with it.

And what its background task is to do once more than pymongo has it do.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

T = TypeVar("T")


def keep(values: MutableMapping[int, T], client: object, made: T) -> T:
    """What ``values`` has for the client; ``made`` where it has nothing yet. Holds it not alive:
    two clients of the same servers count as equal, so no weak mapping would do."""
    key = id(client)
    kept = values.setdefault(key, made)
    if kept is made:
        weakref.finalize(client, values.pop, key, None).atexit = False
    return kept


MOST = 1000
"""What is left for one task: where it does not run, nothing may grow for ever."""
_left: dict[int, deque[Callable[[], Any]]] = {}


def leave(client: object, work: Callable[[], Any]) -> None:
    """Have the next run of the client's task call it; an async client's awaits what it returns."""
    keep(_left, client, deque(maxlen=MOST)).append(work)


def taken(client: object) -> Iterator[Callable[[], Any]]:
    """For that task alone."""
    left = _left.get(id(client), deque())
    for _ in range(len(left)):  # what they leave in turn has the next run
        yield left.popleft()


def reset_after_fork() -> None:
    """In a forked child: what is left is the parent's."""
    _left.clear()
