"""The fault script of the demonstration: its phases in order, and the faults of each operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pymongo_resilience_instrumentation.tools.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    Fault,
    NotPrimary,
    Overload,
    SilentPrimary,
    Slow,
)

from .workload import Kind

MAX_IDLE: Final = 0.2
"""Seconds without use after which the clients of all sides close a connection (maxIdleTimeMS)."""
_GAP: Final = 0.2
_SILENT: Final = 2.0
_BASE_BACKOFF: Final = 0.02
_DELAY: Final = 0.03
_CALM_BETWEEN: Final = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """One operation, and the faults that it meets."""

    kind: Kind
    faults: Callable[[], list[Fault]] = list
    """Creates the faults, once for each side."""
    idle: float = 0.0
    """Seconds without any operation before it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the script."""

    name: str
    share: float
    """The part of the whole duration that it takes."""
    trouble: tuple[Scene, ...] = ()
    """The scenes with faults. Each is played at least once, even if that takes longer."""
    calm: Callable[[], list[Fault]] = list
    """Creates the faults of the operations between these scenes; by default none."""

    def scenes(self, seed: int) -> Iterator[Scene]:
        """Yield scenes without end. The same seed yields the same scenes, and the first
        ``shortest`` of them include every fault.
        """
        rng = random.Random(f"{seed}/{self.name}")  # noqa: S311 (a script, no secret)
        while True:
            troubles = rng.sample(self.trouble, len(self.trouble)) or [Scene(Kind.FIND, self.calm)]
            for trouble in troubles:
                for kind in rng.choices(list(Kind), k=_CALM_BETWEEN):
                    yield Scene(kind, self.calm)
                yield trouble

    @property
    def shortest(self) -> int:
        """The number of scenes after which every scene with faults was played once."""
        return max(1, len(self.trouble)) * (_CALM_BETWEEN + 1)


def _after_idleness(kind: Kind, times: int) -> Scene:
    """Close idle connections, so that the next operation begins with a handshake."""
    return Scene(kind, lambda: [CutAtHandshake(times)], idle=1.25 * MAX_IDLE)


TIMELINE: Final = (
    Phase("healthy", 0.1),
    Phase("handshake cut", 0.1, (
        _after_idleness(Kind.BULK, times=1),
        _after_idleness(Kind.INSERT, times=3),
        _after_idleness(Kind.FIND, times=2),
    )),
    Phase("cut before", 0.125, (
        Scene(Kind.INSERT, lambda: [CutBefore(times=2)]),
        Scene(Kind.FIND, lambda: [CutBefore(times=2)]),
        Scene(Kind.UPDATE, lambda: [CutBefore(times=1)]),
    )),
    Phase("cut after", 0.125, (
        Scene(Kind.INSERT, lambda: [CutAfter(times=2)]),
        Scene(Kind.UPDATE, lambda: [CutAfter(times=2)]),
        Scene(Kind.BULK, lambda: [CutAfter("update", times=2)]),
    )),
    Phase("step-down", 0.15, (
        # The new primary refuses one more write before it has caught up.
        Scene(Kind.UPDATE, lambda: [Election(_GAP), NotPrimary(times=1)]),
        Scene(Kind.INSERT, lambda: [NotPrimary(times=2)]),
    )),
    # Another member is elected, but operations that wait for the old primary get no answer.
    Phase("silent primary", 0.15, tuple(
        Scene(kind, lambda: [SilentPrimary(_SILENT, gap=_GAP / 2)])
        for kind in (Kind.UPDATE, Kind.INSERT, Kind.BULK)
    )),
    Phase("overload", 0.1, (
        Scene(Kind.UPDATE, lambda: [Overload("update", times=3, base_backoff=_BASE_BACKOFF)]),
        Scene(Kind.FIND, lambda: [Overload("find", times=4, base_backoff=_BASE_BACKOFF)]),
        Scene(Kind.BULK, lambda: [Overload("update", times=2, base_backoff=_BASE_BACKOFF)]),
    )),
    Phase("slow server", 0.075, calm=lambda: [Slow(_DELAY)]),
    Phase("recovery", 0.075),
)  # fmt: skip
