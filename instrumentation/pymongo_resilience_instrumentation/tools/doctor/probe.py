"""Tries one server on its own socket: name, connection, TLS, hello, round trips, idle connections.

pymongo does not report how long each step takes, or which one hangs.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo_resilience.rules.failure import SYSTEM_OVERLOADED
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.causes import symptom_of
from pymongo_resilience_instrumentation.failures.error_texts import local_text
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.tools.testbed.real_members import tls_context
from pymongo_resilience_instrumentation.tools.testbed.wire import WireError, exchange

from . import Finding, Level, engines
from .uri import Target

ROUND_TRIPS: Final = 5
NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which allows reading an expired certificate."""
SECOND_LOOK: Final = 1.0
"""Seconds for finding out why the first try failed."""
RENEW_WITHIN: Final = timedelta(days=14)
IDLE_ANSWER: Final = 2.0
"""Seconds to wait for a reply on a connection that was idle."""
COMMAND_NOT_FOUND: Final = 59
KEY_FILE: Final = "tlscertificatekeyfile"
_CERTIFICATE: Final = {
    9: Symptom.NOT_YET_VALID,
    10: Symptom.EXPIRED,
    62: Symptom.WRONG_HOST_NAME,
    64: Symptom.WRONG_HOST_NAME,
}
"""By OpenSSL's code. All other codes concern the authority."""


class RejectedError(Exception):
    """The server rejected the hello because it is overloaded."""


@dataclass
class Probe:
    """What is known about a server so far. Written by the thread that probes it."""

    address: Address
    stage: str = "dns"
    """The step that was begun last."""
    steps: list[Finding] = field(default_factory=list)
    """Findings of the steps that succeeded."""
    symptom: Symptom | None = None
    said: str = ""
    """Details about the symptom, written by this machine."""
    hello: dict[str, Any] | None = None
    version: str | None = None
    engine: engines.Engine | None = None
    """The engine that the server's replies show; None if it may be MongoDB."""
    round_trips_ms: list[float] = field(default_factory=list)
    rejected: int = 0
    """Number of hellos that the overloaded server rejected."""
    clock_ms: float | None = None
    """How far the server's clock is ahead of this machine's."""

    @property
    def name(self) -> str:
        return address_text(self.address)

    @property
    def is_member(self) -> bool:
        return bool(self.hello and self.hello.get("setName"))

    @property
    def is_primary(self) -> bool:
        return self.is_member and bool(self.hello and self.hello.get("isWritablePrimary"))

    def passed(self, text: str, advice: str = "") -> None:
        """Record a successful step. With ``advice``, it is a warning."""
        level = Level.WARNING if advice else Level.OK
        self.steps.append(Finding(self.stage, level, text, advice, self.name))


