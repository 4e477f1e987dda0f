"""Timeouts of an older kind, which a deadline sets aside: logged once for each client and option.

Source: Client Side Operations Timeout, "Deprecations". What a ``command()`` document holds is the
application's affair and never looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.operations.write_operations import WRITES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pymongo_resilience_instrumentation.calls import Call


MAX_TIME = ("max_time_ms", "maxTimeMS")
"""The keywords of pymongo's methods for one and the same option."""


class DeprecatedOptions:
    """The options already warned of, by identity: clients of the same servers are equal.

    Keeps no client alive. Thread-safe, but two threads may both log the first warning.
    """

    def __init__(self, timeout_ms: int | None) -> None:
        """``timeout_ms``: what every operation has, unless its client says otherwise."""
        self._default = None if timeout_ms is None else timeout_ms / 1000
        self._warned: dict[int, set[str]] = {}

    def register(self, client: object) -> None:
        """A client that exists, or was made: its own options, where all it does has a timeout."""
        with shielded("before the calls of a client"):
            self._register(client)

    def _register(self, client: Any) -> None:
        options = client.options
        timeout = self._default if options.timeout is None else options.timeout
        if timeout is None:
            return
        pool, concern = options.pool_options, options.write_concern.document
        given = {
            "socketTimeoutMS": pool.socket_timeout,
            "waitQueueTimeoutMS": pool.wait_queue_timeout,
            "wtimeout": concern.get("wtimeout"),
        }
        self._warn(client, (name for name, value in given.items() if value is not None))

    def of_method(self, call: Call, keywords: Mapping[str, Any], concern: Any) -> None:
        """What a method of the public API is given under a timeout, its object's write concern
        among it."""
        with shielded(f"before {call.operation}"):
            if call.operation != "runCommand" and any(
                keywords.get(name) is not None for name in MAX_TIME
            ):
                self._warn(call.client, ["maxTimeMS"])
            if call.operation in WRITES and concern is not None and "wtimeout" in concern.document:
                self._warn(call.client, ["wtimeout"])

    def of_batch(self, call: Call, batch: object) -> None:
        """What a cursor was given before."""
        with shielded(f"before {call.operation}"):
            if driver.csot.has_max_time(batch):
                self._warn(call.client, ["maxTimeMS"])

    def of_commit(self, call: Call, session: object) -> None:
        """What its transaction was given before."""
        with shielded(f"before {call.operation}"):
            if driver.csot.has_max_commit_time(session):
                self._warn(call.client, ["maxCommitTimeMS"])

    def _warn(self, client: object, options: Iterable[str]) -> None:
        for option in options:
            warned = keep(self._warned, client, set())
            if option not in warned:
                warned.add(option)
                logger.warning(
                    "%s is ignored where an operation has a timeout (timeout_ms, timeoutMS or "
                    "pymongo.timeout): give a shorter one there; further cases of this client are "
                    "not logged",
                    option,
                )
