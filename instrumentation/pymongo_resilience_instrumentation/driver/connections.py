"""pymongo's pools of connections, the socket under a connection, and where every acknowledged
command passes with its client, before it is encoded: ``send_cluster_time`` of a connection, after
session and server API were put on. Left out are unacknowledged bulk writes, which have no session.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pymongo.server_type import SERVER_TYPE

from .clients import classes, defining, each_api, server_at, topology_of
from .csot import RTT

if TYPE_CHECKING:
    from pymongo.hello import Hello

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.selection.second_look import Look

    from .protocols import Client, Command, Connection, NetworkInterface, Pool, Topology

OUT_OF_TIME = "_raise_wait_queue_timeout"
"""A pool's method, for an operation that has waited for a connection as long as it may."""
FAILED = "_raise_connection_failure"
"""A connection's method: called with what ended it, before its socket is closed."""
HELLO = "hello"
"""A connection's method: the handshake of one that operations use, and no monitor."""
CAN_WAKE = sys.platform not in {"win32", "cygwin", "emscripten", "wasi"}
"""Whether a read ends when another thread shuts its socket down."""
_DROP_TIME = 0x80
"""macOS: TCP_RXT_CONNDROPTIME, which Python does not name."""
_STATE, _RETRANSMITS, _PROBES, _UNACKNOWLEDGED, _SINCE_DATA, _SINCE_ACKNOWLEDGED = (
    0,
    2,
    3,
    12,
    19,
    20,
)
_CLOSED, _INFO = 7, struct.Struct("8B24I")
"""Linux: of a TCP_INFO, the state; how often in a row the oldest segment was sent again, or a peer
that has no room was asked for some, without an answer; how many segments are not acknowledged; the
milliseconds since the peer's last data and its last acknowledgement."""
_UNANSWERED = 2
"""So many of either, beside the time: one packet may be lost."""
_REASON, _LOST = "_pymongo_resilience_reason", "_pymongo_resilience_lost"
_REFUSED, _LOOK = "_pymongo_resilience_refused", "_pymongo_resilience_look"


def watch_peer(interface: NetworkInterface, seconds: int, *, is_monitor_pool: bool) -> None:
    """Have the kernel close the connection ``seconds`` after the peer's last packet, as long as
    everything that was sent is acknowledged; a monitor's in any case. See ``peer_is_gone``."""
    # Of a closed socket, asyncio's raises OSError and uvloop's ValueError.
    with suppress(OSError, ValueError):
        if interface.sock.family != socket.AF_UNIX:
            _watch(interface.sock, seconds, is_monitor_pool=is_monitor_pool)


