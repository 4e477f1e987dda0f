"""What can be wrong with a server or a deployment, and what to check: one sentence each."""

from __future__ import annotations

import enum
from typing import Self


class Symptom(enum.StrEnum):
    """What is wrong with a server or a deployment. Earlier symptoms explain later ones.

    The value is exported as ``terminal_cause`` and in the doctor's JSON.
    """

    says: str
    """The problem. Completes "Likely cause: ..."."""
    check: str
    """What to look at. Completes "Check ..."."""

    def __new__(cls, word: str, says: str, check: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.says, member.check = says, check
        return member

    SET_NAME = (
        "set_name",
        "no server belongs to the replica set that the URI names",
        (
            "that replicaSet in the URI is the name in rs.status(), and that the hosts belong to "
            "that replica set"
        ),
    )
    REMOVED = (
        "removed",
        "the server is no longer a member of the deployment",
        (
            "rs.conf() for members that were renamed or removed. A new cursor or session uses the "
            "current members"
        ),
    )
    PLAIN_PORT = (
        "plain_port",
        "the client uses TLS, but the server on that port does not",
        (
            "the tls option in the URI (a mongodb+srv URI turns TLS on), the port, and the "
            "server's TLS mode"
        ),
    )
    TLS_PORT = (
        "tls_port",
        "the server requires TLS, but the client connects without it",
        "that the URI contains tls=true",
    )
    UNKNOWN_AUTHORITY = (
        "unknown_authority",
        "the client does not trust the authority that issued the server's TLS certificate",
        (
            "that tlsCAFile contains the issuing authority and all intermediate certificates, and "
            "whether a proxy in between presents its own certificate"
        ),
    )
    WRONG_HOST_NAME = (
        "wrong_host_name",
        "the server's TLS certificate was issued for another host name",
        ("that the URI and the replica set's configuration use the host names in the certificate"),
    )
    EXPIRED = (
        "expired",
        "the server's TLS certificate has expired",
        (
            "that the certificate was renewed, that the server has loaded the new one, and the "
            "clock of this machine"
        ),
    )
    NOT_YET_VALID = (
        "not_yet_valid",
        "the server's TLS certificate is not valid yet",
        "the clock of this machine",
    )
    CLIENT_CERTIFICATE = (
        "client_certificate",
        "the server refuses the client's TLS certificate, or requires one and got none",
        (
            "tlsCertificateKeyFile in the URI, and that the server's CA file contains the "
            "authority that issued it"
        ),
    )
    TLS_VERSION = (
        "tls_version",
        "the client and the server have no TLS version or cipher in common",
        "which TLS versions the server disables, and the OpenSSL version of this Python",
    )
    WRONG_SNI = (
        "wrong_sni",
        "no service accepts the host name that the client sends in the TLS handshake (SNI)",
        (
            "that the URI uses the service's own host name and not an alias or an IP address, and "
            "that proxies route this name"
        ),
    )
    ACCESS_LIST = (
        "access_list",
        (
            "the server ends the TLS handshake with an internal error, as MongoDB Atlas does for "
            "addresses that are not on the project's IP access list"
        ),
        (
            "that the access list contains the public address of this machine (or of its NAT or "
            "VPN), and that the cluster is not paused. Outside of Atlas, check the server's log"
        ),
    )
    NOT_MONGODB = (
        "not_mongodb",
        "the server on that port is not a MongoDB server",
        "the host and port in the URI",
    )
    INCOMPATIBLE = (
        "incompatible",
        "this version of pymongo does not support the server's version",
        "which versions of pymongo and the server work together",
    )
    PASSWORD = (
        "password",
        "the server refused the password",
        "the user, password, authSource and authMechanism",
    )
    USER = (
        "user",
        "the server does not know the user",
        (
            "the user and authSource; with MONGODB-X509, that $external contains a user with the "
            "certificate's subject"
        ),
    )
    MECHANISM = (
        "mechanism",
        "the server does not support the authentication mechanism that the client uses",
        (
            "authMechanism and authSource in the URI, and authenticationMechanisms in the server's "
            "configuration"
        ),
    )
    LOGIN_REQUIRED = (
        "login_required",
        "the server requires a login, but the client has no credentials",
        "that the URI contains a user and a password",
    )
    MISSING_RIGHTS = (
        "missing_rights",
        "the user can log in but lacks permissions",
        "the user's roles (db.getUser) for the database that the application uses",
    )
    MEMBER_NAMES = (
        "member_names",
        "the replica set's own host names cannot be reached from this machine",
        (
            "that this machine can reach the host names in rs.conf(). For a single member, "
            "directConnection=true avoids them"
        ),
    )
    OVERLOADED = (
        "overloaded",
        "the server is running, but it is overloaded and rejects requests",
        (
            "the server's metrics, how much this application sends, and the server's limits for "
            "requests and connections"
        ),
    )
    UNKNOWN_HOST = (
        "unknown_host",
        "a host name cannot be resolved on this machine",
        "the spelling of the host in the URI, and the DNS settings of this machine or container",
    )
    UNIX_SOCKET = (
        "unix_socket",
        "no server can be reached through the Unix socket",
        (
            "the path in the URI, that the server is running and creates the socket "
            "(net.unixDomainSocket), and the permissions of the file"
        ),
    )
    REFUSED = (
        "refused",
        "nothing listens on that port",
        (
            "the host and port in the URI, that the server is running, and the addresses on which "
            "it listens (net.bindIp)"
        ),
    )
    BLACK_HOLE = (
        "black_hole",
        "connection attempts get no answer",
        "the address, firewalls, security groups, IP access lists, routes, and the VPN",
    )
    NO_ANSWER = (
        "no_answer",
        "the server has not responded so far",
        (
            "the address, firewalls, TLS settings, whether the server hangs, and whether the "
            "timeout is long enough to connect. Run pymongo-resilience doctor to try each step"
        ),
    )
    NO_TLS_ANSWER = (
        "no_tls_answer",
        "the server accepts connections but does not answer the TLS handshake",
        "whether that port uses TLS, whether the server process hangs, and proxies in between",
    )
    SILENT = (
        "silent",
        "the server accepts connections but does not respond",
        (
            "whether the server process hangs (disk, memory), and proxies or load balancers in "
            "between"
        ),
    )
    CLOSES_AFTER_TLS = (
        "closes_after_tls",
        "the server closes the connection right after the TLS handshake",
        (
            "whether the server requires a client certificate and trusts it "
            "(tlsCertificateKeyFile, the server's log), IP access lists, and whether a proxy has "
            "lost its server"
        ),
    )
    HANGS_UP = (
        "hangs_up",
        "the server closes new connections",
        (
            "whether both sides use TLS, whether the server is restarting, its connection limit, "
            "and the IP access lists of the server, proxies and load balancers"
        ),
    )
    OTHER = "other", "the servers report other errors", "the error of each server above"
    NO_MAJORITY = (
        "no_majority",
        "the replica set has no primary, and too few members are reachable to elect one",
        "the members that are not reachable",
    )
    ELECTION = (
        "election",
        "the replica set has no primary at the moment",
        "rs.status() if this lasts longer than an election (12 seconds by default)",
    )
    NO_MATCH = (
        "no_match",
        "servers are reachable, but none matches the read preference",
        (
            "the read preference's mode, tags and maxStalenessSeconds, and the application's "
            "server selector"
        ),
    )
