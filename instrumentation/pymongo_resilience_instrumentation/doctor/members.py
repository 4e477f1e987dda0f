"""What the servers answered, compared with each other and with the URI: pure."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pymongo import common

from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.selection.diagnosis import ROWS, Symptom

from .findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pymongo_resilience_instrumentation.addresses import Address

    from .probe import Probe
    from .uri import Target

SLOW_MS: Final = 100
JITTER_MS: Final = 50
CLOCK_MS: Final = 5_000
LAG_S: Final = 10
LONG_WITHOUT_PRIMARY_S: Final = 60
"""Five times what an election takes."""
RENEW_WITHIN: Final = timedelta(days=14)
LISTS: Final = ("hosts", "passives", "arbiters")


def announced(hello: dict[str, Any]) -> list[Address]:
    """The members' addresses as a member of a replica set has them."""
    return _addresses(name for each in LISTS for name in hello.get(each, ()))


def own_name(hello: dict[str, Any]) -> list[Address]:
    """The address that the set has for this member; none of what is no member."""
    return _addresses(hello[each] for each in ("me",) if each in hello)


def _addresses(names: Iterable[Any]) -> list[Address]:
    parts = [str(name).lower().rpartition(":") for name in names]
    return [(host.strip("[]"), int(port)) for host, _, port in parts if port.isdigit()]


def of_probe(probe: Probe, target: Target, failed: Level) -> Iterator[Finding]:
    """One server by itself: each step that it got to; ``failed`` where that was not the last."""
    name = probe.name
    if probe.resolve_ms is not None:
        text = f"{probe.address[0]} is {', '.join(probe.addresses)} ({probe.resolve_ms:.0f} ms)"
        yield Finding("dns", Level.OK, text, server=name)
    if probe.connect_ms is not None:
        yield Finding("tcp", Level.OK, f"connected in {probe.connect_ms:.1f} ms", server=name)
    if probe.tls_version is not None:
        yield from _tls(probe)
    if probe.symptom is not None:
        row = ROWS[probe.symptom]
        text = f"{row.says}{f': {probe.said}' if probe.said else ''}"
        yield Finding(probe.stage, failed, text, f"check {row.check}", name, probe.symptom)
    if probe.hello is not None:
        yield from _hello(probe, probe.hello, target)
        yield from _times(probe)


def _tls(probe: Probe) -> Iterator[Finding]:
    text = f"{probe.tls_version} in {probe.tls_ms:.1f} ms"
    if probe.expires is None:
        yield Finding("tls", Level.OK, f"{text}, certificate not checked", server=probe.name)
        return
    left = probe.expires - datetime.now(UTC)
    text += f", certificate ends on {probe.expires:%Y-%m-%d}"
    soon = left < RENEW_WITHIN
    yield Finding(
        "tls", Level.WARNING if soon else Level.OK, text, "renew it" if soon else "", probe.name
    )


def _hello(probe: Probe, hello: dict[str, Any], target: Target) -> Iterator[Finding]:
    wire = (int(hello.get("minWireVersion", 0)), int(hello.get("maxWireVersion", 0)))
    state = _state(hello)
    version = "" if probe.version is None else f" of version {probe.version}"
    text = f"{state}{version}, wire version {wire[1]}"
    if wire[1] < common.MIN_SUPPORTED_WIRE_VERSION or wire[0] > common.MAX_SUPPORTED_WIRE_VERSION:
        row = ROWS[Symptom.INCOMPATIBLE]
        yield Finding(
            "hello", Level.WRONG, f"{text}: {row.says}", row.check, probe.name, Symptom.INCOMPATIBLE
        )
    wanted, given = target.replica_set, hello.get("setName")
    if wanted is not None and given != wanted:
        row = ROWS[Symptom.SET_NAME]
        which = f"the set {given!r}" if given else "no replica set"
        text = f"{state} of {which}, and the URI asks for replicaSet={wanted}"
        yield Finding(
            "hello", Level.WRONG, text, f"check {row.check}", probe.name, Symptom.SET_NAME
        )
    else:
        yield Finding("hello", Level.OK, text, server=probe.name)


def _state(hello: dict[str, Any]) -> str:
    if hello.get("msg") == "isdbgrid":
        return "mongos"
    if not hello.get("setName"):
        return "standalone" if not hello.get("isreplicaset") else "member without configuration"
    if hello.get("isWritablePrimary"):
        return "primary"
    if hello.get("secondary"):
        return "secondary"
    return "arbiter" if hello.get("arbiterOnly") else "member that is starting or recovering"


