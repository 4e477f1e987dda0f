"""An application's listener that runs something of its own inside of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo


class Inside(pymongo.monitoring.CommandListener):
    """An application's listener that does something once, inside of the next command."""

    def __init__(self) -> None:
        self.act: Callable[[], Any] | None = None

    def started(self, event: Any) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass
