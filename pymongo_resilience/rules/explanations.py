"""The texts of explanations: why nothing was repeated, and what a failed server selection was
waiting for.

One sentence each. What is in braces are facts: names of methods, options and classes, numbers and
addresses, never a value of a document nor a text of a server.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from .failure import Failure, Stage
from .retry_rules import Rule
from .retry_state import Kind, RetryState

NOT_REPEATED: Final[Mapping[Rule, str]] = {
    Rule.SELECTION: "{name}: a failed server selection is not repeated",
    Rule.NEVER_REPEATED: "{name} {never}",
    Rule.TRANSACTION_OVER: (
        "{name}: the transaction has ended: repeat all of it, as with_transaction does"
    ),
    Rule.TIME_LIMIT: "{name}: {time_limit} ended it, and a retry would take as long",
    Rule.UNKNOWN_REASON: "{name}: a retry would not help",
    Rule.TERMINAL: "{name}: a retry would not help ({reason})",
    Rule.NOT_SAFE: "{name} was sent {unsafe}",
    Rule.SWITCHED_OFF: "{name}: {switch}",
    Rule.ATTEMPTS: "{name}: the limit of retries is reached: {limit}",
    Rule.STRATEGY: "{name}: the strategy {strategy} declined",
    Rule.DEADLINE: "{name}: no attempt fits before the deadline",
    Rule.OVERLOAD_WAIT: (
        "{name}: the wait after an overload error would pass the deadline: send less, or set a "
        "longer timeout"
    ),
    Rule.BREAKER: "{name}: no timeout leaves time for the circuit breaker's next probe",
    Rule.BUDGET: (
        "{name}: the server is overloaded, and the client's retry budget is spent: send less until "
        "it recovers"
    ),
}
_SENT_ONCE: Final = {
    Kind.COMMAND: "what a command runs is not known",
    Kind.GET_MORE: "the server may have moved the cursor on",
    Kind.AGGREGATE_WRITE: "$out or $merge may have written a part of its result",
    Kind.CLEANUP: "the server ends by itself what it would end",
}
"""Why these are not retried, unless they were not sent."""
_READS_OFF: Final = "retryReads is off: a retry needs retryReads=true of the client"
_WRITES_OFF: Final = "retryWrites is off: a retry needs retryWrites=true of the client"
_SWITCHES: Final = {
    Kind.READ: _READS_OFF,
    Kind.GET_MORE: _READS_OFF,
    Kind.COMMAND: "retryReads or retryWrites is off: a retry needs both of the client",
}


class Symptom(enum.Enum):
    """What is wrong with a server or a deployment; earlier ones explain later ones."""

    says: str
    """What it is."""
    check: str
    """What to look at."""

    def __init__(self, says: str, check: str) -> None:
        self.says, self.check = says, check

    @property
    def word(self) -> str:
        """What ``terminal_cause`` and the doctor's JSON call it."""
        return self.name.lower()

    SET_NAME = (
        "no server belongs to the replica set that the client asks for",
        "replicaSet in the URI against rs.status(), and that the hosts are those of that set",
    )
    REMOVED = (
        "the server is not a member of the deployment any more",
        "rs.conf() for members that were renamed or removed; a new cursor or session finds them",
    )
    PLAIN_PORT = (
        "the client uses TLS and the server on that port does not",
        "tls in the URI (a mongodb+srv URI switches it on), the port, and the server's TLS mode",
    )
    TLS_PORT = (
        "the server requires TLS and the client connects without it",
        "that the URI has tls=true",
    )
    UNKNOWN_AUTHORITY = (
        "the server's TLS certificate is not from an authority that the client trusts",
        (
            "that tlsCAFile is the file of the authority that issued it, intermediates included, "
            "and whether a proxy in between shows a certificate of its own"
        ),
    )
    WRONG_HOST_NAME = (
        "the server's TLS certificate is for another host name",
        "that the URI and the replica set's configuration name the hosts as the certificate does",
    )
    EXPIRED = (
        "the server's TLS certificate has expired",
        "when it was to be renewed, whether the server has loaded the new one, and this clock",
    )
    NOT_YET_VALID = (
        "the server's TLS certificate is not valid yet",
        "the clock of this machine",
    )
    CLIENT_CERTIFICATE = (
        "the server refuses the client's TLS certificate, or requires one",
        "tlsCertificateKeyFile, and that the server's CA file has its authority",
    )
    TLS_VERSION = (
        "client and server have no TLS version or cipher in common",
        "the TLS versions that the server disables, and the OpenSSL of this Python",
    )
    WRONG_SNI = (
        "nothing serves the host name that the client asks for in the TLS handshake (SNI)",
        (
            "that the URI names the host as the service does, without aliases or IP addresses, and "
            "the routes of proxies that go by name"
        ),
    )
    ACCESS_LIST = (
        (
            "the server ends the TLS handshake with an error of its own, as MongoDB Atlas does for "
            "addresses that are not on the project's IP access list"
        ),
        (
            "the IP access list against the public address of this machine (of its NAT or VPN), "
            "whether the cluster is paused, and elsewhere the server's log"
        ),
    )
    NOT_MONGODB = (
        "what answers on that port is no MongoDB server",
        "host and port in the URI",
    )
    INCOMPATIBLE = (
        "this pymongo does not support the server's version",
        "the versions of pymongo and of the server",
    )
    PASSWORD = (
        "the server refused the password",
        "user, password, authSource and authMechanism",
    )
    USER = (
        "the server does not know the user",
        "user and authSource; with MONGODB-X509, that $external has the certificate's subject",
    )
    MECHANISM = (
        "the server does not offer the way to log in that the client uses",
        "authMechanism and authSource in the URI against the server's authenticationMechanisms",
    )
    LOGIN_REQUIRED = (
        "the server requires a login and the client has no user",
        "that the URI has user and password",
    )
    MISSING_RIGHTS = (
        "the user may log in and lacks rights",
        "the user's roles (db.getUser) on the database that the application uses",
    )
    MEMBER_NAMES = (
        "the replica set names its members in a way that cannot be reached from here",
        "that clients reach the host names in rs.conf(); directConnection=true does without them",
    )
    UNKNOWN_HOST = (
        "a host name does not resolve here",
        "the spelling of the host in the URI, and the DNS of this machine or container",
    )
    UNIX_SOCKET = (
        "no server can be reached through the unix socket",
        (
            "the path in the URI, whether the server runs and made the socket "
            "(net.unixDomainSocket), and the permissions of the file"
        ),
    )
    REFUSED = (
        "nothing listens on that port",
        "host and port in the URI, whether the server runs, and where it listens (net.bindIp)",
    )
    BLACK_HOLE = (
        "no answer to a connection attempt",
        "firewalls, security groups and IP access lists, routes or VPN, and the address",
    )
    NO_ANSWER = (
        "the server never responds",
        "firewalls, address, TLS, and whether it hangs; pymongo-resilience doctor tries each step",
    )
    NO_TLS_ANSWER = (
        "the server accepts connections and never answers the TLS handshake",
        "whether that port uses TLS, whether the process hangs, and proxies in between",
    )
    SILENT = (
        "the server accepts connections and never responds",
        "whether the process hangs (disk, memory), and proxies or load balancers in between",
    )
    CLOSES_AFTER_TLS = (
        "the server completes the TLS handshake, then closes the connection",
        (
            "whether the server trusts the client's certificate, or requires one "
            "(tlsCertificateKeyFile, the server's log), IP access lists, and proxies whose server "
            "is down"
        ),
    )
    HANGS_UP = (
        "the server closes new connections",
        (
            "whether both sides use TLS, a restart in progress, the server's connection limit, and "
            "IP access lists of the server, of proxies and load balancers"
        ),
    )
    OTHER = "servers fail with other errors", "the error of each server"
    NO_MAJORITY = (
        "the replica set has no primary, and too few members are reached to elect one",
        "the members that cannot be reached",
    )
    ELECTION = (
        "the replica set has no primary at the moment",
        "rs.status() if that lasts longer than an election, 12 s by default",
    )
    NO_MATCH = (
        "servers can be reached, and none matches the read preference",
        "its mode, its tags and maxStalenessSeconds, and the application's server selector",
    )