def _times(probe: Probe) -> Iterator[Finding]:
    times = probe.round_trips_ms
    if times:
        middle, spread = statistics.median(times), max(times) - min(times)
        level = Level.NOTE if spread > JITTER_MS else Level.OK
        level = Level.WARNING if middle > SLOW_MS else level
        text = f"round trip {middle:.1f} ms, {min(times):.1f} to {max(times):.1f}"
        advice = "network and load of the server; timeouts must leave room for it"
        yield Finding("latency", level, text, advice if level else "", probe.name)
    elif probe.symptom is None:
        text = "hello took so long that round trips were not measured"
        yield Finding("latency", Level.WARNING, text, "the load of the server", probe.name)
    if probe.clock_ms is not None and abs(probe.clock_ms) > CLOCK_MS:
        text = f"its clock differs from ours by {probe.clock_ms / 1000:+.0f} s"
        yield Finding("clock", Level.WARNING, text, "NTP on both machines", probe.name)


def of_set(probes: Sequence[Probe], target: Target) -> Iterator[Finding]:
    """The replica set as a whole; nothing of other deployments."""
    members = [each for each in probes if each.is_member and each.symptom is None]
    if not members or target.flag("directconnection"):
        return
    yield from _names(probes, members)
    primary = next((each for each in members if each.is_primary), None)
    for each in members:
        lag = None if primary is None else _lag(primary, each)
        if lag is not None and lag > LAG_S:
            text = f"{lag:.0f} s behind the primary"
            yield Finding("members", Level.WARNING, text, "its load and its sync source", each.name)
    if primary is not None:
        text = f"{len(members)} of {_size(members)} members reached, primary {primary.name}"
        yield Finding("members", Level.OK, text)


def _names(probes: Sequence[Probe], members: Sequence[Probe]) -> Iterator[Finding]:
    """Members that are reached, and not by the names that the set has for them: drivers go by
    those."""
    hosts = {address_text(each) for member in members for each in announced(member.hello or {})}
    own = {address_text(each) for member in members for each in own_name(member.hello or {})}
    unusable = own - {each.name for each in probes if each.symptom is None and each.hello}
    if not unusable:
        return
    named = [each for each in members if each.name in hosts]
    needed = [each for each in members if each.is_primary] or members
    level = Level.WARNING if any(each in named for each in needed) else Level.WRONG
    row = ROWS[Symptom.MEMBER_NAMES]
    text = f"{row.says}: {', '.join(sorted(unusable))}"
    yield Finding("members", level, text, f"check {row.check}", symptom=Symptom.MEMBER_NAMES)


def without_primary(probes: Sequence[Probe]) -> Finding | None:
    """Of a replica set that had no primary all the time; None of what is none, or has one."""
    members = [each for each in probes if each.is_member and each.symptom is None]
    if not members or any(each.is_primary for each in members):
        return None
    size, reached = _size(members), len(members)
    enough = reached * 2 > size
    symptom = Symptom.ELECTION if enough else Symptom.NO_MAJORITY
    row = ROWS[symptom]
    idle = [idle for each in members if (idle := _since_last_write(each)) is not None]
    text = f"{row.says}: {reached} of {size} members reached"
    lasting = bool(idle) and min(idle) > LONG_WITHOUT_PRIMARY_S
    if lasting:
        text += f", the last write {min(idle):.0f} s ago"
    level = Level.WARNING if enough and not lasting else Level.WRONG
    return Finding("members", level, text, f"check {row.check}", symptom=symptom)


def _size(members: Sequence[Probe]) -> int:
    return max(len(set(announced(each.hello or {}))) for each in members)


def _last_write(probe: Probe) -> datetime | None:
    date = (probe.hello or {}).get("lastWrite", {}).get("lastWriteDate")
    return date if isinstance(date, datetime) else None


def _since_last_write(probe: Probe) -> float | None:
    date, now = _last_write(probe), (probe.hello or {}).get("localTime")
    if date is None or not isinstance(now, datetime):
        return None
    return (now - date).total_seconds()


def _lag(primary: Probe, member: Probe) -> float | None:
    """In seconds, by the members' own clocks and the time between their answers.

    Source: Max Staleness, "Staleness".
    """
    ours, theirs = _since_last_write(member), _since_last_write(primary)
    return None if ours is None or theirs is None else ours - theirs
