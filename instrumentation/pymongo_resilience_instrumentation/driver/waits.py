"""Where pymongo waits for a server, for its pool and for a socket, and how long it still may.

Measured on 4.17 to 4.20, under a deadline: selection has all the time that is left and looks at the
clock every half second, a checkout has all of it again, and connecting does not ask for
connectTimeoutMS.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience_instrumentation import calls

from .deadline import TIMEOUT, DeadlineWithin, RunningTimeout, now, remaining
from .interruptions import topology_classes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from types import ModuleType

SELECTION_TIMEOUT = "get_server_selection_timeout"
HANDSHAKE = "connect"
"""Of a pool: the socket, hello and authentication."""


class Half(NamedTuple):
    """One of pymongo's two APIs, with what its modules call by a name of their own."""

    name: str
    wait: str
    connect: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"pymongo.{self.name}.{name}")


SYNC_HALF = Half("synchronous", "_cond_wait", "_configured_socket_interface")
ASYNC_HALF = Half("asynchronous", "_async_cond_wait", "_configured_protocol_interface")
RESOLUTION = 0.001
"""Seconds. The driver looks at its own clock after a wait, and it began a moment after ours."""


def selection_timeout_owners() -> tuple[type, ...]:
    return topology_owners(SELECTION_TIMEOUT)


def topology_owners(name: str) -> tuple[type, ...]:
    """The classes that define a method: each topology class, or what both derive from (4.20)."""
    owners = [
        next(cls for cls in topology.__mro__ if name in vars(cls))
        for topology in topology_classes()
    ]
    return tuple(dict.fromkeys(owners))


def begin_selection(topology: Any, timeout: float) -> float:
    """Seconds that a selection may take, of the ``timeout`` that the driver gives it.

    The checkout that follows has what the selection leaves of them, and so has its connecting.
    """
    own: float = topology._settings.server_selection_timeout
    call = calls.current()
    if call is not None:
        # With 0 the servers are looked at once. A connection cannot be made in no time.
        call.waits_until = now() + (own or float("inf"))
    return min(timeout, own)


def time_to_wait() -> float | None:
    """Seconds that selection, checkout and connecting still have; None where nothing limits them.

    Under a timeout of 0 the selection's own limit is all there is.
    """
    if TIMEOUT.get() is None:
        return None
    left, call = remaining(), calls.current()
    if call is None:
        return left
    own = call.waits_until - now()
    if left is None:
        return None if own == calls.NEVER else own
    return min(left, own)


def shortened(timeout: float | None, *, of_pool: bool) -> float | None:
    """``timeout``, or as much of it as is left. None is without end.

    ``of_pool``: under a timeout of 0 the driver gives the older waitQueueTimeoutMS, which any
    timeout sets aside.
    """
    left = time_to_wait()
    if left is None:
        return timeout
    left = max(left, RESOLUTION)
    aside = of_pool and not TIMEOUT.get()
    return left if timeout is None or aside else min(timeout, left)


def within_wait(seconds: float) -> AbstractContextManager[None]:
    """What is in it ends within so many seconds, also where a timeout of 0 is in force."""
    if TIMEOUT.get():
        return DeadlineWithin(seconds)
    return RunningTimeout.anew(max(seconds, RESOLUTION)).resume()


def time_to_connect(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Seconds to establish a socket in, given the arguments; None leaves it to the driver."""
    left = time_to_wait()
    if left is None:
        return None
    own: float | None = _pool_options(args, kwargs).connect_timeout
    return left if own is None else min(left, own)


def connects_for_an_operation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a pool's ``connect`` is called by a check-out, given its arguments: monitors, and
    what keeps ``minPoolSize``, have no handler."""
    return (args[0] if args else kwargs.get("handler")) is not None


def connects_with_tls(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a TLS handshake follows, given the arguments."""
    return _pool_options(args, kwargs)._ssl_context is not None


def _pool_options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs["options"]


SELECTING = "_select_servers_loop"


def waits_for_server(client: Any, condition: Any) -> bool:
    """Whether ``condition`` is what the selections of the client wait for."""
    topology = client._topology
    return topology is not None and topology._condition is condition


def wake_selections(client: Any) -> None:
    """Of a client that was closed: each finds that out at once, and not with its next look."""
    topology = client._topology
    if topology is not None:
        with topology._condition:
            topology._condition.notify_all()


async def wake_selections_async(client: Any) -> None:
    """As ``wake_selections``."""
    topology = client._topology
    if topology is not None:
        async with topology._condition:
            topology._condition.notify_all()


def seeds(topology: Any) -> list[Any]:
    """The addresses that the client was made with: what is left where no server is."""
    return list(topology._seed_addresses)


def cancel_checks(client: Any, addresses: Iterable[Any]) -> None:
    """Have the servers checked anew, also where the check that runs is one that waits for news.

    What pymongo does after network errors. To be called with the topology's lock held.
    """
    servers = client._topology._servers
    for address in addresses:
        if address in servers:
            servers[address]._monitor.cancel_check()


def forget_transient(error: Any) -> None:
    """Whoever runs a transaction must not repeat it: pymongo labels every failed selection so."""
    error._remove_error_label("TransientTransactionError")


def log_failed_selection(failure: str) -> None:
    """The driver's own "Server selection failed", for the selection that the caller runs inside of.

    pymongo logs where it raises, and we raise elsewhere. What it needs is in a local variable of
    the function that waits, and None there unless somebody wants the log. pymongo 4.17 has no such
    variable, and logs no end then.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == SELECTING:
            telemetry = frame.f_locals.get("ss")
            if telemetry is not None:
                telemetry.failed(failure, frame.f_locals["self"].description)
            return
