"""pymongo's sync and async API, and a client's options, servers and background task."""

from __future__ import annotations

import functools
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

# pymongo sends killCursors and endSessions with this read preference as well: the commands do not
# need a primary.
ANY = ReadPreference.PRIMARY_PREFERRED

KILL, BACKGROUND, END_SESSIONS = "_kill_cursors", "_process_kill_cursors", "_end_sessions"
"""The method that sends killCursors, the one that the background task calls for queued cursors, and
the one that ``close()`` calls.
"""


class Api(NamedTuple):
    """One of pymongo's two APIs, and the names that differ between them."""

    name: str
    wait: str
    connect: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"pymongo.{self.name}.{name}")


SYNC_API = Api("synchronous", "_cond_wait", "_configured_socket_interface")
ASYNC_API = Api("asynchronous", "_async_cond_wait", "_configured_protocol_interface")


def each_api(name: str) -> Iterator[tuple[ModuleType, bool]]:
    """Yield a module of pymongo in each API, and whether it is the async one."""
    for api in (SYNC_API, ASYNC_API):
        yield api.module(name), api is ASYNC_API


def classes(module: str, name: str) -> tuple[type, ...]:
    """Return a class of pymongo in each API. ``*`` in the name stands for "Async" or nothing."""
    return tuple(
        getattr(found, name.replace("*", "Async" * is_async))
        for found, is_async in each_api(module)
    )


def defining(method: str, *classes: type) -> list[type]:
    """Return the classes that define ``method`` for the given classes. Both APIs may share one."""
    owners = (next((c for c in cls.__mro__ if method in vars(c)), None) for cls in classes)
    return [cls for cls in dict.fromkeys(owners) if cls is not None]


def existing_clients() -> list[Any]:
    """Return the clients of this process that are alive and not closed."""
    # pymongo keeps weak references to all clients, for its own fork handler.
    clients: list[Any] = [*MongoClient._clients.values(), *AsyncMongoClient._clients.values()]
    return [client for client in clients if not client._closed]


def is_closed(client: Client) -> bool:
    """Return True if the application has closed the client."""
    return client._closed


LOOKUP = "_resolve"
"""A function of ``srv_resolver`` that looks up the SRV or TXT records of a mongodb+srv URI, within
``lifetime`` seconds.
"""


def lookup_may_succeed_later(error: BaseException, *, has_deadline: bool) -> bool:
    """Return True if the lookup of a mongodb+srv URI failed without a definite answer."""
    # dnspython is optional. If a lookup was needed, pymongo has imported it.
    resolver = sys.modules.get("dns.resolver")
    if resolver is None or not isinstance(error, ConfigurationError):
        return False
    # Name servers failed, refused the query, or did not answer in time. A name or a record that
    # does not exist is a definite answer. Without a deadline, a lookup that timed out has used all
    # of ``connectTimeoutMS``, during which dnspython has sent the query several times.
    passing = (resolver.NoNameservers, *(resolver.Timeout,) * has_deadline)
    return isinstance(error.__cause__, passing)


def hide_frames(client: Client, folder: str) -> None:
    """Remove frames of files in ``folder`` from the stack that pymongo records for a client.

    pymongo shows it in the ResourceWarning about a client that was not closed.
    """
    settings = client._topology_settings
    # pymongo stores the stack as text.
    lines = re.split(r"(?m)^(?=  File )", settings._stack)
    settings._stack = "".join(each for each in lines if not each.startswith(f'  File "{folder}'))


def begin_looking_for_servers(client: Client) -> None:
    """Do the last step of a MongoClient's constructor, if it was not done yet.

    Otherwise the client's first operation would do it.
    """
    # This public property starts discovery, and returns what is known without waiting.
    _ = client.arbiters


topology_of = attrgetter("_topology")
"""Return the topology of a client; None before it has started discovery."""


def server_at(topology: Topology | None, address: Address) -> Server | None:
    """Return pymongo's object for a server, or None if the client does not monitor it (yet)."""
    return None if topology is None else topology.get_server_by_address(address)


def knows_tracing() -> bool:
    """Return True if this pymongo can record spans itself (``tracing`` option). None does up to
    4.20.
    """
    return "tracing" in getattr(common, "VALIDATORS", ())


def records_spans(client: Client) -> bool:
    """Return True if pymongo itself records the spans of the client."""
    tracing = getattr(client.options, "tracing", None) if knows_tracing() else None
    return bool(tracing and tracing["enabled"])


def max_retries(client: Client) -> int | None:
    """Return the client's own option for overload retries, or None.

    pymongo's public property would return the default if the option is not set.
    """
    # pymongo stores the option as it was written: in a URI, or as a keyword argument.
    given: Document = client.options._options
    retries: int | None = given.get("maxadaptiveretries", given.get("max_adaptive_retries"))
    return retries


def has_tls_certificate(client: Client) -> bool:
    """Return True if the client presents its own certificate."""
    return bool(client.options._options.get("tlscertificatekeyfile"))


def uses_tls(client: Client) -> bool:
    return bool(client.options._options.get("tls"))


def retargets_on_overload(client: Client) -> bool | None:
    """Return the client's own option to avoid an overloaded server, or None."""
    given: Document = client.options._options
    name, other_name = "enableoverloadretargeting", "enable_overload_retargeting"
    retargets: bool | None = given.get(name, given.get(other_name))
    return retargets


