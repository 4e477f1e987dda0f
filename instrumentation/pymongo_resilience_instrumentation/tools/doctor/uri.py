"""The URI: what pymongo makes of it, options that are unknown, wrong or defeat each other, and its
SRV and TXT records.

pymongo's own texts of what is wrong may quote a password that is not escaped: none is shown.
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

from . import Finding, Level

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
"""What pymongo 3 took and pymongo 4 ignores. Source: PyMongo 4 Migration Guide."""
SHORTEST_SELECTION_MS = 2_000
"""Less than most elections take."""
_NAME = re.compile(r"[A-Za-z]\w{1,40}")
_ESCAPED = "escape user and password with urllib.parse.quote_plus"
_UNESCAPED = re.compile(r"@|:.*:|%(?![0-9a-fA-F]{2})")
"""In a user and a password. Source: Connection String, "User info"."""
_MISPLACED = re.compile(r"[/?].*@", re.DOTALL)
DEFAULT_SERVICE = "mongodb"
_TEXT_OPTIONS = {"authsource", "replicaset", "loadbalanced"}


class Target(NamedTuple):
    """What the URI asks for. Immutable; the URI is in no repr of it."""

    seeds: tuple[Address, ...]
    srv: str | None
    """The host whose SRV records name the seeds."""
    database: str | None
    options: Mapping[str, str]
    """As written, by their names in lower case."""
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
        """The client goes by the addresses of the URI alone."""
        return self.flag("directconnection") or self.flag("loadbalanced")


def read(uri: str) -> tuple[Target | None, list[Finding]]:
    """None where pymongo cannot read it, for which there is a finding then."""
    srv = uri.startswith(SRV)
    rest = uri.removeprefix(SRV).removeprefix(PLAIN)
    if "://" in rest.partition("@")[0]:
        return None, [
            _wrong(
                "begins with neither mongodb:// nor mongodb+srv://",
                f"begin it with {PLAIN} or {SRV}",
            )
        ]
    before, _, query = rest.partition("?")
    hosts, _, database = before.partition("/")
    if _MISPLACED.search(rest) and "@" not in hosts:
        text = "there is an @ after the first / or ?, so the user or the password is cut there"
        return None, [_wrong(text, _ESCAPED)]
    if _UNESCAPED.search(hosts.rpartition("@")[0]):
        return None, [_wrong("the user or the password has an @, : or % in it", _ESCAPED)]
    try:
        nodes = split_hosts(hosts.rpartition("@")[2], None if srv else DEFAULT_PORT)
    except (PyMongoError, ValueError):
        advice = f"write hosts as host:port with commas in between; {_ESCAPED}"
        return None, [_wrong("pymongo cannot read the hosts", advice)]
    pairs = [each.partition("=") for each in re.split("[&;]", query) if each]
    options = {name.lower(): unquote_plus(value) for name, _, value in pairs}
    # Without a user: X.509, AWS, OIDC.
    has_user = "@" in hosts or "authmechanism" in options
    seeds, name = ((), nodes[0][0]) if srv else (tuple(nodes), None)
    target = Target(seeds, name, database or None, options, has_user)
    return target, [*_written(pairs), *_against_each_other(target), *_refused(uri, target)]


def _written(pairs: list[tuple[str, str, str]]) -> Iterator[Finding]:
    known = common.URI_OPTIONS_VALIDATOR_MAP
    for name, _, value in pairs:
        if name.lower() == OPTION.lower():
            continue  # this library's
        shown = name if _NAME.fullmatch(name) else "(a name that is not shown)"
        if name.lower() in FILES and not Path(unquote_plus(value)).is_file():
            yield _wrong(f"{shown}: no such file", f"correct the path in {shown}")
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                split_options(f"{name}={value}", validate=True, warn=True)
            except (PyMongoError, ValueError, TypeError, OSError):
                yield _wrong(
                    f"{shown} has a value that pymongo refuses", f"correct the value of {shown}"
                )
                continue
        new = REPLACED.get(name.lower(), "see pymongo's documents")
        old = any(issubclass(each.category, DeprecationWarning) for each in caught)
        if old or (caught and name.lower() in REPLACED):
            yield _warning(f"{shown} is deprecated", f"replace {shown}: {new}")
        elif name.lower() not in known and caught:
            close = difflib.get_close_matches(name.lower(), known, 1)
            meant = f"write {close[0]}, or remove" if close else "remove"
            yield _warning(f"pymongo ignores {shown}, an unknown option", f"{meant} {shown}")
        elif caught:
            yield _warning(
                f"pymongo ignores {shown} for its value", f"correct the value of {shown}"
            )


def _refused(uri: str, target: Target) -> Iterator[Finding]:
    """All together, as the application would."""
    if target.srv is not None:
        # pymongo would ask DNS.
        uri = PLAIN + re.sub(r"(?i)\bsrv\w+=[^&;]*[&;]?", "", uri.removeprefix(SRV))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            MongoClient[dict[str, Any]](uri, connect=False).close()
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        text = f"pymongo refuses these options together ({type(error).__name__})"
        yield _wrong(text, f"leave out options that exclude each other; {_ESCAPED}")


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
         "directConnection=true with several hosts", "name one host, or leave it out"),
        (balanced and (several or target.replica_set), wrong,
         "loadBalanced=true with several hosts or replicaSet", "leave one of them out"),
        (direct and not several, note, "directConnection=true: one server, no failover", ""),
        *((timeout and name.lower() in options, warning,
           f"{name} does not act beside timeoutMS", f"leave {name} out")
          for name in ("socketTimeoutMS", "waitQueueTimeoutMS", "wTimeoutMS")),
        (timeout and (selection or 0) > timeout, note,
         "serverSelectionTimeoutMS is longer than timeoutMS, which ends first", ""),
        (ends < SHORTEST_SELECTION_MS, warning,
         f"serverSelectionTimeoutMS={selection} ends before most elections do",
         "set 10,000 or more, and timeoutMS for how long an operation may take"),
        ((connect or 0) > ends, warning,
         "connectTimeoutMS is longer than serverSelectionTimeoutMS, which gives up first",
         "set a connectTimeoutMS below serverSelectionTimeoutMS"),
        (connect == 0, warning,
         "connectTimeoutMS=0 waits for ever on a black hole", "set 5,000, say"),
        ((heartbeat or 0) > ends, warning,
         "heartbeatFrequencyMS is longer than serverSelectionTimeoutMS",
         "set a shorter one: a failover may be noticed too late"),
        (options.get("maxpoolsize") == "0", warning,
         "maxPoolSize=0 sets no limit to connections", "set 100, the default"),
        (not target.flag("retrywrites", default=True), warning,
         "retryWrites=false: a lost reply of a write is an error", "leave it out"),
        (options.get("w") == "0", warning, "w=0: failed writes go unnoticed", "set w=majority"),
        *((target.flag(name.lower()), warning,
           f"{name}=true: anybody can pose as the server", "set tlsCAFile instead")
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
    """The target of a mongodb+srv URI with the hosts and the options that DNS has for it."""
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
    parent = target.srv.split(".", 1)[-1] if target.srv.count(".") > 1 else target.srv
    for record in answer:
        host, port = str(record.target).rstrip(".").lower(), int(record.port)
        server = address_text((host, port))
        if host.endswith(f".{parent.lower()}"):
            seeds.append((host, port))
            findings.append(Finding("dns", Level.OK, f"SRV record: {server}", server=server))
        else:
            text = f"SRV record names {server}, outside of {parent}: pymongo refuses it"
            findings.append(Finding("dns", Level.WRONG, text, "correct the SRV records", server))
    options, found = _text_record(target.srv, seconds / 2)
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
        return {}, found(Level.WARNING, text, "check DNS: pymongo asks for it")
    records = [b"".join(record.strings).decode(errors="replace") for record in answer]
    if len(records) > 1:
        text = f"{host} has {len(records)} TXT records, and may have one"
        return {}, found(Level.WRONG, text, "remove the others")
    try:
        options = {name.lower(): str(value) for name, value in split_options(records[0]).items()}
    except (PyMongoError, ValueError):
        options = {"": ""}
    if not options.keys() <= _TEXT_OPTIONS:
        text = "the TXT record has more than authSource, replicaSet and loadBalanced"
        return {}, found(Level.WRONG, text, "move the others to the URI")
    return options, found(Level.OK, f"TXT record: {', '.join(sorted(options))}")


def _missing(name: str, error: Exception) -> Finding:
    if isinstance(error, Timeout):
        text = f"DNS does not answer a question for the SRV records {name}"
        return Finding("dns", Level.WRONG, text, "check the DNS of this machine or container")
    text = f"there are no SRV records {name} ({type(error).__name__})"
    advice = f"check {Symptom.UNKNOWN_HOST.check}; without such records write mongodb://"
    return Finding("dns", Level.WRONG, text, advice, symptom=Symptom.UNKNOWN_HOST)
