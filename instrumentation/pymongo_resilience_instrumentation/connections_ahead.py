"""What runs in place of the handshake of a connection that the pool makes ahead (``minPoolSize``).

No operation waits for it, so no operation's timeout is its own: each step has the client's.
Source: Client Side Operations Timeout, "Background Connection Pooling".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.within import within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.methods import Method
    from pymongo_resilience_instrumentation.runtime import Runtime


def wrapped(runtime: Runtime) -> Iterator[tuple[type, str, Method]]:
    """A class, the name of its method, and what runs in its place."""
    for connection, asynchronous in driver.connection_classes():
        for name in driver.HANDSHAKE_STEPS:
            yield connection, name, _step(runtime, asynchronous)


def _step(runtime: Runtime, asynchronous: bool) -> Method:
    def begin(connection: Any) -> AbstractContextManager[None]:
        if calls.current() is not None or driver.timeout_in_force() is not None:
            return NO_DEADLINE
        client = driver.client_of_connection(connection)
        seconds = None if client is None else client.options.timeout
        return driver.RunningTimeout.anew(seconds).resume() if seconds else NO_DEADLINE

    return within(runtime, begin, asynchronous)
