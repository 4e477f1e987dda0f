"""SRV and TXT records, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dns import resolver
from dns.exception import DNSException, Timeout
from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from pymongo_resilience.rules.explanations import Symptom
from pymongo_resilience_instrumentation.addresses import address_text

from .findings import Finding, Level

if TYPE_CHECKING:
    from .uri import Target

DEFAULT_SERVICE = "mongodb"
_OPTIONS = {"authsource", "replicaset", "loadbalanced"}
"""What a TXT record may set."""


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
    if not options.keys() <= _OPTIONS:
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
