"""The readiness of a client over time: the results of looking at it, and since when they hold."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """The result of looking at a client once. Times are seconds on a monotonic clock."""

    can_write: bool
    can_read: bool
    why_not: str
    """What is wrong, in one sentence; empty if nothing is wrong."""
    is_hopeless: bool = False
    """True if waiting cannot help."""
    began: float | None = None
    """When the problem began, if known."""


class Ability(NamedTuple):
    """Whether writes, or reads, are possible, and since when."""

    is_able: bool
    since: float
    was_able: bool = False
    """True if they were possible before."""

    def after(self, is_able: bool, now: float, began: float | None) -> Ability:
        """Return the ability after another look, at the time ``now``."""
        if is_able == self.is_able:
            return self
        if is_able or began is None:
            return Ability(is_able, now, self.is_able)
        # The problem may have begun before this look, but not before the last change.
        return Ability(is_able, min(now, max(began, self.since)), self.is_able)

    def is_ready(self, now: float, grace: float, *, is_hopeless: bool) -> bool:
        """Return True if operations are possible, or were possible less than ``grace`` seconds ago
        and waiting may help.
        """
        if self.is_able:
            return True
        # The grace period lets a probe survive an election. A client that was never able is not
        # ready, so that a deployment with a wrong URI does not go live.
        return self.was_able and not is_hopeless and now - self.since < grace


class ReadyState(NamedTuple):
    """The readiness of a client after looking at it. Immutable, so thread- and task-safe."""

    look: Look
    write: Ability
    read: Ability

    @classmethod
    def first(cls, look: Look, now: float) -> ReadyState:
        return cls(look, Ability(look.can_write, now), Ability(look.can_read, now))

    def after(self, look: Look, now: float) -> ReadyState:
        """Return the state after another look."""
        return ReadyState(
            look,
            self.write.after(look.can_write, now, look.began),
            self.read.after(look.can_read, now, look.began),
        )

    @property
    def since(self) -> float:
        """When the current problem began, or without a problem, since when there is none."""
        lost = [each.since for each in (self.write, self.read) if not each.is_able]
        return min(lost) if lost else max(self.write.since, self.read.since)

    def ready(self, now: float, grace: float) -> tuple[bool, bool]:
        """Return whether the client counts as ready to write, and as ready to read."""
        hopeless = self.look.is_hopeless
        return (
            self.write.is_ready(now, grace, is_hopeless=hopeless),
            self.read.is_ready(now, grace, is_hopeless=hopeless),
        )
