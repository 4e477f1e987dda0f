"""What a client's pool does with its connections."""

from __future__ import annotations

from typing import Any

from pymongo import monitoring


class Closed(monitoring.ConnectionPoolListener):
    """How many connections were made, and why any was closed."""

    def __init__(self) -> None:
        self.made = 0
        self.reasons: list[str] = []

    def connection_created(self, event: Any) -> None:
        self.made += 1

    def connection_closed(self, event: Any) -> None:
        self.reasons.append(event.reason)

    def __getattribute__(self, name: str) -> Any:
        known = name.startswith("__") or name in vars(Closed) or name in {"made", "reasons"}
        return object.__getattribute__(self, name) if known else lambda event: None
