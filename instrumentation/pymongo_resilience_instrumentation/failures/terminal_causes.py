"""Terminal causes: the errors of a server that do not pass by waiting, in one table.

pymongo keeps only the type and text of a failed check (it drops ``__cause__``), so these are
matched. In doubt a cause is not terminal: a server that refuses, hangs up, is slow or has a name
that does not resolve may be there the next moment.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple

from pymongo.errors import (
    ConfigurationError,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience_instrumentation.addresses import address_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience_instrumentation.addresses import Address

AUTHENTICATION_FAILED = 18


class Cause(enum.Enum):
    """The value is that of an error's attribute ``terminal_cause``."""

    CERTIFICATE = "certificate"
    CLIENT_CERTIFICATE = "client_certificate"
    PLAIN_PORT = "plain_port"
    SET_NAME = "set_name"
    PASSWORD = "password"  # noqa: S105 - the name of a cause, no password


class Row(NamedTuple):
    """One cause. Immutable."""

    says: str
    """How the error for the application begins."""
    check: str
    reason: RetryReason


TABLE: Mapping[Cause, Row] = {
    Cause.CERTIFICATE: Row(
        "the TLS certificate is not trusted, or not for this host",
        "the authority in tlsCAFile, whether the certificate has expired, and that it names the "
        "host as the URI does",
        RetryReason.TLS_ERROR,
    ),
    Cause.CLIENT_CERTIFICATE: Row(
        "the server refuses the client's TLS certificate, or requires one",
        "tlsCertificateKeyFile, and that the server's CA file has its authority",
        RetryReason.TLS_ERROR,
    ),
    Cause.PLAIN_PORT: Row(
        "the client uses TLS and the server on that port does not",
        "tls in the URI (a mongodb+srv URI switches it on), the port, and the server's TLS mode",
        RetryReason.TLS_ERROR,
    ),
    Cause.SET_NAME: Row(
        "no server belongs to the replica set that the client asks for",
        "replicaSet in the URI against the name that rs.status() shows, and that the hosts are "
        "those of that set",
        RetryReason.NODE_NOT_AVAILABLE,
    ),
    Cause.PASSWORD: Row(
        "the server refused the password",
        "user, password, authSource and authMechanism",
        RetryReason.AUTHENTICATION_ERROR,
    ),
}


TEXTS: Mapping[Cause, str] = {
    # Of the standard library, with the reason after it, and of PyOpenSSL, which has other words for
    # a wrong host. What is not valid yet will be.
    Cause.CERTIFICATE: r"certificate verify failed(?!.*not yet valid)|VerificationError\(errors=",
    # Alerts of the server's, which has read the client's certificate, or found none.
    Cause.CLIENT_CERTIFICATE: r"alert (certificate (required|expired|revoked|unknown)"
    r"|bad certificate|unknown ca)",
    Cause.PLAIN_PORT: r"wrong version number",
    # A server that is down, or has not read its configuration yet, has the name None.
    Cause.SET_NAME: r"this node belongs to a set named '(?!None')",
}
"""Patterns for what a server's error says; of a refused password it is the code that counts."""


OF_TLS = (Cause.CERTIFICATE, Cause.CLIENT_CERTIFICATE, Cause.PLAIN_PORT)


def cause_of(error: Exception | None) -> Cause | None:
    """Of the error that a server was last found with; None where waiting may help."""
    if isinstance(error, OperationFailure):
        return Cause.PASSWORD if error.code == AUTHENTICATION_FAILED else None
    if error is None or isinstance(error, NotPrimaryError):
        # What a server says may have any text in it.
        return None
    of_the_set = isinstance(error, ConfigurationError)
    possible = (Cause.SET_NAME,) if of_the_set else OF_TLS
    text = str(error)
    return next((cause for cause in possible if re.search(TEXTS[cause], text)), None)


def selection_error(
    cause: Cause, found: Mapping[Address, Exception | str | None], asked_for: str | None
) -> ServerSelectionTimeoutError:
    """The error of a selection that is given up: pymongo's own class, which says the cause, each
    server and what to check. Its attribute ``terminal_cause`` is the cause in one word.

    ``found``: the servers and what they were found with, of one that is reached what it is;
    ``asked_for``: the replica set's name.
    """
    servers = "; ".join(
        address_text(address) + _error_text(what) for address, what in found.items()
    )
    error = ServerSelectionTimeoutError(
        f"{_begins(cause, asked_for)}. Found on {servers}. Check {TABLE[cause].check}"
    )
    vars(error)["terminal_cause"] = cause.value
    return error


def _begins(cause: Cause, asked_for: str | None) -> str:
    name = f' (replicaSet="{asked_for}")' if cause is Cause.SET_NAME else ""
    return f"no server can be used, and waiting would not help: {TABLE[cause].says}{name}"


def _error_text(what: Exception | str | None) -> str:
    if what is None:
        return ""
    if isinstance(what, Exception):
        return f" ({what})"
    return f" (a{'n' * (what[0] in 'aeiou')} {what}, which this operation does not use)"


def terminal_cause(error: BaseException) -> Cause | None:
    """Of an error that ``selection_error`` made."""
    if not isinstance(error, ServerSelectionTimeoutError):
        return None
    said = vars(error).get("terminal_cause")
    return next((cause for cause in Cause if cause.value == said), None)


def refused_again(error: OperationFailure, address: Address, seconds: float) -> OperationFailure:
    """The refusal of a password once more, as an error of its own, for who did not ask the server.

    ``seconds``: how long ago it was said.
    """
    details = error.details
    said = details.get("errmsg") if details is not None else None
    again: OperationFailure = type(error)(
        f"{said or TABLE[Cause.PASSWORD].says} (by {address_text(address)} {seconds:.1f} s ago; "
        f"tried again after at most a second. Check {TABLE[Cause.PASSWORD].check})",
        error.code,
        None if details is None else dict(details),
    )
    return again
