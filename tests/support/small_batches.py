"""A server that takes few writes in one command, so that a bulk write is several commands."""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.tools.testbed.fault import Interception


class SmallBatches(Interception):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self._size = size

    def on_hello(self, reply: Any) -> None:
        reply["maxWriteBatchSize"] = self._size
