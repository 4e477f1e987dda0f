"""Which servers may answer a read (Server Selection, "Read Preference")."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

TagSet = Mapping[str, object]
NO_MAXIMUM = -1
"""What the specifications and the driver write for "no maximum staleness"."""


class Mode(enum.Enum):
    """The five modes. The values are the names that a ``$readPreference`` holds."""

    PRIMARY = "primary"
    PRIMARY_PREFERRED = "primaryPreferred"
    SECONDARY = "secondary"
    SECONDARY_PREFERRED = "secondaryPreferred"
    NEAREST = "nearest"


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """Mode, tag sets and maximum staleness. Immutable, so thread- and task-safe.

    Raises ValueError for a maximum staleness that is no positive number, and for the mode
    ``primary`` with anything else. Whether a maximum is too small depends on how often servers are
    checked: see ``staleness.check_maximum``.
    """

    mode: Mode = Mode.PRIMARY
    tag_sets: Sequence[TagSet] = ({},)
    """Tried in order; an empty list matches every server, as does an empty tag set."""
    max_staleness: float | None = None
    """In seconds; None or -1 for no maximum."""

    def __post_init__(self) -> None:
        limit = self.staleness_limit
        if limit is not None and not limit > 0:
            raise ValueError(f"maxStalenessSeconds must be a positive number, not {limit}")
        if self.mode is not Mode.PRIMARY:
            return
        if limit is not None:
            raise ValueError("read preference mode primary cannot have a maxStalenessSeconds")
        if any(self.tag_sets):
            raise ValueError("read preference mode primary cannot have tag sets")

    @property
    def staleness_limit(self) -> float | None:
        """The maximum staleness in seconds, if there is one."""
        return None if self.max_staleness == NO_MAXIMUM else self.max_staleness


PRIMARY: Final = ReadPreference()
