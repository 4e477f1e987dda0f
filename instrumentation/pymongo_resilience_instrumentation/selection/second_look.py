"""Finds out why a server closes connections: it requires TLS, it does not use TLS, or it requires
another client certificate.

A mongod with the other TLS setting closes the connection without a reply, just like a server that
restarts or a proxy. After such a failed check, this module connects once more and tries the other
setting. It uses its own connection in its own thread, because server selection holds pymongo's lock
or runs in an event loop. It sends a hello and no credentials.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

import bson

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.failures.causes import symptom_of
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Client, Pool

AGAIN_S = 5.0
"""Seconds between two looks at a server. A result stays valid for the same time."""
STEP_S = 1.0
"""Seconds for each step of a look."""
ALERT_S = 0.3
"""Seconds to wait for the alert of a server that refuses a certificate after the handshake."""
TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""First bytes of a TLS alert and of a handshake message: type and major version."""
HEADER = struct.Struct("<4i")
"""Header of a MongoDB message: length, request ID, ID of the request it responds to, and opcode."""
NUMBER, OP_MSG = 7, 2013


class Look(NamedTuple):
    """One look at a server. Immutable."""

    began: float
    symptom: Symptom | None = None
    """None if nothing was found yet."""


def finding(client: Client, address: Address) -> Symptom | None:
    """Return why a server closes connections, if that is known. Start a look if none is recent.

    Call it when a check of the server has just failed because the server closed the connection.
    Does not wait.
    """
    pool = driver.connections.pool_at(driver.clients.topology_of(client), address)
    if pool is None or address[1] is None:
        return None
    last = driver.connections.last_look(pool)
    if last is None or time.monotonic() - last.began >= AGAIN_S:
        # Store the start of the look first, so that no other caller starts a second one.
        driver.connections.keep_look(pool, Look(time.monotonic(), last and last.symptom))
        threading.Thread(
            target=_run,
            args=(pool, address, driver.clients.has_tls_certificate(client)),
            name="pymongo_resilience_second_look",
            daemon=True,
        ).start()
    return None if last is None else last.symptom


def known_finding(client: Client, address: Address) -> Symptom | None:
    """Return what an earlier look has found, without starting a new one."""
    pool = driver.connections.pool_at(driver.clients.topology_of(client), address)
    last: Look | None = None if pool is None else driver.connections.last_look(pool)
    return None if last is None else last.symptom


def _run(pool: Pool, address: Address, has_certificate: bool) -> None:
    symptom = None
    # The port may send anything. If that raises an error, there is no result.
    with suppress(Exception):
        context = driver.connections.tls_context(pool)
        if context is None:
            symptom = Symptom.TLS_PORT if _speaks_tls(address) else None
        # The client uses TLS. If the port answers without TLS, that is the reason.
        elif _says_hello(_connected(address)):
            symptom = Symptom.PLAIN_PORT
        elif isinstance(context, ssl.SSLContext):
            symptom = _refusal(address, context, has_certificate)
    driver.connections.keep_look(pool, Look(time.monotonic(), symptom))


def _connected(address: Address) -> socket.socket:
    return socket.create_connection((address[0], address[1] or 0), STEP_S)


def _speaks_tls(address: Address) -> bool:
    """Return True if the server responds to a TLS handshake with TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    # Create the first handshake message in memory, because wrapping the socket would wait for the
    # whole handshake.
    handshake = _unchecked().wrap_bio(incoming, outgoing, server_hostname=address[0])
    # The error only means that the server's answer is expected next. The message is in
    # ``outgoing`` now.
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    with closing(_connected(address)) as plain:
        plain.sendall(outgoing.read())
        return _received(plain, len(TLS_RECORDS[0])) in TLS_RECORDS


def _unchecked() -> ssl.SSLContext:
    """Return a TLS context that does not verify the server. It is only used to learn about the
    server.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _says_hello(connection: socket.socket) -> bool:
    """Return True if a MongoDB server responds on the connection. Closes the connection."""
    with closing(connection), suppress(OSError, struct.error):
        connection.settimeout(STEP_S)
        body = struct.pack("<ib", 0, 0) + bson.encode({"hello": 1, "$db": "admin"})
        connection.sendall(HEADER.pack(HEADER.size + len(body), NUMBER, 0, OP_MSG) + body)
        _, _, answers, kind = HEADER.unpack(_received(connection, HEADER.size))
        return (answers, kind) == (NUMBER, OP_MSG)
    return False


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def _refusal(address: Address, context: ssl.SSLContext, has_certificate: bool) -> Symptom | None:
    """Return CLIENT_CERTIFICATE if the server refuses the client's certificate."""
    try:
        with closing(_wrapped(address, context)) as connection:
            connection.settimeout(ALERT_S)
            with suppress(TimeoutError):
                # With TLS 1.3, the server may refuse a certificate only after the client's
                # handshake has ended, and the alert is lost if the client writes at that time. A
                # server that sends nothing has accepted it.
                if connection.recv(1):
                    return None
    except ssl.SSLError as error:
        if symptom_of(str(error)) is Symptom.CLIENT_CERTIFICATE:
            return Symptom.CLIENT_CERTIFICATE
    except OSError:
        pass
    # A mongod refuses a certificate without an alert, but may accept a client that has none. If it
    # does, it has refused the certificate.
    if has_certificate and _says_hello(_wrapped(address, _unchecked())):
        return Symptom.CLIENT_CERTIFICATE
    return None


def _wrapped(address: Address, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(_connected(address), server_hostname=address[0])
