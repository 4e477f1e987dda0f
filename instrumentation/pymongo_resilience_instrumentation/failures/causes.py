"""Finds the likely cause of a failed server selection, and whether waiting can help.

pymongo keeps only the type and the text of a failed check (it drops ``__cause__``), so this module
matches texts. The errors are those of pymongo's monitors; ``pymongo-resilience doctor`` connects to
each server itself. ``Symptom`` contains the sentences for users.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from pymongo_resilience.rules.failure import SYSTEM_OVERLOADED, RetryReason
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

LOGIN_REFUSALS: Mapping[int, Symptom] = {
    2: Symptom.MECHANISM,  # BadValue, of servers before 4.4
    11: Symptom.USER,  # UserNotFound, of MONGODB-X509
    18: Symptom.PASSWORD,  # AuthenticationFailed
    334: Symptom.MECHANISM,  # MechanismUnavailable
    8000: Symptom.PASSWORD,  # AtlasError
}
"""By the error code of a failed login. The same credentials would be refused again."""
LOGINS = frozenset(LOGIN_REFUSALS.values())
TERMINAL: Mapping[Symptom, RetryReason] = {
    Symptom.SET_NAME: RetryReason.NODE_NOT_AVAILABLE,
    Symptom.REMOVED: RetryReason.NODE_NOT_AVAILABLE,
    Symptom.PLAIN_PORT: RetryReason.TLS_ERROR,
    Symptom.TLS_PORT: RetryReason.TLS_ERROR,
    Symptom.UNKNOWN_AUTHORITY: RetryReason.TLS_ERROR,
    Symptom.WRONG_HOST_NAME: RetryReason.TLS_ERROR,
    Symptom.EXPIRED: RetryReason.TLS_ERROR,
    Symptom.CLIENT_CERTIFICATE: RetryReason.TLS_ERROR,
    Symptom.TLS_VERSION: RetryReason.TLS_ERROR,
    Symptom.PASSWORD: RetryReason.AUTHENTICATION_ERROR,
    Symptom.USER: RetryReason.AUTHENTICATION_ERROR,
    Symptom.MECHANISM: RetryReason.AUTHENTICATION_ERROR,
}
"""Causes that do not go away by waiting. If in doubt, a cause is not terminal."""
_OF_THE_SET = r"this node belongs to a set named '(?!None')"
"""Excludes the name None: a server that is down, or has not read its configuration yet."""
_TEXTS = {
    Symptom.EXPIRED: "certificate has expired",
    Symptom.NOT_YET_VALID: "not yet valid",
    # The first text comes from the standard library, the second from PyOpenSSL with
    # service-identity.
    Symptom.WRONG_HOST_NAME: "certificate.*(mismatch|not valid for|doesn't match)"
    r"|VerificationError\(errors=",
    Symptom.UNKNOWN_AUTHORITY: "certificate verify failed",
    Symptom.PLAIN_PORT: "wrong.version.number|record.layer.failure|http.request",
    Symptom.TLS_VERSION: "protocol.version|unsupported.protocol|no.protocols|no.shared",
    # TLS alerts from a server that refuses the client's certificate, or that got none.
    Symptom.CLIENT_CERTIFICATE: "certificate.required"
    "|alert.(certificate|unknown.ca|bad.certificate|handshake)",
    Symptom.WRONG_SNI: "unrecognized.name",
    Symptom.ACCESS_LIST: "alert.(internal.error|access.denied)",
    Symptom.NOT_MONGODB: "ProtocolError",
    Symptom.UNKNOWN_HOST: "not known|name resolution|no address associated|getaddrinfo|not resolve",
    Symptom.REFUSED: "refused",
    Symptom.BLACK_HOLE: "unreachable|no route to host",
    Symptom.NO_TLS_ANSWER: "handshake.*timed out",
    Symptom.NO_ANSWER: "timed out",
    # "is already closed" comes from asyncio, "is shutdown" from OpenSSL, "forcibly closed" from
    # Windows.
    Symptom.HANGS_UP: "reset by peer|broken pipe|eof|connection closed|already closed|aborted"
    "|closed by the peer|protocol.is.shutdown|forcibly closed|closing transport",
}
"""Regular expressions for error texts. The first that matches determines the symptom."""
_OF_NETWORK = {Symptom.UNKNOWN_HOST, Symptom.REFUSED, Symptom.BLACK_HOLE, Symptom.NO_ANSWER}
_OF_UNIX_SOCKETS = {Symptom.REFUSED, Symptom.OTHER}
"""Symptoms of a socket file that does not exist, or whose server is not running."""


class ObservedServer(NamedTuple):
    """What a client knows about one server. Immutable."""

    address: str
    symptom: Symptom | None
    """None if the server is reachable, or if nothing is known about it yet."""
    is_primary: bool = False
    is_member: bool = False
    """True if the server is reachable and belongs to a replica set."""


class Diagnosis(NamedTuple):
    """The likely cause, and the servers that show it. Immutable."""

    symptom: Symptom
    servers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Likely cause: {self.symptom.says}. Check {self.symptom.check}"


def symptom_of(text: str) -> Symptom:
    """Return the symptom that an error text shows. The text must not contain values of
    documents.
    """
    matching = (
        symptom for symptom, pattern in _TEXTS.items() if re.search(pattern, text, re.IGNORECASE)
    )
    return next(matching, Symptom.OTHER)


def symptom_at(
    text: str, address: Address, *, tls: bool = False, handshake: bool = False
) -> Symptom:
    """Return what the text of a failed connection shows about the server at ``address``.

    Args:
        text: The error's text.
        address: Host and port; for a Unix socket, the path and None.
        tls: Whether the client uses TLS.
        handshake: Whether the TLS handshake failed.
    """
    symptom = symptom_of(text)
    if address[1] is None and symptom in _OF_UNIX_SOCKETS:
        return Symptom.UNIX_SOCKET
    # The handshake has succeeded, so it is not a server without TLS that closes the connection.
    if symptom is Symptom.HANGS_UP and tls and not handshake:
        return Symptom.CLOSES_AFTER_TLS
    return symptom


def is_rejection(error: BaseException | None) -> bool:
    """Return True if the server itself rejected a command because it is overloaded.

    pymongo adds the same label to connections that could not be made, which prove nothing.
    """
    return isinstance(error, OperationFailure) and error.has_error_label(SYSTEM_OVERLOADED)


def hangs_up(error: Exception | None) -> bool:
    """Return True if a check failed because the server closed the connection."""
    is_connection = isinstance(error, ConnectionFailure)
    return is_connection and symptom_of(str(error)) is Symptom.HANGS_UP


def cause_of(error: Exception | None) -> Symptom | None:
    """Return the terminal cause that a server's last error shows, or None if waiting may help."""
    if isinstance(error, OperationFailure):
        return LOGIN_REFUSALS.get(error.code or 0)
    if error is None or isinstance(error, NotPrimaryError):
        # The server wrote this text, so it may contain anything.
        return None
    text = str(error)
    if isinstance(error, ConfigurationError):
        return Symptom.SET_NAME if re.search(_OF_THE_SET, text) else None
    symptom = symptom_of(text)
    # The alert "handshake failure" may be about a missing certificate or about a cipher, so it
    # proves neither.
    return symptom if symptom in TERMINAL and "handshake failure" not in text else None


