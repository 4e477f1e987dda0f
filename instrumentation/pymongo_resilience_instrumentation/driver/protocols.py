"""What the library uses of pymongo's private objects, so that mypy checks the use of it.

Each protocol is for the sync and the async class alike. ``Any`` is left where the two differ, and
for what only passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pymongo.client_options import ClientOptions
    from pymongo.pool_options import PoolOptions
    from pymongo.server_description import ServerDescription
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.addresses import Address


class Connection(Protocol):
    """A connection of a pool."""

    conn: Any
    opts: PoolOptions
    address: Address
    closed: bool
    cancel_context: Any
    supports_sessions: bool
    is_writable: bool | None
    pool_ref: Callable[[], Pool | None]

    def set_conn_timeout(self, timeout: float | None, /) -> None: ...


class Pool(Protocol):
    """The connections to one server; a monitor has one of its own."""

    address: Address
    opts: PoolOptions
    closed: bool
    conns: Any
    active_contexts: set[Any]
    operation_count: int
    is_sdam: bool
    is_writable: bool | None
    pid: int


class Monitor(Protocol):
    """Checks one server."""

    _awaited: Any
    _executor: Any
    _server_description: ServerDescription
    _topology: Any

    def cancel_check(self) -> object: ...

    def request_check(self) -> None: ...


class Server(Protocol):
    """One server of a topology."""

    description: ServerDescription
    pool: Pool
    _monitor: Monitor


class Topology(Protocol):
    """The servers of one client."""

    description: TopologyDescription
    _settings: Any

    def get_server_by_address(self, address: Address, /) -> Server | None: ...


class Session(Protocol):
    """A session of a client."""

    @property
    def _transaction(self) -> Any: ...

    @property
    def _server_session(self) -> Any: ...

    @property
    def _snapshot_time(self) -> Any: ...

    @property
    def options(self) -> Any: ...

    @property
    def session_id(self) -> Mapping[str, Any]: ...

    @property
    def start_transaction(self) -> Callable[..., Any]: ...

    @property
    def commit_transaction(self) -> Callable[..., Any]: ...

    @property
    def abort_transaction(self) -> Callable[..., Any]: ...

    @property
    def client(self) -> Client: ...

    @property
    def in_transaction(self) -> bool: ...


class Client(Protocol):
    """A MongoClient or an AsyncMongoClient."""

    @property
    def _closed(self) -> bool: ...

    @property
    def _options(self) -> Any: ...

    @property
    def _topology_settings(self) -> Any: ...

    @property
    def _kill_cursors_queue(self) -> Any: ...

    @property
    def _close_cursor_soon(self) -> Callable[..., None]: ...

    @property
    def _retry_internal(self) -> Callable[..., Any]: ...

    @property
    def _ensure_session(self) -> Callable[..., Any]: ...

    @property
    def _select_server(self) -> Callable[..., Any]: ...

    @property
    def _checkout(self) -> Callable[..., Any]: ...

    @property
    def start_session(self) -> Callable[..., Any]: ...

    @property
    def read_preference(self) -> Any: ...

    @property
    def options(self) -> ClientOptions: ...

    @property
    def topology_description(self) -> TopologyDescription: ...

    @property
    def arbiters(self) -> object: ...
