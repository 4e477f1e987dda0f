"""Whether a client is ready, over time: what one look has found, and for how long."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """What one look at a client has found. Times are seconds on a monotonic clock."""

    can_write: bool
    can_read: bool
    why_not: str
    """What is wrong, in one sentence; empty if nothing is."""
    is_hopeless: bool = False
    """It will not pass by waiting."""
    began: float | None = None
    """When what is wrong began, if that is known."""


class Ability(NamedTuple):
    """Whether writes, or reads, are possible, and since when."""

    is_able: bool
    since: float
    was_able: bool = False
    """It was, before it was lost."""

    def after(self, is_able: bool, now: float, began: float | None) -> Ability:
        """Return the ability after a look at ``now``."""
        if is_able == self.is_able:
            return self
        if is_able or began is None:
            return Ability(is_able, now, self.is_able)
        return Ability(is_able, min(now, max(began, self.since)), self.is_able)

    def is_ready(self, now: float, grace: float, *, is_hopeless: bool) -> bool:
        """Return True if it is there, or was lost less than ``grace`` seconds ago and may come
        back."""
        if self.is_able:
            return True
        return self.was_able and not is_hopeless and now - self.since < grace


class ReadyState(NamedTuple):
    """What is known after a look. Immutable, so thread- and task-safe."""

    look: Look
    write: Ability
    read: Ability

    @classmethod
    def first(cls, look: Look, now: float) -> ReadyState:
        return cls(look, Ability(look.can_write, now), Ability(look.can_read, now))

    def after(self, look: Look, now: float) -> ReadyState:
        """Return what is known after another look."""
        return ReadyState(
            look,
            self.write.after(look.can_write, now, look.began),
            self.read.after(look.can_read, now, look.began),
        )

    @property
    def since(self) -> float:
        """When what is wrong began; if nothing is, since when all is well."""
        lost = [each.since for each in (self.write, self.read) if not each.is_able]
        return min(lost) if lost else max(self.write.since, self.read.since)

    def ready(self, now: float, grace: float) -> tuple[bool, bool]:
        """Return whether it counts as ready to write, and to read."""
        hopeless = self.look.is_hopeless
        return (
            self.write.is_ready(now, grace, is_hopeless=hopeless),
            self.read.is_ready(now, grace, is_hopeless=hopeless),
        )
