"""Live spans of the SDK as copies of one that its tracer has made."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import SpanContext

CONTAINERS = ("_attributes", "_events", "_links")
OWN = frozenset({"_context", "_dict", "_dq", "_lock", "_name", "_parent", "_start_time"})
"""What else two live spans of a tracer do not share, nor do their containers."""


class Copies:
    """Of one object; immutable, so thread- and task-safe."""

    __slots__ = ("_shared", "_type")

    def __init__(self, original: object) -> None:
        self._type = type(original)
        self._shared = dict(vars(original).items())
        """A plain dictionary is copied as a whole, an object's item by item."""

    def copy(self, own: dict[str, Any]) -> Any:
        """One with these attributes of its own."""
        made = object.__new__(self._type)
        made.__dict__ = self._shared | own
        return made


class SpanCopies:
    """Of a live span that has no attributes, events or links. Thread- and task-safe."""

    def __init__(self, live: Any) -> None:
        self._span = Copies(live)
        self._attributes, self._events, self._links = (
            Copies(getattr(live, name)) for name in CONTAINERS
        )
        plain = type(live._attributes._lock) is type(threading.Lock())
        self._attributes_lock: Callable[[], Any] = threading.Lock if plain else threading.RLock
        self._event_queue, self._link_queue = live._events._dq.copy(), live._links._dq.copy()

    def start(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        resource: object,
        attributes: Mapping[str, Any],
    ) -> Any:
        """One that begins now."""
        lock = threading.Lock
        return self._span.copy({
            "_name": name,
            "_context": context,
            "_parent": parent,
            "_resource": resource,
            "_lock": lock(),
            "_attributes": self._attributes.copy({
                "_dict": {**attributes}, "_lock": self._attributes_lock()
            }),
            "_events": self._events.copy({"_dq": self._event_queue.copy(), "_lock": lock()}),
            "_links": self._links.copy({"_dq": self._link_queue.copy(), "_lock": lock()}),
            "_start_time": time.time_ns(),
        })  # fmt: skip


def alike(live: Any, made: Any) -> bool:
    """Whether ``made`` has all that ``live`` has, and shares what two live ones share."""
    if type(made) is not type(live) or made.__dict__.keys() != live.__dict__.keys():
        return False
    pairs = {name: (each, made.__dict__[name]) for name, each in live.__dict__.items()}
    return all(
        alike(one, other)
        if name in CONTAINERS
        else one is other or (name in OWN and type(one) is type(other))
        for name, (one, other) in pairs.items()
    )
