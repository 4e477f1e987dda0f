"""Compares the servers' answers with each other and with the URI. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from pymongo import common

from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

from . import Finding, Level, diagnosed
from .probe import Probe
from .uri import Target

SLOW_MS: Final = 100
JITTER_MS: Final = 50
CLOCK_MS: Final = 5_000
LAG_S: Final = 10
LONG_WITHOUT_PRIMARY_S: Final = 60
"""Five times the duration of an election."""
LISTS: Final = ("hosts", "passives", "arbiters")
OWN: Final = ("me",)
RECOVERING: Final = "member that is starting or recovering"
LOG: Final = "check the log of that member"


def addresses(hello: dict[str, Any], fields: Sequence[str] = LISTS) -> list[Address]:
    """Return the addresses of all members, or the server's own one, from a hello."""
    found = [hello.get(each, []) for each in fields]
    names = [name for each in found for name in ([each] if isinstance(each, str) else each)]
    # Hosts of members are compared in lowercase (Server Discovery and Monitoring, "hosts"). An IPv6
    # address is in brackets.
    parts = [str(name).lower().rpartition(":") for name in names]
    return [(host.strip("[]"), int(port)) for host, _, port in parts if port.isdigit()]


def of_probe(probe: Probe, target: Target, failed: Level) -> Iterator[Finding]:
    """Yield the findings about one server: each step, then the failure with the level
    ``failed``.
    """
    yield from list(probe.steps)
    if probe.symptom is not None:
        more = f": {probe.said}" if probe.said else ""
        yield diagnosed(probe.stage, probe.symptom, more, level=failed, server=probe.name)
    if probe.rejected and probe.hello is not None:
        more = f": {probe.rejected} of its hellos"
        yield diagnosed("hello", Symptom.OVERLOADED, more, level=Level.WARNING, server=probe.name)
    if probe.hello is not None:
        yield from _hello(probe, probe.hello, target)
        yield from _times(probe)


def _hello(probe: Probe, hello: dict[str, Any], target: Target) -> Iterator[Finding]:
    wire = (int(hello.get("minWireVersion", 0)), int(hello.get("maxWireVersion", 0)))
    state, wanted, given = _state(hello), target.replica_set, hello.get("setName")
    named = f" of the set {given!r}" if given else ""
    version = "" if probe.version is None else f", version {probe.version}"
    text = f"{state}{named}{version}, wire version {wire[1]}"
    if wire[1] < common.MIN_SUPPORTED_WIRE_VERSION or wire[0] > common.MAX_SUPPORTED_WIRE_VERSION:
        yield diagnosed("hello", Symptom.INCOMPATIBLE, f": {text}", server=probe.name)
    if target.flag("loadbalanced") and hello.get("msg") != "isdbgrid":
        # Source: Load Balancer Support, which allows only routers behind a load balancer.
        text = f"the URI has loadBalanced=true, but this server is a {text}"
        yield Finding("hello", Level.WRONG, text, "remove loadBalanced from the URI", probe.name)
        return
    if wanted is None or given == wanted:
        level = Level.WARNING if state == RECOVERING else Level.OK
        yield Finding("hello", level, text, LOG if level else "", probe.name)
        return
    text = f"the URI has replicaSet={wanted}, but this {state} belongs to "
    text += f"the set {given!r}" if given else "no replica set"
    yield diagnosed("hello", Symptom.SET_NAME, server=probe.name)._replace(text=text)


def _state(hello: dict[str, Any]) -> str:
    states = {
        "mongos": hello.get("msg") == "isdbgrid",
        "member without configuration": hello.get("isreplicaset"),
        "standalone": not hello.get("setName"),
        "primary": hello.get("isWritablePrimary"),
        "secondary": hello.get("secondary"),
        "arbiter": hello.get("arbiterOnly"),
    }
    return next((name for name, is_so in states.items() if is_so), RECOVERING)