def diagnose(
    servers: Sequence[ObservedServer],
    *,
    seeds: Sequence[str] = (),
    replica_set: bool = False,
    wants_primary: bool = True,
) -> Diagnosis | None:
    """Return the likely reason why an operation finds no server, or None if there is none.

    Args:
        servers: The servers that the client currently knows.
        seeds: The addresses from the URI.
        replica_set: Whether the client looks for members of a replica set.
        wants_primary: Whether only the primary can serve the operation.
    """
    if not servers:
        # pymongo drops every server that does not belong to the replica set.
        return Diagnosis(Symptom.SET_NAME, tuple(seeds)) if replica_set else None
    failed = {server.address: server.symptom for server in servers if server.symptom is not None}
    reached = [server for server in servers if server.symptom is None and server.is_member]
    if any(server.is_primary for server in servers) or (reached and not wants_primary):
        return Diagnosis(Symptom.NO_MATCH)
    if reached:
        has_majority = len(reached) * 2 > len(servers)
        return Diagnosis(Symptom.ELECTION if has_majority else Symptom.NO_MAJORITY, tuple(failed))
    if not failed:
        return None
    are_announced = bool(seeds) and not {server.address for server in servers} & set(seeds)
    # The client found the members through a seed, but under names that it cannot reach.
    if are_announced and _OF_NETWORK.issuperset(failed.values()):
        return Diagnosis(Symptom.MEMBER_NAMES, tuple(failed))
    # Report the most frequent symptom. If several are equally frequent, report the one that
    # explains the others.
    counts, order = Counter(failed.values()), list(Symptom)
    cause = min(counts, key=lambda symptom: (-counts[symptom], order.index(symptom)))
    return Diagnosis(cause, tuple(at for at, symptom in failed.items() if symptom is cause))


def selection_error(
    cause: Symptom, found: Mapping[Address, Exception | str | None], asked_for: str | None
) -> ServerSelectionTimeoutError:
    """Return the error for a selection that was ended early.

    It has pymongo's own class. Its text names the cause, each server, and what to check. Its
    attribute ``terminal_cause`` is the cause in one word.

    Args:
        cause: The terminal cause.
        found: Each server's last error, or its type if it is reachable.
        asked_for: The replica set's name in the URI.
    """
    name = f' (replicaSet="{asked_for}")' if cause is Symptom.SET_NAME else ""
    servers = "; ".join(
        address_text(address) + ("" if state is None else f" ({state})")
        for address, state in found.items()
    )
    error = ServerSelectionTimeoutError(
        f"no server is usable, and waiting longer would not help: {cause.says}{name}. "
        f"Servers: {servers}. Check {cause.check}"
    )
    # Not the constructor: the class is pymongo's own.
    vars(error)["terminal_cause"] = cause.value
    return error


def terminal_cause(error: BaseException) -> Symptom | None:
    """Return the cause of an error made by ``selection_error``; None for any other error."""
    if not isinstance(error, ServerSelectionTimeoutError):
        return None
    word = vars(error).get("terminal_cause")
    return next((cause for cause in TERMINAL if cause == word), None)


def refused_again(error: OperationFailure, address: Address, seconds: float) -> OperationFailure:
    """Return a recent login failure as a new error, for an operation that did not try to log in
    itself.

    Args:
        error: The failure.
        address: The server.
        seconds: How long ago it was.
    """
    symptom = cause_of(error) or Symptom.PASSWORD
    # Copy the details, because the new error is raised to another caller.
    details = error.details
    text = None if details is None else details.get("errmsg")
    again: OperationFailure = type(error)(
        f"{text or symptom.says} (reported by {address_text(address)} {seconds:.1f} s ago. "
        f"Check {symptom.check})",
        error.code,
        None if details is None else dict(details),
    )
    return again
