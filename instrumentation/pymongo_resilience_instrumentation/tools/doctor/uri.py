"""Reads the URI as pymongo would, and its SRV and TXT records.

Finds options that are unknown, invalid, or in conflict. pymongo's own error texts are never shown,
because they may quote a password that is not escaped.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from dns import resolver
from dns.exception import DNSException, Timeout
from pymongo import MongoClient, common
from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_hosts, split_options

from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.clients.client_options import OPTION
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

from . import Finding, Level, engines

SRV = "mongodb+srv://"
PLAIN = "mongodb://"
DEFAULT_PORT = 27017
FILES = ("tlscafile", "tlscertificatekeyfile", "tlscrlfile")
REPLACED = {
    "j": "journal",
    "slaveok": "readPreference",
    "ssl_ca_certs": "tlsCAFile",
    "ssl_cert_reqs": "tlsAllowInvalidCertificates",
    "ssl_certfile": "tlsCertificateKeyFile",
    "ssl_crlfile": "tlsCRLFile",
    "ssl_keyfile": "tlsCertificateKeyFile",
    "ssl_match_hostname": "tlsAllowInvalidHostnames",
    "ssl_pem_passphrase": "tlsCertificateKeyFilePassword",
    "wtimeout": "wTimeoutMS",
}
"""Options of pymongo 3 that pymongo 4 ignores. Source: PyMongo 4 Migration Guide."""
SHORTEST_SELECTION_MS = 2_000
"""Less than most elections take."""
_NAME = re.compile(r"[A-Za-z]\w{1,40}")
_ESCAPED = "escape the user and the password with urllib.parse.quote_plus"
_UNESCAPED = re.compile(r"@|:.*:|%(?![0-9a-fA-F]{2})")
"""In a user or a password. Source: Connection String, "User info"."""
_MISPLACED = re.compile(r"[/?].*@", re.DOTALL)
DEFAULT_SERVICE = "mongodb"
_TEXT_OPTIONS = {"authsource", "replicaset", "loadbalanced"}


class Target(NamedTuple):
    """The parts of a URI. Immutable. The repr does not contain the URI."""

    seeds: tuple[Address, ...]
    srv: str | None
    """The host whose SRV records name the seeds."""
    database: str | None
    options: Mapping[str, str]
    """Values as written, by lowercase names."""
    has_user: bool

    def __repr__(self) -> str:
        return f"Target({self.srv or self.seeds})"

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self.options.get(name, str(default)).lower() == "true"

    def milliseconds(self, name: str) -> int | None:
        text = self.options.get(name, "")
        return int(text) if text.isdigit() else None

    @property
    def tls(self) -> bool:
        by_default = self.srv is not None or any(name in self.options for name in FILES)
        given = "tls" if "tls" in self.options else "ssl"
        return self.flag(given, default=by_default)

    @property
    def replica_set(self) -> str | None:
        return self.options.get("replicaset")

    @property
    def is_direct(self) -> bool:
        """True if the client uses only the addresses in the URI."""
        return self.flag("directconnection") or self.flag("loadbalanced")


def read(uri: str) -> tuple[Target | None, list[Finding]]:
    """Parse a URI. Returns None, and a finding, if pymongo cannot parse it."""
    srv = uri.startswith(SRV)
    rest = uri.removeprefix(SRV).removeprefix(PLAIN)
    if "://" in rest.partition("@")[0]:
        return None, [
            _wrong(
                "the URI does not start with mongodb:// or mongodb+srv://",
                f"start it with {PLAIN} or {SRV}",
            )
        ]
    before, _, query = rest.partition("?")
    hosts, _, database = before.partition("/")
    if _MISPLACED.search(rest) and "@" not in hosts:
        text = (
            "an @ follows the first '/' or '?', so the user or the password may contain an "
            "unescaped '/' or '?'"
        )
        return None, [_wrong(text, _ESCAPED)]
    if _UNESCAPED.search(hosts.rpartition("@")[0]):
        return None, [_wrong("the user or the password contains an unescaped @, : or %", _ESCAPED)]
    try:
        nodes = split_hosts(hosts.rpartition("@")[2], None if srv else DEFAULT_PORT)
    except (PyMongoError, ValueError):
        advice = f"write hosts as host:port, separated by commas; {_ESCAPED}"
        return None, [_wrong("pymongo cannot parse the hosts", advice)]
    pairs = [each.partition("=") for each in re.split("[&;]", query) if each]
    options = {name.lower(): unquote_plus(value) for name, _, value in pairs}
    # X.509, AWS and OIDC log in without a user in the URI.
    has_user = "@" in hosts or "authmechanism" in options
    seeds, name = ((), nodes[0][0]) if srv else (tuple(nodes), None)
    target = Target(seeds, name, database or None, options, has_user)
    return target, [*_written(pairs), *_against_each_other(target), *_refused(uri, target)]


def _written(pairs: list[tuple[str, str, str]]) -> Iterator[Finding]:
    known = common.URI_OPTIONS_VALIDATOR_MAP
    for name, _, value in pairs:
        if name.lower() == OPTION.lower():
            # An option of this library.
            continue
        shown = name if _NAME.fullmatch(name) else "(a name that is not shown)"
        if name.lower() in FILES and not Path(unquote_plus(value)).is_file():
            yield _wrong(f"the file in {shown} does not exist", f"correct the path in {shown}")
            continue
        # Validate each option by itself, so that a finding names the option and not its value.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                split_options(f"{name}={value}", validate=True, warn=True)
            except (PyMongoError, ValueError, TypeError, OSError):
                yield _wrong(
                    f"pymongo refuses the value of {shown}", f"correct the value of {shown}"
                )
                continue
        new = REPLACED.get(name.lower(), "see the pymongo documentation")
        old = any(issubclass(each.category, DeprecationWarning) for each in caught)
        if old or (caught and name.lower() in REPLACED):
            yield _warning(f"{shown} is deprecated", f"replace {shown} ({new})")
        elif name.lower() not in known and caught:
            close = difflib.get_close_matches(name.lower(), known, 1)
            advice = f"write {close[0]}, or remove {shown}" if close else f"remove {shown}"
            yield _warning(f"pymongo does not know the option {shown} and ignores it", advice)
        elif caught:
            yield _warning(
                f"pymongo ignores {shown} because its value is invalid",
                f"correct the value of {shown}",
            )


def _refused(uri: str, target: Target) -> Iterator[Finding]:
    """Yield a finding if pymongo refuses all options together, as it would in the application."""
    if target.srv is not None:
        # Do not let pymongo query DNS here.
        uri = PLAIN + re.sub(r"(?i)\bsrv\w+=[^&;]*[&;]?", "", uri.removeprefix(SRV))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            MongoClient[dict[str, Any]](uri, connect=False).close()
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        text = f"pymongo refuses this combination of options ({type(error).__name__})"
        yield _wrong(text, f"remove options that exclude each other; {_ESCAPED}")


def _against_each_other(target: Target) -> Iterator[Finding]:
    options, several = target.options, len(target.seeds) > 1
    direct, balanced = target.flag("directconnection"), target.flag("loadbalanced")
    timeout, selection, connect, heartbeat = (
        target.milliseconds(f"{name}ms")
        for name in ("timeout", "serverselectiontimeout", "connecttimeout", "heartbeatfrequency")
    )
    ends = math.inf if selection is None else selection
    note, warning, wrong = Level.NOTE, Level.WARNING, Level.WRONG
    rules = [
        (direct and (several or target.srv), wrong,
         "directConnection=true does not work with several hosts",
         "use one host, or remove directConnection"),
        (balanced and (several or target.replica_set), wrong,
         "loadBalanced=true does not work with several hosts or replicaSet",
         "remove one of the two"),
        (direct and not several, note,
         "directConnection=true uses a single server, so there is no failover", ""),
        *((timeout and name.lower() in options, warning,
           f"{name} has no effect if timeoutMS is set", f"remove {name}")
          for name in ("socketTimeoutMS", "waitQueueTimeoutMS", "wTimeoutMS")),
        (timeout and (selection or 0) > timeout, note,
         "serverSelectionTimeoutMS is longer than timeoutMS, so timeoutMS expires first", ""),
        (ends < SHORTEST_SELECTION_MS, warning,
         f"serverSelectionTimeoutMS={selection} is shorter than most elections",
         "set it to 10000 or more, and use timeoutMS to limit operations"),
        ((connect or 0) > ends, warning,
         "connectTimeoutMS is longer than serverSelectionTimeoutMS, which expires first",
         "set connectTimeoutMS to less than serverSelectionTimeoutMS"),
        (connect == 0, warning,
         "with connectTimeoutMS=0, a connection attempt without an answer never ends",
         "set it, for example to 5000"),
        ((heartbeat or 0) > ends, warning,
         ("heartbeatFrequencyMS is longer than serverSelectionTimeoutMS, so a failover may be "
          "noticed too late"),
         "set a shorter heartbeatFrequencyMS"),
        (options.get("maxpoolsize") == "0", warning,
         "with maxPoolSize=0, the number of connections is unlimited",
         "set a limit; the default is 100"),
        (not target.flag("retrywrites", default=True) and not engines.of_target(target), warning,
         ("with retryWrites=false, a write fails if its reply is lost, unless it is declared "
          "idempotent"),
         "remove retryWrites=false, unless the server does not support retryable writes"),
        (options.get("w") == "0", warning,
         "with w=0, failed writes are not reported", "set w=majority"),
        *((target.flag(name.lower()), warning,
           f"with {name}=true, anybody can impersonate the server",
           f"remove {name} and set tlsCAFile")
          for name in ("tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames")),
        ("authsource" in options and not target.has_user, note,
         "authSource without a user has no effect", ""),
    ]  # fmt: skip
    for holds, level, text, advice in rules:
        if holds:
            yield Finding("uri", level, text, advice)


def _wrong(text: str, advice: str) -> Finding:
    return Finding("uri", Level.WRONG, text, advice)


def _warning(text: str, advice: str) -> Finding:
    return Finding("uri", Level.WARNING, text, advice)


def resolved(target: Target, seconds: float) -> tuple[Target, list[Finding]]:
    """Return the target of a mongodb+srv URI with the hosts and options from DNS."""
    if target.srv is None:
        return target, []
    service = target.options.get("srvservicename", DEFAULT_SERVICE)
    name = f"_{service}._tcp.{target.srv}"
    try:
        answer = resolver.resolve(name, "SRV", lifetime=seconds / 2)
    except (DNSException, OSError) as error:
        return target, [_missing(name, error)]
    findings: list[Finding] = []
    seeds = []
    # The hosts must be in the same domain as the SRV name (Initial DNS Seedlist Discovery).
    parent = target.srv.split(".", 1)[-1] if target.srv.count(".") > 1 else target.srv
    for record in answer:
        host, port = str(record.target).rstrip(".").lower(), int(record.port)
        server = address_text((host, port))
        if host.endswith(f".{parent.lower()}"):
            seeds.append((host, port))
            findings.append(Finding("dns", Level.OK, f"SRV record: {server}", server=server))
        else:
            text = f"pymongo refuses the SRV record for {server}, because it is not in {parent}"
            findings.append(Finding("dns", Level.WRONG, text, "correct the SRV records", server))
    options, found = _text_record(target.srv, seconds / 2)
    # Options of the URI take precedence over those of the TXT record.
    options |= target.options
    return target._replace(seeds=tuple(seeds), options=options), findings + found


def _text_record(host: str, seconds: float) -> tuple[dict[str, str], list[Finding]]:
    def found(level: Level, text: str, advice: str = "") -> list[Finding]:
        return [Finding("dns", level, text, advice)]

    try:
        answer = resolver.resolve(host, "TXT", lifetime=seconds)
    except (resolver.NoAnswer, resolver.NXDOMAIN):
        return {}, []
    except (DNSException, OSError) as error:
        text = f"the TXT record of {host} cannot be read ({type(error).__name__})"
        return {}, found(Level.WARNING, text, "check the DNS server: pymongo reads this record")
    records = [b"".join(record.strings).decode(errors="replace") for record in answer]
    if len(records) > 1:
        text = f"{host} has {len(records)} TXT records, but only one is allowed"
        return {}, found(Level.WRONG, text, "remove the other TXT records")
    try:
        options = {name.lower(): str(value) for name, value in split_options(records[0]).items()}
    except (PyMongoError, ValueError):
        options = {"": ""}
    if not options.keys() <= _TEXT_OPTIONS:
        text = "the TXT record has options other than authSource, replicaSet and loadBalanced"
        return {}, found(Level.WRONG, text, "move the other options to the URI")
    return options, found(Level.OK, f"TXT record: {', '.join(sorted(options))}")


def _missing(name: str, error: Exception) -> Finding:
    if isinstance(error, Timeout):
        text = f"DNS does not answer the query for the SRV records of {name}"
        advice = "check the DNS settings of this machine or container"
        return Finding("dns", Level.WRONG, text, advice)
    text = f"there are no SRV records for {name} ({type(error).__name__})"
    advice = (
        f"check {Symptom.UNKNOWN_HOST.check}. If the deployment has no SRV records, use mongodb://"
    )
    return Finding("dns", Level.WRONG, text, advice, symptom=Symptom.UNKNOWN_HOST)