def cursor_namespace(address: CursorAddress) -> tuple[str, str]:
    """Return database and collection of a cursor from its address."""
    database, _, collection = str(address.namespace).partition(".")
    return database, collection


def kill_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the cursor IDs, the address and the session that ``KILL`` was called with."""
    places = ((1, "cursor_ids"), (2, "address"), (4, "session"))
    # The positions include the client itself. The topology, at position 3, is not needed.
    return [args[at] if len(args) > at else kwargs.get(name) for at, name in places]


def kill_later(client: Client, cursor_id: int, address: CursorAddress) -> None:
    """Queue a cursor for the client's background task, as pymongo does after a failure."""
    client._close_cursor_soon(cursor_id, address)


def kill_cursors(
    client: Client, ids: list[int], address: CursorAddress, session: Session | None
) -> Any:
    """Send killCursors through the retry loop, which pymongo's own method bypasses. A coroutine in
    async clients.
    """
    database, collection = cursor_namespace(address)
    command = {"killCursors": collection, "cursors": ids}

    def send(*args: Any) -> Any:
        return args[2].command(database, command, session=session, client=client)

    # As a read, so that the retry rules apply; the address binds it to the cursor's server.
    return client._retry_internal(
        send, None, None, "killCursors", is_read=True, address=tuple(address), read_pref=ANY
    )


def end_sessions(client: Client, ids: Sequence[Document]) -> Any:
    """Send endSessions through the retry loop. A coroutine in async clients.

    pymongo's own method hides errors, and ``command()`` of a database would create another session.
    """

    def send(*args: Any) -> Any:
        _, _, connection, mode = args
        command = {"endSessions": ids}
        return connection.command("admin", command, read_preference=mode, client=client)

    return client._retry_internal(send, None, None, "endSessions", is_read=True, read_pref=ANY)


FROM_OPTIONS = "_init_based_on_options"
"""A method of a client that uses its options after they were parsed and before anything connects. A
client with an SRV name calls it again after the name was resolved.
"""
_LISTENERS = "_pymongo_resilience_listeners"


def keep_listeners(client: Client, listeners: list[Any]) -> None:
    """Store which of the library's listeners a client should have."""
    vars(client)[_LISTENERS] = listeners


def listeners_of(client: Client) -> list[Any]:
    """Return the library's listeners of a client; empty if it was created without them."""
    listeners: list[Any] = vars(client).get(_LISTENERS, [])
    return listeners


def add_listeners(client: Client) -> None:
    """Make the client call the library's listeners after its own."""
    options = client._options
    known = options.pool_options._event_listeners
    shown = known.event_listeners()
    own, ours = options._options.get("event_listeners", ()), listeners_of(client)
    # ``publish_commands`` adds the listener of commands when somebody needs the events, because
    # building them is expensive.
    silent = [each for each in ours if not isinstance(each, monitoring.CommandListener)]
    # Change the object in place, because pools already reference it.
    vars(known).update(vars(monitoring._EventListeners([*own, *silent])))
    # The client's options still show only the application's listeners, because the application may
    # create another client from them.
    vars(known)["event_listeners"] = lambda: list(shown)


@functools.cache
def _command_attributes() -> tuple[str, str]:
    """Return the names of two private attributes of ``_EventListeners``: the list of listeners of
    commands, and the flag that is True if the list is not empty.
    """
    # An object shows which attributes they are: their mangled names would be further private names
    # to depend on. It also has the listeners that others registered for all clients, so any of its
    # flags may be True.
    listener = monitoring.CommandListener()
    events = monitoring._EventListeners([listener])
    state = vars(events)
    (listeners,) = (
        name for name, value in state.items() if isinstance(value, list) and listener in value
    )
    for name in [name for name, value in state.items() if value is True]:
        state[name] = False
        if not events.enabled_for_commands:
            return listeners, name
    raise AttributeError("pymongo's _EventListeners has no flag for listeners of commands")


def publish_commands(client: Client, *, publish: bool = True) -> None:
    """Have pymongo publish the events of the client's commands to our listener, or stop it.

    Building the events is the most expensive part of a healthy operation. pymongo 4.19 and 4.20
    check before each command whether there are listeners. Thread-safe.
    """
    ours = [each for each in listeners_of(client) if isinstance(each, monitoring.CommandListener)]
    options = vars(client).get("_options")
    # Without options, the client is still in its constructor.
    if not ours or options is None:
        return
    state, (listeners, are_any) = vars(options.pool_options._event_listeners), _command_attributes()
    now = [each for each in state[listeners] if each not in ours]
    if publish:
        now += ours
    state.update({listeners: now, are_any: bool(now)})


def set_selector(client: Client, make: Callable[[ServerFilter], ServerFilter]) -> None:
    """Make the client use the selector that ``make`` returns for the client's own one.

    The client's options still show its own one.
    """
    client._topology_settings._server_selector = make(client._options.server_selector)


client_of_collection = attrgetter("database.client")
client_of_database = attrgetter("client")
names_of_collection = attrgetter("database.name", "name")


TLS_ERRORS = (ssl.SSLError, getattr(ssl_support, "PYSSLError", ssl.SSLError))
"""Errors of the standard library and, if it is installed, of PyOpenSSL."""
