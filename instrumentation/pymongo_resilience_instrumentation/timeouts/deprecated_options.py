"""Timeouts of an older kind, which a deadline sets aside: logged once for each client and option.

Source: Client Side Operations Timeout, "Deprecations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience_instrumentation.clients.by_client import keep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience_instrumentation.calls import Call


class DeprecatedOptions:
    """The options already warned of, by identity: clients of the same servers are equal.

    Keeps no client alive. Thread-safe, but two threads may both log the first warning.
    """

    def __init__(self, timeout_ms: int | None) -> None:
        """``timeout_ms``: what every operation has, unless its client says otherwise."""
        self._default = timeout_ms
        self._warned: dict[int, set[str]] = {}

    def register(self, client: Any) -> None:
        """The options of a client, where all it does has a timeout."""
        with shielded("before the calls of a client"):
            options = client.options
            if options.timeout is None and self._default is None:
                return
            pool, concern = options.pool_options, options.write_concern.document
            self.warn(
                client,
                socketTimeoutMS=pool.socket_timeout,
                waitQueueTimeoutMS=pool.wait_queue_timeout,
                wtimeout=concern.get("wtimeout"),
            )

    def of_method(self, call: Call, keywords: Mapping[str, Any]) -> None:
        """What a method is called with under a timeout; a ``command()`` is the application's."""
        with shielded(f"before {call.operation}"):
            if call.operation != "runCommand":
                own = keywords.get("max_time_ms", keywords.get("maxTimeMS"))
                self.warn(call.client, maxTimeMS=own)

    def warn(self, client: object, **options: Any) -> None:
        """Options that are ignored; None is one that was not given."""
        for option, value in options.items():
            warned = None if value is None else keep(self._warned, client, set())
            if warned is not None and option not in warned:
                warned.add(option)
                logger.warning(
                    "%s is ignored where an operation has a timeout (timeout_ms, timeoutMS or "
                    "pymongo.timeout): give a shorter one there; further cases of this client are "
                    "not logged",
                    option,
                )
