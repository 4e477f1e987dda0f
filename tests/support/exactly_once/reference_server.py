"""A MongoDB server reduced to what decides whether a write is applied once.

It has documents, transaction numbers with the statements that were executed under each, one
transaction, and messages that are still on their way. Nothing of the library is used here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Command(NamedTuple):
    """One command of an operation, as the client sends it at each attempt."""

    effects: tuple[str, ...]
    """One for each statement; each names what it changes. Empty for a read."""
    numbered: bool = False
    """It is sent with a transaction number: the server recognizes statements it has executed."""


@dataclass
class ReferenceServer:
    """The servers of one deployment, behind whichever of them is the primary."""

    applied: Counter[str] = field(default_factory=Counter)
    """How often each effect happened."""
    executed: dict[int, set[str]] = field(default_factory=dict)
    """By transaction number: the statements that were executed under it."""
    delayed: list[tuple[Command, int | None]] = field(default_factory=list)
    """Messages that are still in the network after their sender gave them up."""

    def execute(self, command: Command, number: int | None, statements: int | None = None) -> None:
        """Execute the command, or its first ``statements``, as a server does.

        With a ``number``, statements that were executed under it before are not executed again.
        """
        done = set[str]() if number is None else self.executed.setdefault(number, set())
        for effect in command.effects[:statements]:
            if effect not in done:
                self.applied[effect] += 1
                done.add(effect)

    def roll_back(self, command: Command, number: int | None) -> None:
        """An election loses the command's effects and its transaction number."""
        for effect in command.effects:
            self.applied[effect] = 0
        if number is not None:
            self.executed.pop(number, None)

    def delay(self, command: Command, number: int | None) -> None:
        """Keep a message whose sender lost its connection; it arrives after everything else."""
        self.delayed.append((command, number))

    def deliver_delayed(self) -> None:
        """What is still in the network arrives, and is executed as any other command."""
        for command, number in self.delayed:
            self.execute(command, number)
        self.delayed.clear()

    def copy(self) -> ReferenceServer:
        """Return a server in the same state."""
        executed = {number: set(done) for number, done in self.executed.items()}
        return ReferenceServer(Counter(self.applied), executed, [*self.delayed])

    def key(self) -> object:
        """Return a value that is equal for servers in the same state."""
        executed = frozenset((number, frozenset(done)) for number, done in self.executed.items())
        applied = frozenset(each for each in self.applied.items() if each[1])
        return applied, executed, tuple(self.delayed)
