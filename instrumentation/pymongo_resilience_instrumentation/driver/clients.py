"""pymongo's two APIs; of a client its options as they were given, its servers, its background
task."""

from __future__ import annotations

import importlib
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, common, monitoring, ssl_support
from pymongo.errors import ConfigurationError

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.addresses import Address

    from .protocols import Client, CursorAddress, Document, Server, ServerFilter, Session, Topology

ANY = ReadPreference.PRIMARY_PREFERRED

KILL, BACKGROUND, END_SESSIONS = "_kill_cursors", "_process_kill_cursors", "_end_sessions"
"""What sends killCursors; what the background task calls for cursors that wait for that; and what
``close()`` calls."""


class Api(NamedTuple):
    """One of pymongo's two APIs, with what its modules call by a name of their own."""

    name: str
    wait: str
    connect: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"pymongo.{self.name}.{name}")


SYNC_API = Api("synchronous", "_cond_wait", "_configured_socket_interface")
ASYNC_API = Api("asynchronous", "_async_cond_wait", "_configured_protocol_interface")


def each_api(name: str) -> Iterator[tuple[ModuleType, bool]]:
    """pymongo's module of that name in each of its APIs, and whether that is the async one."""
    for api in (SYNC_API, ASYNC_API):
        yield api.module(name), api is ASYNC_API


def classes(module: str, name: str) -> tuple[type, ...]:
    """pymongo's class in each of its APIs, where ``*`` in its name is "Async" in one of them."""
    return tuple(
        getattr(found, name.replace("*", "Async" * is_async))
        for found, is_async in each_api(module)
    )


def defining(method: str, *classes: type) -> list[type]:
    """The classes whose own attribute it is in each of these: both APIs may share one."""
    owners = (next((c for c in cls.__mro__ if method in vars(c)), None) for cls in classes)
    return [cls for cls in dict.fromkeys(owners) if cls is not None]


def existing_clients() -> list[Any]:
    """The clients of this process that are alive and not closed."""
    clients: list[Any] = [*MongoClient._clients.values(), *AsyncMongoClient._clients.values()]
    return [client for client in clients if not client._closed]


def is_closed(client: Client) -> bool:
    """Return True once the application has closed it."""
    return client._closed


LOOKUP = "_resolve"
"""A function of ``srv_resolver``: looks up the SRV or TXT records of a mongodb+srv URI, within its
keyword ``lifetime``, in seconds."""


def lookup_may_succeed_later(error: BaseException, *, has_deadline: bool) -> bool:
    """Return whether looking up the hosts of a mongodb+srv URI failed without a definite answer.

    Name servers failed or refused the question, or did not answer in time. A name that does not
    exist, or that has no such records, is an answer. Without a deadline, a lookup that timed out
    has taken all of ``connectTimeoutMS``, in which dnspython has asked again and again.
    """
    # Imported by pymongo if it was needed: dnspython is optional.
    resolver = sys.modules.get("dns.resolver")
    if resolver is None or not isinstance(error, ConfigurationError):
        return False
    passing = (resolver.NoNameservers, *(resolver.Timeout,) * has_deadline)
    return isinstance(error.__cause__, passing)


def hide_frames(client: Client, folder: str) -> None:
    """Take the frames of files in ``folder`` out of where pymongo says that the client was opened,
    in its ResourceWarning for a client that was not closed."""
    settings = client._topology_settings
    lines = re.split(r"(?m)^(?=  File )", settings._stack)
    settings._stack = "".join(each for each in lines if not each.startswith(f'  File "{folder}'))


def begin_looking_for_servers(client: Client) -> None:
    """Do the last step of a MongoClient's constructor, which the client's first operation does if
    it was not done."""
    # The public property begins to look, and returns what is known without waiting.
    _ = client.arbiters


topology_of = attrgetter("_topology")
"""A client's; None before it has begun to look for servers."""


def server_at(topology: Topology | None, address: Address) -> Server | None:
    """The driver's server; None where the client does not check it, or has not begun to."""
    return None if topology is None else topology.get_server_by_address(address)


def knows_tracing() -> bool:
    """Whether this pymongo records spans itself, and so has a ``tracing`` option: none to 4.20."""
    return "tracing" in getattr(common, "VALIDATORS", ())


def records_spans(client: Client) -> bool:
    """Whether this pymongo records the spans of the client itself."""
    tracing = getattr(client.options, "tracing", None) if knows_tracing() else None
    return bool(tracing and tracing["enabled"])


def max_retries(client: Client) -> int | None:
    """The client's own option for overload retries; None where it has none, for which the public
    property has the default."""
    given: Document = client.options._options
    retries: int | None = given.get("maxadaptiveretries", given.get("max_adaptive_retries"))
    return retries


