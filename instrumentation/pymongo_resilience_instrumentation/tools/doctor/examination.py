"""All checks in their order, within a time limit: each that may hang runs in a daemon thread."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pymongo_resilience.rules.explanations import Symptom

from . import compared_members, dns_records, idle, verdict
from .findings import Finding, Level
from .installation import of_library
from .login import Login
from .probe import Probe, Prober, unanswered
from .uri import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from .uri import Target
    from .verdict import Verdict

T = TypeVar("T")
NETWORK_S: Final = 2.4
"""For DNS, connections, TLS and hello of all servers together."""
TOTAL_S: Final = 3.8
"""All of it, the start of Python left out."""
LOOKING_AGAIN_S: Final = 0.4
DEEPER: Final = 2.0
"""How much longer each of them is with ``--deep``."""


class Examination(NamedTuple):
    """Immutable."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    seconds: float


def examine(
    uri: str, *, deep: bool = False, idle_seconds: float = 0.0, processes: int = 1
) -> Examination:
    """Connects as an application with this URI would. Raises none of the errors that it finds.

    ``idle_seconds``: connections are left alone that long, and used again; ``deep`` alone takes
    what is left of its ten seconds.
    """
    began = time.monotonic()
    scale = DEEPER if deep else 1.0
    target, written = read(uri)
    findings = [*of_library(), *written]
    probes: list[Probe] = []
    if target is not None and not _is_wrong(written):
        network_end = began + NETWORK_S * scale
        target, found = _in_time(
            lambda: dns_records.resolved(target, NETWORK_S / 2), (target, [_NO_DNS]), network_end
        )
        probes = _probed(target, network_end)
        is_usable = verdict.usable(probes, target)
        failed = Level.WARNING if is_usable else Level.WRONG
        found += [
            each for probe in probes for each in compared_members.of_probe(probe, target, failed)
        ]
        found += compared_members.of_set(probes, target)
        findings += found
        if is_usable and not _is_wrong(found):
            end = began + TOTAL_S * (1.0 if idle_seconds else scale)
            if deep or idle_seconds:
                rest = idle_seconds or (end - time.monotonic()) / 2
                findings += idle.of_idle(probes, target, rest)
                end = max(end, time.monotonic() + TOTAL_S / 2)
            findings += _logged_in(uri, target, probes, end, processes)
    decided = verdict.decide(findings, probes, target)
    return Examination(tuple(findings), decided, time.monotonic() - began)


_NO_DNS: Final = Finding(
    "dns", Level.WRONG, "DNS does not answer in time", f"check {Symptom.UNKNOWN_HOST.check}"
)


def _is_wrong(findings: list[Finding]) -> bool:
    return any(each.level is Level.WRONG for each in findings)


def _probed(target: Target, end: float) -> list[Probe]:
    """The seeds, and what members of a replica set they name, all at the same time."""
    prober = Prober(target, end - LOOKING_AGAIN_S)
    probes: dict[str, Probe] = {}
    done: queue.SimpleQueue[Probe] = queue.SimpleQueue()
    addresses, pending = list(target.seeds), 0
    while True:
        for probe in map(Probe, addresses):
            if probe.name not in probes:
                probes[probe.name] = probe
                _start(partial(_tried, prober, probe, done))
                pending += 1
        if not pending:
            break
        try:
            hello = done.get(timeout=max(0.0, end - time.monotonic())).hello
        except queue.Empty:
            break
        pending -= 1
        addresses = []
        if hello is not None and not target.is_direct:
            addresses = compared_members.addresses(
                hello, compared_members.LISTS + compared_members.OWN
            )
    for probe in probes.values():
        if probe.symptom is None and probe.hello is None:
            probe.symptom, probe.said = unanswered(probe.stage), prober.waited
    return list(probes.values())


def _tried(prober: Prober, probe: Probe, done: queue.SimpleQueue[Probe]) -> None:
    done.put(prober.run(probe))


def _logged_in(
    uri: str, target: Target, probes: list[Probe], end: float, processes: int
) -> list[Finding]:
    electing = compared_members.without_primary(probes, target)
    if electing is not None and electing.level is Level.WRONG:
        return [electing]
    seconds = max(0.5, end - time.monotonic())
    has_version = any(each.version is not None for each in probes)
    login = Login(uri, target, seconds, processes, has_version=has_version)
    is_done = _in_time(login.run, False, time.monotonic() + seconds)
    findings = list(login.findings)
    if login.has_primary or _is_wrong(findings):
        return findings
    if electing is not None:
        return [*findings, electing]
    if login.is_slow or not is_done:
        text = f"not everything was checked in {seconds:.1f} s: the deployment is slow, or electing"
        findings.append(Finding("login", Level.WARNING, text, "run it again, with --deep"))
    return findings


def _in_time(function: Callable[[], T], otherwise: T, end: float) -> T:
    """What the function returns; ``otherwise`` where it raises, or takes too long."""
    results: queue.SimpleQueue[T] = queue.SimpleQueue()
    _start(lambda: results.put(function()))
    try:
        return results.get(timeout=max(0.0, end - time.monotonic()))
    except queue.Empty:
        return otherwise


def _start(function: Callable[[], object]) -> None:
    def run() -> None:
        # Printed by its thread, an error could show a URI.
        with suppress(Exception):
            function()

    threading.Thread(target=run, name="pymongo_resilience_doctor", daemon=True).start()