def why_not_repeated(rule: Rule, state: RetryState, failure: Failure) -> str:
    """The sentence of NOT_REPEATED for one failed operation."""
    return NOT_REPEATED[rule].format(
        name=state.method or state.name,
        never=_never(state, failure),
        reason=failure.reason.value,
        unsafe=_unsafe(state, failure),
        switch=_SWITCHES.get(state.kind, _WRITES_OFF),
        limit=_limit(state),
        time_limit=_time_limit(failure),
        strategy=type(state.strategy).__name__,
    )


def _never(state: RetryState, failure: Failure) -> str:
    """What is known of the attempt, and why none follows."""
    if failure.router_lost:
        return (
            "was not sent: the router that its transaction began on cannot be reached. Repeat all "
            "of the transaction, as with_transaction does"
        )
    if state.in_transaction:
        because = "a transaction is repeated as a whole"
    else:
        because = _SENT_ONCE.get(state.kind, "whether it was applied is not known")
    if failure.stage is not Stage.NOT_SENT:
        return f"is never repeated once it was sent: {because}"
    if state.kind is Kind.CLEANUP:
        return f"was not sent, and is not repeated: {because}"
    return f"was not sent, and the strategy {type(state.strategy).__name__} does not repeat it"


def _unsafe(state: RetryState, failure: Failure) -> str:
    if failure.session_ends is not None and failure.forgotten:
        minutes = failure.session_ends.timeout / 60
        return f"over {minutes:g} minutes ago, and its session may have ended"
    if not state.acknowledged:
        return "unacknowledged: whether it was executed is unknown"
    if not state.retries_enabled:
        # Named together, or each piece of advice would lead to the other.
        return (
            "while retryWrites is off. A retry needs retryWrites=true, and for a write that the "
            "server does not recognize also a declaration that it is idempotent"
        )
    return "and is not declared idempotent"


def _time_limit(failure: Failure) -> str:
    if failure.application_limit_ms is None:
        return "a time limit of the server, and not the deadline,"
    return f"maxTimeMS={failure.application_limit_ms}, which the application set,"


def _limit(state: RetryState) -> str:
    if state.overloaded:
        return f"{state.attempts - 1} after an overload error"
    if state.once:
        return "one, since the background task sends it again"
    if state.retry_window is None:
        return (
            f"{'one' if state.retries == 1 else state.retries} without timeout_ms: set it for more"
        )
    return "serverSelectionTimeoutMS with a timeout of 0"
