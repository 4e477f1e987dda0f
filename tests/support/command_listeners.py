"""An application's listeners of commands, made of what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo.monitoring import CommandListener


def _nothing(_: Any) -> None: ...


class OnCommands(CommandListener):
    """Calls each with the driver's events of its kind."""

    def __init__(
        self,
        *,
        started: Callable[[Any], object] = _nothing,
        succeeded: Callable[[Any], object] = _nothing,
        failed: Callable[[Any], object] = _nothing,
    ) -> None:
        self._started, self._succeeded, self._failed = started, succeeded, failed

    def started(self, event: Any) -> None:
        self._started(event)

    def succeeded(self, event: Any) -> None:
        self._succeeded(event)

    def failed(self, event: Any) -> None:
        self._failed(event)


class Inside(OnCommands):
    """Does something once, inside of the next command."""

    def __init__(self) -> None:
        super().__init__(started=self._act_once)
        self.act: Callable[[], Any] | None = None

    def _act_once(self, _: Any) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
