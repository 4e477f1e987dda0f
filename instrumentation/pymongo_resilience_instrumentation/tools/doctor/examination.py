"""Runs all checks within a time limit and returns a verdict, as text or JSON.

Every check that may hang runs in a daemon thread. The output does not use Rich, because it is not a
dependency of the library and may be missing in the container under examination.
"""

from __future__ import annotations

import json
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pymongo

from pymongo_resilience.config import load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation.driver.private_names import parts
from pymongo_resilience_instrumentation.failures.causes import ObservedServer, diagnose
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.self_check import State, missing

from . import Finding, Level, compared_members, engines
from .login import Login
from .probe import Probe, Prober, of_idle, unanswered
from .uri import Target, read, resolved

T = TypeVar("T")
_ORDER: Final = list(Symptom)
NETWORK_S: Final = 2.4
"""Seconds for DNS, connections, TLS and hello of all servers together."""
TOTAL_S: Final = 3.8
"""Seconds for everything except the start of Python."""
LOOKING_AGAIN_S: Final = 0.4
DEEPER: Final = 2.0
"""Factor for both with ``--deep``."""


class Verdict(NamedTuple):
    """The conclusion. Immutable."""

    well: bool
    text: str
    advice: str = ""
    symptom: Symptom | None = None


class Examination(NamedTuple):
    """All findings and the verdict. Immutable."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    seconds: float


def examine(
    uri: str, *, deep: bool = False, idle_seconds: float = 0.0, processes: int = 1
) -> Examination:
    """Connect as an application with this URI would. Never raises the errors that it finds.

    Args:
        uri: The connection string.
        deep: Take up to ten seconds, and check idle connections in the rest of the time.
        idle_seconds: How long to leave connections idle before they are used again.
        processes: The number of application processes.
    """
    began = time.monotonic()
    scale = DEEPER if deep else 1.0
    target, written = read(uri)
    findings = [*of_library(), *written]
    probes: list[Probe] = []
    if target is not None and not _is_wrong(written):
        network_end = began + NETWORK_S * scale
        target, found = _in_time(
            lambda: resolved(target, NETWORK_S / 2), (target, [_NO_DNS]), network_end
        )
        probes = _probed(target, network_end)
        is_usable = usable(probes, target)
        failed = Level.WARNING if is_usable else Level.WRONG
        found += [
            each for probe in probes for each in compared_members.of_probe(probe, target, failed)
        ]
        found += compared_members.of_set(probes, target)
        findings += found
        engine = engines.of_target(target) or engines.of_hosts(each.address[0] for each in probes)
        shown = next((each.engine for each in probes if each.engine is not None), None)
        findings += engines.findings(engine or shown, target)
        if is_usable and not _is_wrong(found):
            end = began + TOTAL_S * (1.0 if idle_seconds else scale)
            if deep or idle_seconds:
                rest = idle_seconds or (end - time.monotonic()) / 2
                findings += of_idle(probes, target, rest)
                end = max(end, time.monotonic() + TOTAL_S / 2)
            findings += _logged_in(uri, target, probes, end, processes)
    decided = decide(findings, probes, target)
    return Examination(tuple(findings), decided, time.monotonic() - began)


_NO_DNS: Final = Finding(
    "dns", Level.WRONG, "DNS did not answer in time", f"check {Symptom.UNKNOWN_HOST.check}"
)


def _is_wrong(findings: list[Finding]) -> bool:
    return any(each.level is Level.WRONG for each in findings)


def _probed(target: Target, end: float) -> list[Probe]:
    """Probe the seeds and the members that they name, all at the same time."""
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
            # Also connect to the members that the server names, as a driver does.
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
    # Without a primary, the login would only wait for one until its time is over.
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
        text = (
            f"not everything could be checked in {seconds:.1f} s: the deployment is slow or "
            "electing a primary"
        )
        findings.append(Finding("login", Level.WARNING, text, "run the doctor again with --deep"))
    return findings


def _in_time(function: Callable[[], T], otherwise: T, end: float) -> T:
    """Return the function's result, or ``otherwise`` if it raises an error or takes too long.

    In the second case, its daemon thread is abandoned.
    """
    results: queue.SimpleQueue[T] = queue.SimpleQueue()
    _start(lambda: results.put(function()))
    try:
        return results.get(timeout=max(0.0, end - time.monotonic()))
    except queue.Empty:
        return otherwise


def _start(function: Callable[[], object]) -> None:
    def run() -> None:
        # Python would print an error of a thread, which might contain the URI.
        with suppress(Exception):
            function()

    threading.Thread(target=run, name="pymongo_resilience_doctor", daemon=True).start()


def of_library() -> Iterator[Finding]:
    versions = f"pymongo {pymongo.version} on Python {platform.python_version()}"
    lacking = missing(parts())
    if lacking:
        state = State.OFF if State.OFF in lacking else State.TELEMETRY
        names = ", ".join(name for found in lacking.values() for name in found)
        text = f"{versions} lacks {names}: {state.value}"
        yield Finding("library", Level.WARNING, text, "install pymongo 4.19 or 4.20")
    else:
        yield Finding("library", Level.OK, versions)
    try:
        loaded = load()
    except ConfigurationError as error:
        yield Finding("library", Level.WRONG, str(error), "correct these options")
        return
    names = ", ".join(sorted(loaded.sources)) or "none"
    yield Finding(
        "library", Level.OK, f"pymongo-resilience: options set by variables or the file: {names}"
    )


def usable(probes: Sequence[Probe], target: Target) -> bool:
    return any(
        each.symptom is None
        and each.hello is not None
        and target.replica_set in {None, each.hello.get("setName")}
        for each in probes
    )


def decide(findings: Sequence[Finding], probes: Sequence[Probe], target: Target | None) -> Verdict:
    """Return the verdict: the cause that explains most of what is wrong."""
    wrong = [each for each in findings if each.level is Level.WRONG]
    if not wrong:
        return _well([each for each in findings if each.level is Level.WARNING])
    found = wrong[0]
    if found.check not in {"uri", "library"} and target is not None and probes:
        if not usable(probes, target):
            seen = [ObservedServer(each.name, each.symptom, each.is_primary) for each in probes]
            diagnosis = diagnose([each for each in seen if each.symptom is not None])
            if diagnosis is not None:
                servers = ", ".join(diagnosis.servers)
                said = next((each.said for each in probes if each.symptom is diagnosis.symptom), "")
                text = f"{diagnosis.symptom.says} ({servers}{f': {said}' if said else ''})"
                return Verdict(False, text, f"check {diagnosis.symptom.check}", diagnosis.symptom)
        found = min(wrong, key=_rank)
    server = f" ({found.server})" if found.server else ""
    return Verdict(False, f"{found.text}{server}", found.advice, found.symptom)


def _rank(finding: Finding) -> int:
    return len(_ORDER) if finding.symptom is None else _ORDER.index(finding.symptom)


def _well(warnings: Sequence[Finding]) -> Verdict:
    if not warnings:
        return Verdict(True, "no problem found")
    main = min(warnings, key=_rank)
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return Verdict(True, f"no errors, {count}: {main.text}", main.advice, main.symptom)


def as_text(examination: Examination) -> str:
    lines: list[str] = []
    for each in examination.findings:
        server = f"{each.server}: " if each.server else ""
        lines.append(f"{each.level.name.lower():<8} {each.check:<8} {server}{each.text}")
        advice = f"{'':18}{each.advice}"
        if each.advice and each.level >= Level.WARNING and advice not in lines:
            lines.append(advice)
    decided = examination.verdict
    lines += ["", f"Verdict: {decided.text}"]
    return "\n".join([*lines, *([f"Change:  {decided.advice}"] if decided.advice else [])])


def as_json(examination: Examination) -> str:
    findings = [
        each._asdict() | {"level": each.level.name.lower()} for each in examination.findings
    ]
    found = {
        "verdict": examination.verdict._asdict(),
        "seconds": round(examination.seconds, 3),
        "findings": findings,
    }
    return json.dumps(found, indent=2)
