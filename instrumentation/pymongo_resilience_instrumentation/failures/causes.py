"""From the error that a server was last found with to the likely cause, and to the terminal ones.

pymongo keeps only the type and text of a failed check (it drops ``__cause__``), so texts are
matched. A failed selection has the errors of pymongo's monitors; ``pymongo-resilience doctor``
tries each server itself. The sentences are those of ``Symptom``.
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
"""By the code with which a server ends a login: the same credentials are refused again."""
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
"""What does not pass by waiting. In doubt a cause is not terminal."""
_OF_THE_SET = r"this node belongs to a set named '(?!None')"
"""A server that is down, or has not read its configuration yet, has the name None."""
_TEXTS = {
    Symptom.EXPIRED: "certificate has expired",
    Symptom.NOT_YET_VALID: "not yet valid",
    # Of the standard library; of PyOpenSSL with service-identity.
    Symptom.WRONG_HOST_NAME: "certificate.*(mismatch|not valid for|doesn't match)"
    r"|VerificationError\(errors=",
    Symptom.UNKNOWN_AUTHORITY: "certificate verify failed",
    Symptom.PLAIN_PORT: "wrong.version.number|record.layer.failure|http.request",
    Symptom.TLS_VERSION: "protocol.version|unsupported.protocol|no.protocols|no.shared",
    # Alerts of the server's, which has read the client's certificate, or found none.
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
    # "is already closed" is asyncio's, "is shutdown" OpenSSL's, "forcibly closed" Windows'.
    Symptom.HANGS_UP: "reset by peer|broken pipe|eof|connection closed|already closed|aborted"
    "|closed by the peer|protocol.is.shutdown|forcibly closed|closing transport",
}
"""What an error without values says; the first that matches counts."""
_OF_NETWORK = {Symptom.UNKNOWN_HOST, Symptom.REFUSED, Symptom.BLACK_HOLE, Symptom.NO_ANSWER}
_OF_UNIX_SOCKETS = {Symptom.REFUSED, Symptom.OTHER}
"""What a file shows that is not there, or whose server is gone."""


class ObservedServer(NamedTuple):
    """A server as it was found. Immutable."""

    address: str
    symptom: Symptom | None
    """None where it is reached and usable, or nothing is known of it yet."""
    is_primary: bool = False
    is_member: bool = False
    """It is reached, and of a replica set."""


class Diagnosis(NamedTuple):
    """The likely cause, and the servers that show it. Immutable."""

    symptom: Symptom
    servers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Likely cause: {self.symptom.says}. Check {self.symptom.check}"


def symptom_of(text: str) -> Symptom:
    """What a server's error, in words without values, shows."""
    matching = (each for each, said in _TEXTS.items() if re.search(said, text, re.IGNORECASE))
    return next(matching, Symptom.OTHER)


def symptom_at(
    text: str, address: Address, *, tls: bool = False, handshake: bool = False
) -> Symptom:
    """Return what the words of a connection that failed show about the server at ``address``.

    ``tls``: the client uses TLS; ``handshake``: the TLS handshake was not completed.
    """
    found = symptom_of(text)
    if address[1] is None and found in _OF_UNIX_SOCKETS:
        return Symptom.UNIX_SOCKET
    if found is Symptom.HANGS_UP and tls and not handshake:
        return Symptom.CLOSES_AFTER_TLS
    return found


def is_rejection(error: BaseException | None) -> bool:
    """Return True if the server itself rejected a command as overloaded.

    pymongo gives the same label to connections that cannot be made, which prove nothing.
    """
    return isinstance(error, OperationFailure) and error.has_error_label(SYSTEM_OVERLOADED)


def hangs_up(error: Exception | None) -> bool:
    """Return whether a check failed because the server closed the connection."""
    is_connection = isinstance(error, ConnectionFailure)
    return is_connection and symptom_of(str(error)) is Symptom.HANGS_UP


