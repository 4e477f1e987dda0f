"""What can be wrong with a server or a deployment, and what to check: one sentence each."""

from __future__ import annotations

import enum
from typing import Self


class Symptom(enum.StrEnum):
    """What is wrong with a server or a deployment; earlier ones explain later ones.

    The value is what ``terminal_cause`` and the doctor's JSON have.
    """

    says: str
    """What it is."""
    check: str
    """What to look at."""

    def __new__(cls, word: str, says: str, check: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.says, member.check = says, check
        return member

    SET_NAME = (
        "set_name",
        "no server belongs to the replica set that the client asks for",
        "replicaSet in the URI against rs.status(), and that the hosts are those of that set",
    )
    REMOVED = (
        "removed",
        "the server is not a member of the deployment any more",
        "rs.conf() for members that were renamed or removed; a new cursor or session finds them",
    )
    PLAIN_PORT = (
        "plain_port",
        "the client uses TLS and the server on that port does not",
        "tls in the URI (a mongodb+srv URI switches it on), the port, and the server's TLS mode",
    )
    TLS_PORT = (
        "tls_port",
        "the server requires TLS and the client connects without it",
        "that the URI has tls=true",
    )
    UNKNOWN_AUTHORITY = (
        "unknown_authority",
        "the server's TLS certificate is not from an authority that the client trusts",
        (
            "that tlsCAFile is the file of the authority that issued it, intermediates included, "
            "and whether a proxy in between shows a certificate of its own"
        ),
    )
    WRONG_HOST_NAME = (
        "wrong_host_name",
        "the server's TLS certificate is for another host name",
        "that the URI and the replica set's configuration name the hosts as the certificate does",
    )
    EXPIRED = (
        "expired",
        "the server's TLS certificate has expired",
        "when it was to be renewed, whether the server has loaded the new one, and this clock",
    )
    NOT_YET_VALID = (
        "not_yet_valid",
        "the server's TLS certificate is not valid yet",
        "the clock of this machine",
    )
    CLIENT_CERTIFICATE = (
        "client_certificate",
        "the server refuses the client's TLS certificate, or requires one",
        "tlsCertificateKeyFile, and that the server's CA file has its authority",
    )
    TLS_VERSION = (
        "tls_version",
        "client and server have no TLS version or cipher in common",
        "the TLS versions that the server disables, and the OpenSSL of this Python",
    )
    WRONG_SNI = (
        "wrong_sni",
        "nothing serves the host name that the client asks for in the TLS handshake (SNI)",
        (
            "that the URI names the host as the service does, without aliases or IP addresses, and "
            "the routes of proxies that go by name"
        ),
    )
    ACCESS_LIST = (
        "access_list",
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
        "not_mongodb",
        "what answers on that port is no MongoDB server",
        "host and port in the URI",
    )
    INCOMPATIBLE = (
        "incompatible",
        "this pymongo does not support the server's version",
        "the versions of pymongo and of the server",
    )
    PASSWORD = (
        "password",
        "the server refused the password",
        "user, password, authSource and authMechanism",
    )
    USER = (
        "user",
        "the server does not know the user",
        "user and authSource; with MONGODB-X509, that $external has the certificate's subject",
    )
    MECHANISM = (
        "mechanism",
        "the server does not offer the way to log in that the client uses",
        "authMechanism and authSource in the URI against the server's authenticationMechanisms",
    )
    LOGIN_REQUIRED = (
        "login_required",
        "the server requires a login and the client has no user",
        "that the URI has user and password",
    )
    MISSING_RIGHTS = (
        "missing_rights",
        "the user may log in and lacks rights",
        "the user's roles (db.getUser) on the database that the application uses",
    )
    MEMBER_NAMES = (
        "member_names",
        "the replica set names its members in a way that cannot be reached from here",
        "that clients reach the host names in rs.conf(); directConnection=true does without them",
    )
    OVERLOADED = (
        "overloaded",
        "the server is overloaded and rejects requests; it is not down",
        (
            "what overloads it (its own metrics, and how much this application sends), and its "
            "limits of requests and connections"
        ),
    )
    UNKNOWN_HOST = (
        "unknown_host",
        "a host name does not resolve here",
        "the spelling of the host in the URI, and the DNS of this machine or container",
    )
    UNIX_SOCKET = (
        "unix_socket",
        "no server can be reached through the unix socket",
        (
            "the path in the URI, whether the server runs and made the socket "
            "(net.unixDomainSocket), and the permissions of the file"
        ),
    )
    REFUSED = (
        "refused",
        "nothing listens on that port",
        "host and port in the URI, whether the server runs, and where it listens (net.bindIp)",
    )
    BLACK_HOLE = (
        "black_hole",
        "no answer to a connection attempt",
        "firewalls, security groups and IP access lists, routes or VPN, and the address",
    )
    NO_ANSWER = (
        "no_answer",
        "the server has not responded so far",
        (
            "whether the timeout is longer than connecting takes, firewalls, address, TLS, and "
            "whether the server hangs; pymongo-resilience doctor tries each step"
        ),
    )
    NO_TLS_ANSWER = (
        "no_tls_answer",
        "the server accepts connections and does not answer the TLS handshake",
        "whether that port uses TLS, whether the process hangs, and proxies in between",
    )
    SILENT = (
        "silent",
        "the server accepts connections and does not respond",
        "whether the process hangs (disk, memory), and proxies or load balancers in between",
    )
    CLOSES_AFTER_TLS = (
        "closes_after_tls",
        "the server completes the TLS handshake, then closes the connection",
        (
            "whether the server trusts the client's certificate, or requires one "
            "(tlsCertificateKeyFile, the server's log), IP access lists, and proxies whose server "
            "is down"
        ),
    )
    HANGS_UP = (
        "hangs_up",
        "the server closes new connections",
        (
            "whether both sides use TLS, a restart in progress, the server's connection limit, and "
            "IP access lists of the server, of proxies and load balancers"
        ),
    )
    OTHER = "other", "servers fail with other errors", "the error of each server"
    NO_MAJORITY = (
        "no_majority",
        "the replica set has no primary, and too few members are reached to elect one",
        "the members that cannot be reached",
    )
    ELECTION = (
        "election",
        "the replica set has no primary at the moment",
        "rs.status() if that lasts longer than an election, 12 s by default",
    )
    NO_MATCH = (
        "no_match",
        "servers can be reached, and none matches the read preference",
        "its mode, its tags and maxStalenessSeconds, and the application's server selector",
    )
