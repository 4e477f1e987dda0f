"""What the servers answered, compared with each other and with the URI: pure."""

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
"""Five times what an election takes."""
LISTS: Final = ("hosts", "passives", "arbiters")
OWN: Final = ("me",)
RECOVERING: Final = "member that is starting or recovering"
LOG: Final = "read the log of that member"


def addresses(hello: dict[str, Any], fields: Sequence[str] = LISTS) -> list[Address]:
    """Those of all members, or its own one, as a member of a replica set has them."""
    found = [hello.get(each, []) for each in fields]
    names = [name for each in found for name in ([each] if isinstance(each, str) else each)]
    parts = [str(name).lower().rpartition(":") for name in names]
    return [(host.strip("[]"), int(port)) for host, _, port in parts if port.isdigit()]


def of_probe(probe: Probe, target: Target, failed: Level) -> Iterator[Finding]:
    """One server by itself: each step that it got to; ``failed`` where that was not the last."""
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
        # Source: Load Balancer Support: only routers are behind one.
        text = f"loadBalanced=true, and this is a {text}"
        yield Finding("hello", Level.WRONG, text, "leave loadBalanced out", probe.name)
        return
    if wanted is None or given == wanted:
        level = Level.WARNING if state == RECOVERING else Level.OK
        yield Finding("hello", level, text, LOG if level else "", probe.name)
        return
    text = f"the URI asks for replicaSet={wanted}, and this {state} belongs to "
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
        advice = "check network and load of the server; timeouts must leave room for it"
        yield Finding("latency", level, text, advice if level else "", probe.name)
    elif probe.symptom is None:
        text = "hello took too long to measure round trips"
        yield Finding("latency", Level.WARNING, text, "check the load of the server", probe.name)
    if probe.clock_ms is not None and abs(probe.clock_ms) > CLOCK_MS:
        text = f"its clock differs from ours by {probe.clock_ms / 1000:+.0f} s"
        yield Finding(
            "clock", Level.WARNING, text, "check the time (NTP) of both machines", probe.name
        )


def of_set(probes: Sequence[Probe], target: Target) -> Iterator[Finding]:
    """The replica set as a whole; nothing of other deployments."""
    members = _members(probes)
    if not members or target.is_direct:
        return
    yield from _names(probes, members)
    primary = next((each for each in members if each.is_primary), None)
    if primary is None:
        return
    for each in members:
        # By the members' own clocks and the time between their answers.
        # Source: Max Staleness, "Staleness".
        ours, theirs = _since_last_write(each), _since_last_write(primary)
        if ours is not None and theirs is not None and ours - theirs > LAG_S:
            text = f"{ours - theirs:.0f} s behind the primary"
            yield Finding(
                "members", Level.WARNING, text, "check its load and its sync source", each.name
            )
    text = f"{_reached(members)} of {_size(members)} members reached, primary {primary.name}"
    yield Finding("members", Level.OK, text)


def _names(probes: Sequence[Probe], members: Sequence[Probe]) -> Iterator[Finding]:
    """Members that are reached, and not by the names that the set has for them: drivers go by
    those."""
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
    """A replica set had no primary all the time. None of what is none, has one, or was not looked
    at as a whole."""
    members = _members(probes)
    if target.is_direct or not members or any(each.is_primary for each in members):
        return None
    size, reached = _size(members), _reached(members)
    enough = reached * 2 > size
    idle = [idle for each in members if (idle := _since_last_write(each)) is not None]
    more = f": {reached} of {size} members reached"
    lasting = bool(idle) and min(idle) > LONG_WITHOUT_PRIMARY_S
    if lasting:
        more += f", the last write {min(idle):.0f} s ago"
    symptom = Symptom.ELECTION if enough else Symptom.NO_MAJORITY
    level = Level.WARNING if enough and not lasting else Level.WRONG
    return diagnosed("members", symptom, more, level=level)


def _members(probes: Sequence[Probe]) -> list[Probe]:
    return [each for each in probes if each.is_member and each.symptom is None]


def _reached(members: Sequence[Probe]) -> int:
    """By the names that they have for themselves: a URI may have another for one of them, or name
    one that the set hides."""
    own = {address for each in members for address in addresses(each.hello or {}, OWN)}
    return len(own & {address for each in members for address in addresses(each.hello or {})})


def _size(members: Sequence[Probe]) -> int:
    return max(len(set(addresses(each.hello or {}))) for each in members)


def _since_last_write(probe: Probe) -> float | None:
    hello = probe.hello or {}
    if hello.get("arbiterOnly"):
        return None  # it writes nothing
    date, now = hello.get("lastWrite", {}).get("lastWriteDate"), hello.get("localTime")
    if not isinstance(date, datetime) or not isinstance(now, datetime):
        return None
    return (now - date).total_seconds()