def cause_of(error: Exception | None) -> Symptom | None:
    """The terminal cause of a server's last error; None where waiting may help."""
    if isinstance(error, OperationFailure):
        return LOGIN_REFUSALS.get(error.code or 0)
    if error is None or isinstance(error, NotPrimaryError):
        # What a server says may have any text in it.
        return None
    text = str(error)
    if isinstance(error, ConfigurationError):
        return Symptom.SET_NAME if re.search(_OF_THE_SET, text) else None
    symptom = symptom_of(text)
    # This alert may be about a missing certificate, or about a cipher.
    return symptom if symptom in TERMINAL and "handshake failure" not in text else None


def diagnose(
    servers: Sequence[ObservedServer],
    *,
    seeds: Sequence[str] = (),
    replica_set: bool = False,
    wants_primary: bool = True,
) -> Diagnosis | None:
    """The likely cause why an operation finds no server; None where there is nothing to say.

    ``servers``: those that the client knows now; ``seeds``: the addresses that it was made with;
    ``replica_set``: it looks for the members of one; ``wants_primary``: no other member will do.
    """
    if not servers:
        # pymongo drops every server that is not of the set.
        return Diagnosis(Symptom.SET_NAME, tuple(seeds)) if replica_set else None
    failed = {each.address: each.symptom for each in servers if each.symptom is not None}
    reached = [each for each in servers if each.symptom is None and each.is_member]
    if any(each.is_primary for each in servers) or (reached and not wants_primary):
        return Diagnosis(Symptom.NO_MATCH)
    if reached:
        enough = len(reached) * 2 > len(servers)
        return Diagnosis(Symptom.ELECTION if enough else Symptom.NO_MAJORITY, tuple(failed))
    if not failed:
        return None
    are_announced = bool(seeds) and not {each.address for each in servers} & set(seeds)
    if are_announced and _OF_NETWORK.issuperset(failed.values()):
        return Diagnosis(Symptom.MEMBER_NAMES, tuple(failed))
    # The most frequent one; of several, the one that explains the others.
    counts, order = Counter(failed.values()), list(Symptom)
    cause = min(counts, key=lambda each: (-counts[each], order.index(each)))
    return Diagnosis(cause, tuple(at for at, symptom in failed.items() if symptom is cause))


def selection_error(
    cause: Symptom, found: Mapping[Address, Exception | str | None], asked_for: str | None
) -> ServerSelectionTimeoutError:
    """The error of a selection that is given up: pymongo's own class, with the cause, each server
    and what to check. Its attribute ``terminal_cause`` is the cause in one word.

    ``found``: the servers and what they were found with, of one that is reached what it is;
    ``asked_for``: the replica set's name.
    """
    name = f' (replicaSet="{asked_for}")' if cause is Symptom.SET_NAME else ""
    servers = "; ".join(
        address_text(address) + ("" if what is None else f" ({what})")
        for address, what in found.items()
    )
    error = ServerSelectionTimeoutError(
        f"no server can be used, and waiting would not help: {cause.says}{name}. "
        f"Found on {servers}. Check {cause.check}"
    )
    vars(error)["terminal_cause"] = cause.value
    return error


def terminal_cause(error: BaseException) -> Symptom | None:
    """The cause that ``selection_error`` gave an error; None for any other error."""
    if not isinstance(error, ServerSelectionTimeoutError):
        return None
    word = vars(error).get("terminal_cause")
    return next((cause for cause in TERMINAL if cause == word), None)


def refused_again(error: OperationFailure, address: Address, seconds: float) -> OperationFailure:
    """A login's refusal as a new error, for an operation that did not ask; ``seconds``: its age."""
    symptom = cause_of(error) or Symptom.PASSWORD
    details = error.details
    text = None if details is None else details.get("errmsg")
    again: OperationFailure = type(error)(
        f"{text or symptom.says} (by {address_text(address)} {seconds:.1f} s ago. "
        f"Check {symptom.check})",
        error.code,
        None if details is None else dict(details),
    )
    return again
