"""What the tests of waits share."""

from __future__ import annotations

from typing import Any

import pymongo
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation import driver
from support.clients import Side, wait_until

from pymongo_resilience.testing import set_active

NOBODY = "mongodb://127.0.0.1:1/"
PLENTY_MS = 20_000
"""Of a deadline that is not to be reached."""


def half_of(side: Side) -> Any:
    return driver.clients.SYNC_API if side.runner is None else driver.clients.ASYNC_API


def wait_for_server(side: Side, client: Any) -> None:
    """Before a timeout that is short: on a busy machine, making the first connection takes longer.

    No timeout holds for it, and nothing of it is seen, but for the client's own listeners.
    """

    def answers() -> bool:
        try:
            return bool(side.do(client.admin.command, "ping"))
        except AutoReconnect:
            return False

    if side.runner is not None:
        # Its background tasks keep the context that they are started in.
        side.do(client.aconnect)
    with set_active(False), pymongo.timeout(0):
        wait_until(answers)