def _watch(sock: socket.socket, seconds: int, *, is_monitor_pool: bool) -> None:
    tcp, idle, interval = socket.IPPROTO_TCP, max(1, seconds * 2 // 5), max(1, seconds // 5)
    if sys.platform == "darwin":
        sock.setsockopt(tcp, socket.TCP_KEEPALIVE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(tcp, _DROP_TIME, seconds)
    else:
        sock.setsockopt(tcp, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        if is_monitor_pool:
            # Linux counts the time in which a peer has no room for more, although its kernel
            # answers each probe: with large writes, a server that is merely slow would be lost.
            sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, seconds * 1000)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, interval)


@functools.cache
def can_watch() -> bool:
    """Whether Python and the kernel know these options: tried on a socket of its own."""
    try:
        with socket.socket() as unused:
            _watch(unused, 1, is_monitor_pool=True)
    except (AttributeError, OSError):
        return False
    return True


def peer_was_silent(connection: Connection, error: Exception, seconds: int) -> bool:
    """Whether ``error`` ended the connection because nothing came from its peer. Before the socket
    is closed: pymongo's read takes the kernel's error for one of its own looks at the clock."""
    if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
        return True
    facts = _facts(connection)
    if facts is None:
        return False
    # pymongo interrupts the connection if its monitor, on the same path, was the first to fail.
    unanswered = max(facts[_RETRANSMITS], facts[_PROBES]) >= _UNANSWERED
    silent = facts[_SINCE_ACKNOWLEDGED] >= seconds * 1000
    return silent and (facts[_STATE] == _CLOSED or unanswered)


def peer_is_gone(connection: Connection, seconds: int) -> bool:
    """Whether what was sent is not acknowledged although it was sent again, for so many seconds. A
    peer that reads nothing still acknowledges each probe, so it is not gone. Linux only."""
    facts = _facts(connection)
    if facts is None or facts[_SINCE_ACKNOWLEDGED] < seconds * 1000:
        return False
    sent_again = facts[_UNACKNOWLEDGED] > 0 and facts[_RETRANSMITS] >= _UNANSWERED
    return bool(sent_again or facts[_PROBES] > _UNANSWERED)


def ignore_transient_state(connection: Connection, hello: Hello[Any]) -> None:
    """A member that is neither primary nor secondary when it answers a handshake, as while it steps
    down, soon is: the connection must not lack sessions, nor its pool unacknowledged writes."""
    sessions = hello.logical_session_timeout_minutes is not None
    if sessions and hello.server_type in {SERVER_TYPE.RSOther, SERVER_TYPE.RSGhost}:
        connection.supports_sessions = True
        pool = connection.pool_ref()
        if pool is not None:
            connection.is_writable = bool(pool.is_writable)


def is_of(connection: Connection, pool: Pool) -> bool:
    """Whether it is one of the pool's, and open."""
    return connection.pool_ref() is pool and not connection.closed


def is_silent_for(connection: Connection, seconds: float) -> bool:
    """True also where the system does not report it."""
    facts = _facts(connection)
    return facts is None or bool(facts[_SINCE_DATA] >= seconds * 1000)


def _facts(connection: Connection) -> tuple[int, ...] | None:
    try:
        found = connection.conn.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        return _INFO.unpack(found)
    except (OSError, ValueError, AttributeError, struct.error):  # closed, no TCP, or no Linux
        return None


def end(connection: Connection, reason: OSError) -> None:
    """Have what waits for a reply on the connection fail for that reason."""
    vars(connection)[_REASON] = reason
    connection.cancel_context.cancel()
    if CAN_WAKE:
        shut_down(connection)


def reason_of(connection: Connection) -> OSError | None:
    """Why it was ended, once."""
    found: OSError | None = vars(connection).pop(_REASON, None)
    return found


def count_lost(connection: Connection, reason: str) -> None:
    """Count it, unless the pool is a monitor's."""
    pool = connection.pool_ref()
    if pool is not None and not pool.is_sdam:
        counts = lost(pool)
        setattr(pool, _LOST, counts | {reason: counts.get(reason, 0) + 1})


def lost(pool: Pool | None) -> dict[str, int]:
    """How many of a pool's connections were ended for which reason; none for no pool."""
    return dict(getattr(pool, _LOST, ()))


def shut_down(connection: Connection) -> None:
    """End what waits for a reply on the connection as if the server had closed it. It takes no lock
    and closes no descriptor: safe in any thread and in a weak reference's callback."""
    made = connection.conn.conn
    try:
        if isinstance(made, tuple):  # of asyncio: the transport and its protocol
            transport, protocol = made
            protocol._closed.get_loop().call_soon_threadsafe(transport.abort)
        elif isinstance(made, socket.socket):
            # Not the method of a TLS socket, which would have the reader go on without TLS.
            socket.socket.shutdown(made, socket.SHUT_RDWR)
        else:
            made.sock_shutdown(socket.SHUT_RDWR)  # PyOpenSSL's
    except (OSError, RuntimeError):  # closed, or its loop is
        return


def pool_at(topology: Topology | None, address: Address) -> Pool | None:
    """One server's pool; None where there is no such server."""
    server = server_at(topology, address)
    return None if server is None else server.pool


def count_login(pool: Pool, *, refused: bool) -> None:
    """A connection of the pool has logged in, or its password was ``refused``."""
    setattr(pool, _REFUSED, getattr(pool, _REFUSED, 0) + 1 if refused else 0)


def refused_logins(client: Client, address: Address) -> int:
    """How many in a row a server has refused."""
    return getattr(pool_at(topology_of(client), address), _REFUSED, 0)


def keep_look(pool: Pool, look: Look) -> None:
    """Keep what was found out about a pool's server; see ``selection/second_look.py``."""
    setattr(pool, _LOOK, look)


def last_look(pool: Pool) -> Look | None:
    look: Look | None = getattr(pool, _LOOK, None)
    return look


def tls_context(pool: Pool) -> Any:
    """What a pool's connections use for TLS; None without TLS."""
    return pool.opts._ssl_context


def open_pools(client: Client) -> dict[Address, Pool]:
    """The pools of a client that is used in this process and not closed, by server."""
    topology = getattr(client, "_topology", None)
    known = () if topology is None else topology.description.server_descriptions()
    pools = {at: pool for at in known if (pool := pool_at(topology, at)) is not None}
    # One that a forked child inherited counts the parent's connections until it is used.
    pid = os.getpid()
    return {at: pool for at, pool in pools.items() if not pool.closed and pool.pid == pid}


def counts(pool: Pool) -> tuple[int, int, int]:
    """How many connections are idle, and used or being made; and how many operations have one or
    wait for one."""
    return len(pool.conns), len(pool.active_contexts), pool.operation_count


PASSED = "send_cluster_time"
LIMIT = "maxTimeMS"
LIMITED = "apply_timeout"
"""A connection's method that gives a command its limit of time."""
RECEIVE = "receive_message"
MAKE_CURSORS = frozenset({"aggregate", "bulkWrite", "find", "listCollections", "listIndexes"})
"""Their maxTimeMS is the whole cursor's: what is left of it, each getMore has."""


def receivers() -> Iterator[tuple[ModuleType, str]]:
    """The functions that await a reply."""
    for module, asynchronous in each_api("pool"):
        yield module, "async_" * asynchronous + RECEIVE


socket_timeout_of = attrgetter("opts.socket_timeout")
"""A connection's socketTimeoutMS in seconds, or None."""


def keep_socket_timeout(connection: Connection) -> None:
    """After the driver has limited a command: its socket waits no longer than socketTimeoutMS."""
    seconds = socket_timeout_of(connection)
    if seconds is not None:
        _shorten_socket_timeout(connection, seconds)


def socket_timed_out(connection: Connection) -> TimeoutError:
    """What plain pymongo raises when socketTimeoutMS is over, in the words of its error: it would
    name the timeout of the operation instead (``_get_timeout_details``, pymongo 4.20)."""
    options = connection.opts
    timeouts = {
        "socketTimeoutMS": options.socket_timeout,
        "connectTimeoutMS": options.connect_timeout,
    }
    named = [f"{name}: {seconds * 1000}ms" for name, seconds in timeouts.items() if seconds]
    return TimeoutError(f"timed out (configured timeouts: {', '.join(named)})")


def limit_attempt(connection: Connection, command: Command, seconds: float) -> bool:
    """After the driver has limited a command: the shorter of its limit and ``seconds``. Return True
    if that is what the server is told."""
    _shorten_socket_timeout(connection, seconds)
    if next(iter(command)) in MAKE_CURSORS:
        return False
    of_server, own = max(1, int((seconds - RTT.get()) * 1000)), command.get(LIMIT)
    if isinstance(own, int | float) and 0 < own <= of_server:
        return False
    command[LIMIT] = of_server
    return True


def _shorten_socket_timeout(connection: Connection, seconds: float) -> None:
    socket = connection.conn.gettimeout
    present = socket() if callable(socket) else socket
    if present is None or present > seconds:
        connection.set_conn_timeout(seconds)


def connections_with(method: str) -> list[type]:
    """The classes of connections that define it."""
    return defining(method, *classes("pool", "*Connection"))


def passing_command(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The command and its client, None for the driver's own, given the method's arguments."""
    given = dict(zip(("command", "session", "client"), args, strict=False)) | kwargs
    return given["command"], given["client"]


def lift_limits(connection: Connection, command: Command | None) -> None:
    """No limit for the command, and none for its connection's socket."""
    if command is not None:
        command.pop(LIMIT, None)
    connection.set_conn_timeout(None)