class Prober:
    """Probes servers as one client would. Thread-safe."""

    def __init__(self, target: Target, deadline: float) -> None:
        """``deadline`` is on the monotonic clock, for each step of each server."""
        self._target = target
        self._deadline = deadline
        self.waited = f"no answer within {deadline - time.monotonic():.1f} s"

    def run(self, probe: Probe) -> Probe:
        """Fill in ``probe`` and return it. Never raises."""
        try:
            self._try(probe)
        except WireError:
            probe.symptom = Symptom.NOT_MONGODB
        except Exception as error:  # noqa: BLE001 - whatever a server answers
            # A server that has answered before is only slow.
            if probe.hello is None or not isinstance(error, TimeoutError):
                probe.symptom = _symptom(error, probe.stage)
                if probe.address[1] is None and not isinstance(error, TimeoutError):
                    probe.symptom = Symptom.UNIX_SOCKET
            probe.said = self.waited if isinstance(error, TimeoutError) else local_text(error) or ""
        with suppress(Exception):
            self._look_again(probe)
        # The second look has not found a reason why the server closes the connection after the TLS
        # handshake.
        if (probe.symptom, probe.stage, self._target.tls) == (Symptom.HANGS_UP, "hello", True):
            probe.symptom = Symptom.CLOSES_AFTER_TLS
        return probe

    def _left(self, at_most: float = 60.0) -> float:
        return min(at_most, max(0.05, self._deadline - time.monotonic()))

    def connected(self, probe: Probe) -> socket.socket:
        """Return a connection, with TLS if the URI has it. Raises OSError."""
        plain = self._connect(probe)
        try:
            return self._wrapped(probe, plain) if self._target.tls else plain
        except BaseException:
            plain.close()
            raise

    def _try(self, probe: Probe) -> None:
        with closing(self.connected(probe)) as connection:
            probe.stage = "hello"
            self._measure(probe, connection)
            probe.engine = engines.of_replies(probe.hello, None)
            with suppress(OSError, KeyError):
                connection.settimeout(self._left(SECOND_LOOK / 2))
                reply = exchange(connection, {"buildInfo": 1, "$db": "admin"})
                probe.engine = engines.of_replies(probe.hello, reply)
                probe.version = str(reply["version"])

    def _connect(self, probe: Probe) -> socket.socket:
        host, port = probe.address
        if port is None:
            probe.stage, plain = "tcp", socket.socket(socket.AF_UNIX)
            plain.settimeout(self._left())
            plain.connect(host)
            return plain
        probe.stage, began = "dns", time.monotonic()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        probe.passed(f"{host} is {', '.join(addresses)} ({_ms(began):.0f} ms)")
        probe.stage, failed = "tcp", OSError("no address")
        # Divide the remaining time among the addresses, so that a silent one leaves time for the
        # next.
        for untried, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            began = time.monotonic()
            try:
                plain = socket.create_connection((address, port), self._left() / untried)
            except OSError as error:
                failed = error
                continue
            probe.passed(f"connected in {_ms(began):.1f} ms")
            plain.settimeout(self._left())
            return plain
        raise failed

    def _wrapped(self, probe: Probe, plain: socket.socket) -> ssl.SSLSocket:
        probe.stage, began = "tls", time.monotonic()
        # Leave half of the time for finding out why a handshake hangs.
        plain.settimeout(self._left() / 2)
        wrapped = tls_context(self._target.options).wrap_socket(
            plain, server_hostname=probe.address[0]
        )
        wrapped.settimeout(self._left())
        text = f"{wrapped.version()} handshake in {_ms(began):.1f} ms"
        end = (wrapped.getpeercert() or {}).get("notAfter")
        if not isinstance(end, str):
            probe.passed(f"{text}, the certificate was not verified")
        else:
            ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC)
            soon = ends - datetime.now(UTC) < RENEW_WITHIN
            advice = "renew the server's certificate" if soon else ""
            probe.passed(f"{text}, the certificate expires on {ends:%Y-%m-%d}", advice)
        return wrapped

    def _measure(self, probe: Probe, connection: socket.socket) -> None:
        for _ in range(ROUND_TRIPS):
            began, wall = time.monotonic(), time.time()
            try:
                hello = say_hello(connection, balanced=self._target.flag("loadbalanced"))
            except RejectedError:
                probe.rejected += 1
                continue
            took = _ms(began)
            if probe.hello is None:
                probe.hello = hello
            # The first round trip may include one-time work of the server for the connection.
            elif took:
                probe.round_trips_ms.append(took)
            there = hello.get("localTime")
            if isinstance(there, datetime):
                # The server read its clock about half a round trip ago.
                probe.clock_ms = (there.replace(tzinfo=UTC).timestamp() - wall) * 1000 - took / 2
            if time.monotonic() + took / 1000 > self._deadline - SECOND_LOOK:
                return

        if probe.hello is None:
            raise RejectedError

    def _look_again(self, probe: Probe) -> None:
        """Find out why the first try failed, by trying with or without TLS or its checks."""
        match probe.symptom:
            case Symptom.HANGS_UP | Symptom.NO_TLS_ANSWER if probe.stage == "tls":
                with closing(self._anew(probe)) as plain:
                    say_hello(plain)
                probe.symptom = Symptom.PLAIN_PORT
            case Symptom.HANGS_UP | Symptom.CLIENT_CERTIFICATE if self._target.tls:
                probe.symptom = self._refusal(probe)
                if probe.symptom is Symptom.HANGS_UP and KEY_FILE in self._target.options:
                    # A mongod refuses a certificate without an alert, but may accept clients that
                    # have none.
                    with closing(self._anew(probe)) as plain:
                        bare = tls_context({"tlsinsecure": "true"})
                        say_hello(bare.wrap_socket(plain, server_hostname=probe.address[0]))
                    probe.symptom = Symptom.CLIENT_CERTIFICATE
            case Symptom.HANGS_UP | Symptom.SILENT | Symptom.NOT_MONGODB if not self._target.tls:
                self._certificate(probe, tls_context({"tlsinsecure": "true"}))
                probe.symptom = Symptom.TLS_PORT
            case Symptom.WRONG_HOST_NAME:
                context = tls_context(self._target.options)
                context.check_hostname = False
                names = self._certificate(probe, context).get("subjectAltName", ())
                listed = ", ".join(str(value) for _, value in names) or "no host"
                probe.said = f"the certificate is for {listed}"
            case Symptom.EXPIRED:
                context = tls_context(self._target.options)
                context.verify_flags |= NO_CHECK_TIME
                probe.said = f"it expired on {self._certificate(probe, context).get('notAfter')}"

    def _refusal(self, probe: Probe) -> Symptom | None:
        """Return CLIENT_CERTIFICATE or TLS_VERSION if one of them is the reason.

        TLS 1.3 refuses a client's certificate after the handshake, TLS 1.2 within it. So try TLS
        1.2: if there is a cipher, the certificate was refused.
        """
        context = tls_context(self._target.options)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with closing(
            context.wrap_socket(
                self._anew(probe),
                server_hostname=probe.address[0],
                do_handshake_on_connect=False,
            )
        ) as wrapped:
            try:
                wrapped.do_handshake()
            except ssl.SSLError as error:
                if symptom_of(str(error)) is Symptom.CLIENT_CERTIFICATE:
                    return Symptom.CLIENT_CERTIFICATE if wrapped.cipher() else Symptom.TLS_VERSION
        return probe.symptom

    def _anew(self, probe: Probe) -> socket.socket:
        host, port = probe.address
        return socket.create_connection((host, port or 0), self._left(SECOND_LOOK))

    def _certificate(self, probe: Probe, context: ssl.SSLContext) -> dict[str, Any]:
        with (
            closing(self._anew(probe)) as plain,
            context.wrap_socket(plain, server_hostname=probe.address[0]) as wrapped,
        ):
            return dict(wrapped.getpeercert() or {})


