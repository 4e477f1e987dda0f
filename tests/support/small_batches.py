"""A server that takes few writes in one command, so that a bulk write is several commands."""

from __future__ import annotations

from typing import Any

from pymongo_resilience.testbed import Fail, Interception


class SmallBatches(Interception):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self._size = size

    def on_hello(self, reply: Any) -> None:
        reply["maxWriteBatchSize"] = self._size


class FailsLater(Fail):
    """Lets so many commands of its name pass."""

    def __init__(self, passing: int, command: str, times: int, **more: Any) -> None:
        super().__init__(command, times, **more)
        self._passing = passing

    def on_request(self, request: Any, connection: Any) -> Any:
        if self._passing and request.command_name == self._command:
            self._passing -= 1
            return None
        return super().on_request(request, connection)