def _times(probe: Probe) -> Iterator[Finding]:
    if times := probe.round_trips_ms:
        middle, spread = statistics.median(times), max(times) - min(times)
        level = Level.NOTE if spread > JITTER_MS else Level.OK
        level = Level.WARNING if middle > SLOW_MS else level
        text = f"round trip {middle:.1f} ms, {min(times):.1f} to {max(times):.1f}"
        advice = "check the network and the server's load; set timeouts longer than this"
        yield Finding("latency", level, text, advice if level else "", probe.name)
    elif probe.symptom is None:
        text = "the hello took too long to measure round trips"
        yield Finding("latency", Level.WARNING, text, "check the server's load", probe.name)
    if probe.clock_ms is not None and abs(probe.clock_ms) > CLOCK_MS:
        text = f"the server's clock differs from this machine's by {probe.clock_ms / 1000:+.0f} s"
        yield Finding(
            "clock", Level.WARNING, text, "check the time (NTP) of both machines", probe.name
        )


def of_set(probes: Sequence[Probe], target: Target) -> Iterator[Finding]:
    """Yield the findings about a replica set as a whole. Nothing for other deployments."""
    members = _members(probes)
    if not members or target.is_direct:
        return
    yield from _names(probes, members)
    primary = next((each for each in members if each.is_primary), None)
    if primary is None:
        return
    for each in members:
        # Compare by the members' own clocks, since their answers arrived at different times.
        # Source: Max Staleness, "Staleness".
        ours, theirs = _since_last_write(each), _since_last_write(primary)
        if ours is not None and theirs is not None and ours - theirs > LAG_S:
            text = f"replication is {ours - theirs:.0f} s behind the primary"
            yield Finding(
                "members",
                Level.WARNING,
                text,
                "check the member's load and its sync source",
                each.name,
            )
    text = f"{_reached(members)} of {_size(members)} members are reachable, primary {primary.name}"
    yield Finding("members", Level.OK, text)


def _names(probes: Sequence[Probe], members: Sequence[Probe]) -> Iterator[Finding]:
    """Yield a finding if members are reachable, but not under the names that the replica set uses
    for them.

    Drivers connect to those names.
    """
    hosts = {address_text(one) for each in members for one in addresses(each.hello or {})}
    own = {address_text(one) for each in members for one in addresses(each.hello or {}, OWN)}
    unusable = own - {each.name for each in probes if each.symptom is None and each.hello}
    if not unusable:
        return
    needed = [each for each in members if each.is_primary] or members
    level = Level.WARNING if any(each.name in hosts for each in needed) else Level.WRONG
    yield diagnosed(
        "members", Symptom.MEMBER_NAMES, f": {', '.join(sorted(unusable))}", level=level
    )


def without_primary(probes: Sequence[Probe], target: Target) -> Finding | None:
    """Return a finding if a replica set had no primary during the examination.

    Return None for other deployments, or if the set was not examined as a whole.
    """
    members = _members(probes)
    if target.is_direct or not members or any(each.is_primary for each in members):
        return None
    size, reached = _size(members), _reached(members)
    # A primary needs the votes of a majority.
    enough = reached * 2 > size
    idle = [idle for each in members if (idle := _since_last_write(each)) is not None]
    more = f": {reached} of {size} members are reachable"
    lasting = bool(idle) and min(idle) > LONG_WITHOUT_PRIMARY_S
    if lasting:
        more += f", the last write was {min(idle):.0f} s ago"
    symptom = Symptom.ELECTION if enough else Symptom.NO_MAJORITY
    level = Level.WARNING if enough and not lasting else Level.WRONG
    return diagnosed("members", symptom, more, level=level)


def _members(probes: Sequence[Probe]) -> list[Probe]:
    return [each for each in probes if each.is_member and each.symptom is None]


def _reached(members: Sequence[Probe]) -> int:
    """Return the number of reachable members, counted by their own names.

    The URI may use another name for a member, or contain a hidden member.
    """
    own = {address for each in members for address in addresses(each.hello or {}, OWN)}
    return len(own & {address for each in members for address in addresses(each.hello or {})})


def _size(members: Sequence[Probe]) -> int:
    return max(len(set(addresses(each.hello or {}))) for each in members)


def _since_last_write(probe: Probe) -> float | None:
    hello = probe.hello or {}
    if hello.get("arbiterOnly"):
        # Arbiters have no data.
        return None
    date, now = hello.get("lastWrite", {}).get("lastWriteDate"), hello.get("localTime")
    if not isinstance(date, datetime) or not isinstance(now, datetime):
        return None
    return (now - date).total_seconds()
