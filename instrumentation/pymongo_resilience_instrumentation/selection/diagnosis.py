"""The likely cause why no server can be used, from what was found on each: pure.

One classifier for the error of a failed selection, which has the errors of pymongo's monitors, and
for ``pymongo-resilience doctor``, which tries each server itself.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pymongo_resilience_instrumentation.failures import terminal_causes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Symptom(enum.Enum):
    """What is wrong with a server or a deployment; earlier ones explain later ones."""

    SET_NAME = "set_name"
    PLAIN_PORT = "plain_port"
    TLS_PORT = "tls_port"
    UNKNOWN_AUTHORITY = "unknown_authority"
    WRONG_HOST_NAME = "wrong_host_name"
    EXPIRED = "expired_certificate"
    NOT_YET_VALID = "certificate_not_yet_valid"
    CERTIFICATE = "certificate"
    CLIENT_CERTIFICATE = "client_certificate"
    TLS_VERSION = "tls_version"
    NOT_MONGODB = "not_mongodb"
    INCOMPATIBLE = "incompatible"
    PASSWORD = "password"  # noqa: S105 - the name of a cause, no password
    MECHANISM = "mechanism"
    LOGIN_REQUIRED = "login_required"
    MISSING_RIGHTS = "missing_rights"
    MEMBER_NAMES = "member_names"
    UNKNOWN_HOST = "unknown_host"
    REFUSED = "refused"
    BLACK_HOLE = "black_hole"
    NO_TLS_ANSWER = "no_tls_answer"
    SILENT = "silent"
    HANGS_UP = "hangs_up"
    OTHER = "other"
    NO_MAJORITY = "no_majority"
    ELECTION = "election"
    NO_MATCH = "no_match"


class Row(NamedTuple):
    """A symptom in words: what it is, and what to check. Immutable."""

    says: str
    check: str


def _terminal(cause: terminal_causes.Cause) -> Row:
    row = terminal_causes.TABLE[cause]
    return Row(row.says, row.check)


ROWS: Mapping[Symptom, Row] = {
    Symptom.SET_NAME: _terminal(terminal_causes.Cause.SET_NAME),
    Symptom.PLAIN_PORT: _terminal(terminal_causes.Cause.PLAIN_PORT),
    Symptom.TLS_PORT: Row(
        "the server requires TLS and the client connects without it", "that the URI has tls=true"
    ),
    Symptom.UNKNOWN_AUTHORITY: Row(
        "the server's TLS certificate is not from an authority that the client trusts",
        "that tlsCAFile is the file of the authority that issued it, intermediates included",
    ),
    Symptom.WRONG_HOST_NAME: Row(
        "the server's TLS certificate is for another host name",
        "that the URI and the replica set's configuration name the hosts as the certificate does",
    ),
    Symptom.EXPIRED: Row(
        "the server's TLS certificate has expired",
        "when it was to be renewed, whether the server has loaded the new one, and this clock",
    ),
    Symptom.NOT_YET_VALID: Row(
        "the server's TLS certificate is not valid yet", "the clock of this machine"
    ),
    Symptom.CERTIFICATE: _terminal(terminal_causes.Cause.CERTIFICATE),
    Symptom.CLIENT_CERTIFICATE: _terminal(terminal_causes.Cause.CLIENT_CERTIFICATE),
    Symptom.TLS_VERSION: Row(
        "client and server have no TLS version or cipher in common",
        "the TLS versions that the server disables, and the OpenSSL of this Python",
    ),
    Symptom.NOT_MONGODB: Row(
        "what answers on that port is no MongoDB server", "host and port in the URI"
    ),
    Symptom.INCOMPATIBLE: Row(
        "this pymongo does not support the server's version",
        "the versions of pymongo and of the server",
    ),
    Symptom.PASSWORD: _terminal(terminal_causes.Cause.PASSWORD),
    Symptom.MECHANISM: Row(
        "the server does not offer the way to log in that the client uses",
        "authMechanism and authSource in the URI against the server's authenticationMechanisms",
    ),
    Symptom.LOGIN_REQUIRED: Row(
        "the server requires a login and the client has no user",
        "that the URI has user and password",
    ),
    Symptom.MISSING_RIGHTS: Row(
        "the user may log in and lacks rights",
        "the user's roles (db.getUser) on the database that the application uses",
    ),
    Symptom.MEMBER_NAMES: Row(
        "the replica set names its members in a way that cannot be reached from here",
        "the host names in rs.conf(): clients need to resolve and reach them (containers, NAT, "
        "localhost); directConnection=true connects to one member without them",
    ),
    Symptom.UNKNOWN_HOST: Row(
        "a host name does not resolve here",
        "the spelling of the host in the URI, and the DNS of this machine or container",
    ),
    Symptom.REFUSED: Row(
        "nothing listens on that port",
        "host and port in the URI, whether the server runs, and where it listens (net.bindIp)",
    ),
    Symptom.BLACK_HOLE: Row(
        "no answer to a connection attempt",
        "firewalls, security groups and IP access lists, routes or VPN, and the address",
    ),
    Symptom.NO_TLS_ANSWER: Row(
        "the server accepts connections and never answers the TLS handshake",
        "whether that port uses TLS at all, whether the process hangs (disk, memory), and proxies "
        "or load balancers in between",
    ),
    Symptom.SILENT: Row(
        "the server accepts connections and never responds",
        "whether the process hangs (disk, memory), and proxies or load balancers in between",
    ),
    Symptom.HANGS_UP: Row(
        "the server closes new connections",
        "whether both sides use TLS, a restart in progress, and the server's connection limit",
    ),
    Symptom.OTHER: Row("servers fail with other errors", "the error of each server"),
    Symptom.NO_MAJORITY: Row(
        "the replica set has no primary, and too few members are reached to elect one",
        "the members that cannot be reached",
    ),
    Symptom.ELECTION: Row(
        "the replica set has no primary at the moment",
        "rs.status() if that lasts longer than an election, 12 s by default",
    ),
    Symptom.NO_MATCH: Row(
        "servers can be reached, and none matches the read preference",
        "its mode, its tags and maxStalenessSeconds, and the application's server selector",
    ),
}  # fmt: skip

_ORDER = list(Symptom)
_TEXTS = {
    Symptom.EXPIRED: ("certificate has expired",),
    Symptom.NOT_YET_VALID: ("not yet valid",),
    Symptom.WRONG_HOST_NAME: ("mismatch", "not valid for", "doesn't match"),
    Symptom.UNKNOWN_AUTHORITY: ("certificate verify failed",),
    Symptom.CERTIFICATE: (r"VerificationError\(errors=",),
    Symptom.PLAIN_PORT: ("wrong.version.number", "record.layer.failure", "http.request"),
    Symptom.TLS_VERSION: ("protocol.version", "unsupported.protocol", "no.protocols", "no.shared"),
    Symptom.CLIENT_CERTIFICATE: (
        "certificate.required", "alert.unknown.ca", "alert.bad.certificate", "alert.handshake",
    ),
    Symptom.NOT_MONGODB: ("ProtocolError",),
    Symptom.UNKNOWN_HOST: (
        "not known", "name resolution", "no address associated", "getaddrinfo", "not resolve",
    ),
    Symptom.REFUSED: ("refused",),
    Symptom.BLACK_HOLE: ("no answer to a connection", "unreachable", "no route to host"),
    Symptom.NO_TLS_ANSWER: ("handshake.*(unanswered|timed out)",),
    Symptom.SILENT: ("timed out", "no answer to hello"),
    Symptom.HANGS_UP: ("reset by peer", "broken pipe", "eof", "connection closed", "aborted"),
}  # fmt: skip
"""What an error without values says (``descriptions.error_text``), or a check in progress."""


class Found(NamedTuple):
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

    @property
    def says(self) -> str:
        return ROWS[self.symptom].says

    @property
    def check(self) -> str:
        return ROWS[self.symptom].check

    def __str__(self) -> str:
        return f"Likely cause: {self.says}. Check {self.check}"


def symptom_of(text: str | None) -> Symptom | None:
    """Of the error or the unfinished check of a server, in words without values; None of None."""
    if text is None:
        return None
    return next(
        (each for each, said in _TEXTS.items() if re.search("|".join(said), text, re.IGNORECASE)),
        Symptom.OTHER,
    )


def diagnose(
    servers: Sequence[Found],
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
    failed = [each for each in servers if each.symptom is not None]
    reached = [each for each in servers if each.symptom is None and each.is_member]
    if any(each.is_primary for each in servers) or (reached and not wants_primary):
        return Diagnosis(Symptom.NO_MATCH)
    if reached:
        enough = len(reached) * 2 > len(servers)
        cause = Symptom.ELECTION if enough else Symptom.NO_MAJORITY
        return Diagnosis(cause, tuple(each.address for each in failed))
    if not failed:
        return None
    of_network = {Symptom.UNKNOWN_HOST, Symptom.REFUSED, Symptom.BLACK_HOLE}
    are_announced = bool(seeds) and not {each.address for each in servers} & set(seeds)
    if are_announced and all(each.symptom in of_network for each in failed):
        return Diagnosis(Symptom.MEMBER_NAMES, tuple(each.address for each in failed))
    cause = worst([each.symptom for each in failed if each.symptom is not None])
    return Diagnosis(cause, tuple(each.address for each in failed if each.symptom is cause))


def worst(symptoms: Sequence[Symptom]) -> Symptom:
    """The most frequent one; of several, the one that explains the others."""
    counts = Counter(symptoms)
    return min(counts, key=lambda each: (-counts[each], _ORDER.index(each)))
