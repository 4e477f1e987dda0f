"""Types of pymongo's private objects, as far as the library uses them, so that mypy can check their
use.

Each protocol covers the sync and the async class. ``Any`` remains where the two differ, and for
values that are only passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bson.codec_options import CodecOptions
    from bson.objectid import ObjectId
    from pymongo.asynchronous.collection import AsyncCollection
    from pymongo.asynchronous.database import AsyncDatabase
    from pymongo.client_options import ClientOptions
    from pymongo.message import _CursorAddress, _GetMore, _Query
    from pymongo.pool_options import PoolOptions
    from pymongo.read_preferences import _ServerMode
    from pymongo.server_description import ServerDescription
    from pymongo.server_selectors import Selection
    from pymongo.synchronous.collection import Collection
    from pymongo.synchronous.database import Database
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.call import AnySession

    AnyCollection = Collection[Any] | AsyncCollection[Any]
    AnyDatabase = Database[Any] | AsyncDatabase[Any]
    Document = Mapping[str, Any]
    Command = MutableMapping[str, Any]
    CursorAddress = _CursorAddress
    """Where a cursor is open: the server's address, with the cursor's namespace."""
    Query = _Query
    """The request for a cursor's first batch."""
    BatchRequest = _Query | _GetMore
    """The request for any batch of a cursor."""
    ReadPreference = _ServerMode
    Selector = ReadPreference | Callable[[Selection], Selection]
    """The way to select a server: a read preference, or one of pymongo's functions."""
    Servers = Sequence[ServerDescription]
    ServerFilter = Callable[[list[ServerDescription]], Servers]
    """The application's own ``server_selector``."""


class NetworkInterface(Protocol):
    """Around a connection's socket, or around the transport and the protocol of asyncio."""

    @property
    def conn(self) -> Any: ...

    @property
    def sock(self) -> Any: ...

    @property
    def gettimeout(self) -> Any: ...


class Connection(Protocol):
    """A connection of a pool."""

    opts: PoolOptions
    closed: bool
    cancel_context: Any
    generation: int
    max_wire_version: int
    service_id: ObjectId | None
    supports_sessions: bool
    is_mongos: bool
    is_standalone: bool
    is_writable: bool
    logical_session_timeout_minutes: int | None

    @property
    def address(self) -> Address: ...

    @property
    def command(self) -> Callable[..., Any]: ...

    @property
    def conn(self) -> NetworkInterface: ...

    @property
    def id(self) -> int: ...

    @property
    def pool_ref(self) -> Callable[[], Pool | None]: ...

    def set_conn_timeout(self, timeout: float | None, /) -> None: ...


class Pool(Protocol):
    """The connections to one server. Each monitor has its own pool."""

    address: Address
    opts: PoolOptions
    conns: deque[Any]
    active_contexts: set[Any]
    operation_count: int
    is_sdam: bool
    is_writable: bool | None
    pid: int

    @property
    def closed(self) -> bool: ...

    @property
    def _perished(self) -> Callable[..., Any]: ...


class Monitor(Protocol):
    """Checks one server."""

    _awaited: Any
    _executor: Any
    _rtt_monitor: Any
    _server_description: ServerDescription
    _topology: Any

    def cancel_check(self) -> object: ...

    def request_check(self) -> None: ...


class Server(Protocol):
    """One server of a topology."""

    @property
    def description(self) -> ServerDescription: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def _monitor(self) -> Monitor: ...


class Topology(Protocol):
    """The servers of one client."""

    _settings: Any

    @property
    def description(self) -> TopologyDescription: ...

    def get_server_by_address(self, address: Address, /) -> Server | None: ...


class Response(Protocol):
    """The reply with a batch of a cursor."""

    @property
    def address(self) -> Address: ...

    @property
    def docs(self) -> Sequence[Any]: ...


class RawReply(Protocol):
    """The message that a reply came in."""

    def raw_command_response(self) -> Any: ...


class Cursor(Protocol):
    """A cursor of any kind."""

    _session: Any
    _timeout: float | None

    @property
    def cursor_id(self) -> int | None: ...

    @property
    def session(self) -> Any: ...


class FindCursor(Cursor, Protocol):
    """The cursor of a find."""

    @property
    def collection(self) -> AnyCollection: ...


class ChangeStream(Protocol):
    """A change stream, which reads from one cursor after the other."""

    _timeout: float | None

    @property
    def _client(self) -> Any: ...

    @property
    def _cursor(self) -> Any: ...

    @property
    def _target(self) -> Any: ...


class Bulk(Protocol):
    """A bulk write of a collection or of a client."""

    retrying: bool
    started_retryable_write: bool


class BulkContext(Protocol):
    """The connection, session and codec for the commands of a collection's bulk write."""

    codec: CodecOptions[Any]
    db_name: str
    session: AnySession | None

    @property
    def conn(self) -> Connection: ...


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
    def end_session(self) -> Callable[..., Any]: ...

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
    def _retryable_read(self) -> Callable[..., Any]: ...

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