def _symptom(error: Exception, stage: str) -> Symptom:
    match error:
        case socket.gaierror() | UnicodeError():
            return Symptom.UNKNOWN_HOST
        case ssl.SSLCertVerificationError():
            return _CERTIFICATE.get(error.verify_code, Symptom.UNKNOWN_AUTHORITY)
        case TimeoutError():
            return unanswered(stage)
        case RejectedError():
            return Symptom.OVERLOADED
        case ConnectionRefusedError():
            return Symptom.REFUSED
        case ssl.SSLEOFError() | ConnectionError():
            return Symptom.HANGS_UP
    found = symptom_of(str(error))
    return Symptom.BLACK_HOLE if found is Symptom.OTHER and stage == "tcp" else found


def unanswered(stage: str) -> Symptom:
    """Return the symptom of a server that has not finished a step in time."""
    found = {"dns": Symptom.UNKNOWN_HOST, "tcp": Symptom.BLACK_HOLE, "tls": Symptom.NO_TLS_ANSWER}
    return found.get(stage, Symptom.SILENT)


def _ms(began: float) -> float:
    return (time.monotonic() - began) * 1000


def of_idle(probes: Sequence[Probe], target: Target, seconds: float) -> Iterator[Finding]:
    """Leave one connection to each server idle for ``seconds``, then use it.

    Some networks silently drop idle connections.
    """
    prober, held = Prober(target, time.monotonic() + IDLE_ANSWER), {}
    with ExitStack() as connections:
        for each in probes:
            if each.hello is not None:
                with suppress(OSError):
                    connection = prober.connected(Probe(each.address))
                    held[each.name] = connections.enter_context(closing(connection))
        time.sleep(seconds)
        for server, connection in held.items():
            connection.settimeout(IDLE_ANSWER)
            try:
                say_hello(connection)
            except RejectedError:
                text = f"the connection still works after {seconds:.0f} s without use"
                yield Finding("idle", Level.OK, text, server=server)
            except OSError:
                text = f"the connection was lost during {seconds:.0f} s without use"
                advice = (
                    f"set maxIdleTimeMS to less than {seconds * 1000:.0f}, or a shorter TCP "
                    "keepalive time"
                )
                yield Finding("idle", Level.WARNING, text, advice, server)
            else:
                text = f"the connection still works after {seconds:.0f} s without use"
                yield Finding("idle", Level.OK, text, server=server)


def say_hello(connection: socket.socket, *, balanced: bool = False) -> dict[str, Any]:
    """Send a hello and return the reply.

    Raises:
        OSError: If the connection fails.
        RejectedError: If the server is overloaded.
        WireError: If the other side is not a MongoDB server.
    """
    command: dict[str, Any] = {"hello": 1, "$db": "admin"}
    if balanced:
        command["loadBalanced"] = True
    reply = exchange(connection, command)
    # Older servers do not have the command ``hello``.
    if reply.get("code") == COMMAND_NOT_FOUND:
        reply = exchange(connection, {"isMaster": 1, "$db": "admin"})
        reply.setdefault("isWritablePrimary", reply.get("ismaster"))
    if SYSTEM_OVERLOADED in reply.get("errorLabels", ()):
        raise RejectedError
    if reply.get("ok") != 1:
        raise WireError("the hello failed")
    return reply
