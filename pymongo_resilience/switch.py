"""Whether the instrumentation acts: one switch for each ``instrument()``, thrown by its end."""

from __future__ import annotations


class Switch:
    """What is still wrapped or still listening passes through while its switch is off."""

    __slots__ = ("on",)

    def __init__(self, *, on: bool = False) -> None:
        self.on = on


current = Switch()
"""The switch of the latest ``instrument()`` in this process."""