def has_tls_certificate(client: Client) -> bool:
    """Return whether the client shows a certificate of its own."""
    return bool(client.options._options.get("tlscertificatekeyfile"))


def uses_tls(client: Client) -> bool:
    return bool(client.options._options.get("tls"))


def retargets_on_overload(client: Client) -> bool | None:
    """Whether the client itself says to avoid an overloaded server; None where it does not say."""
    given: Document = client.options._options
    name, other_name = "enableoverloadretargeting", "enable_overload_retargeting"
    retargets: bool | None = given.get(name, given.get(other_name))
    return retargets


def cursor_namespace(address: CursorAddress) -> tuple[str, str]:
    """Database and collection of a cursor, which its address carries."""
    database, _, collection = str(address.namespace).partition(".")
    return database, collection


def kill_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The cursors' ids, their address and the session that ``KILL`` was called with."""
    places = ((1, "cursor_ids"), (2, "address"), (4, "session"))
    return [args[at] if len(args) > at else kwargs.get(name) for at, name in places]


def kill_later(client: Client, cursor_id: int, address: CursorAddress) -> None:
    """Queue a cursor for the client's background task, as the driver does after a failure."""
    client._close_cursor_soon(cursor_id, address)


def kill_cursors(
    client: Client, ids: list[int], address: CursorAddress, session: Session | None
) -> Any:
    """Send killCursors through the retry loop, which the driver's own method passes by; a coroutine
    in async clients."""
    database, collection = cursor_namespace(address)
    command = {"killCursors": collection, "cursors": ids}

    def send(*args: Any) -> Any:
        return args[2].command(database, command, session=session, client=client)

    return client._retry_internal(
        send, None, None, "killCursors", is_read=True, address=tuple(address), read_pref=ANY
    )


def end_sessions(client: Client, ids: Sequence[Document]) -> Any:
    """The same for endSessions. The driver's own method hides errors, and ``command()`` of a
    database would make one more session."""

    def send(*args: Any) -> Any:
        _, _, connection, mode = args
        command = {"endSessions": ids}
        return connection.command("admin", command, read_preference=mode, client=client)

    return client._retry_internal(send, None, None, "endSessions", is_read=True, read_pref=ANY)


FROM_OPTIONS = "_init_based_on_options"
"""A client's method that uses its options, once they are parsed and before anything connects. One
with an SRV name calls it again once the name is resolved."""
_LISTENERS = "_pymongo_resilience_listeners"
_EVENTS = "_pymongo_resilience_events"


def keep_listeners(client: Client, listeners: list[Any]) -> None:
    """Note which listeners of ours a client is to have."""
    vars(client)[_LISTENERS] = listeners


def listeners_of(client: Client) -> list[Any]:
    """Those of ours; none of a client that was made without them."""
    listeners: list[Any] = vars(client).get(_LISTENERS, [])
    return listeners


def add_listeners(client: Client) -> None:
    """Have the client call our listeners after its own; the listener of commands once
    ``publish_commands`` is called. The client's options show only the application's listeners, so
    that a client can be made from another one's options or ``repr``."""
    options = client._options
    known = options.pool_options._event_listeners
    shown = known.event_listeners()
    own, ours = options._options.get("event_listeners", ()), listeners_of(client)
    others = [each for each in ours if not isinstance(each, monitoring.CommandListener)]
    silent = vars(monitoring._EventListeners([*own, *others]))
    publishing = vars(monitoring._EventListeners([*own, *ours]))
    vars(known).update(silent)
    vars(known)["event_listeners"] = lambda: list(shown)
    changed = [name for name, value in silent.items() if publishing[name] != value]
    vars(client)[_EVENTS] = tuple(
        {name: state[name] for name in changed} for state in (silent, publishing)
    )


def publish_commands(client: Client, *, publish: bool = True) -> None:
    """Have pymongo publish the events of the client's commands to our listener, or stop it.

    Building the events costs more than anything else that happens to a healthy operation. pymongo
    asks before each command whether anyone listens (4.19 and 4.20). Thread-safe.
    """
    states = vars(client).get(_EVENTS)
    if states is not None:
        vars(client._options.pool_options._event_listeners).update(states[publish])


def set_selector(client: Client, make: Callable[[ServerFilter], ServerFilter]) -> None:
    """Have the client select servers by what ``make`` returns for its own selector, which its
    options go on showing."""
    client._topology_settings._server_selector = make(client._options.server_selector)


client_of_collection = attrgetter("database.client")
client_of_database = attrgetter("client")
names_of_collection = attrgetter("database.name", "name")


TLS_ERRORS = (ssl.SSLError, getattr(ssl_support, "PYSSLError", ssl.SSLError))
"""Of the standard library, and of PyOpenSSL, where it is installed."""
