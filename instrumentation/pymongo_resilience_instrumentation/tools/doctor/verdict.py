"""From all findings to one sentence, and what to change: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pymongo_resilience.rules.explanations import Symptom
from pymongo_resilience_instrumentation.failures.causes import Found, diagnose

from .findings import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .findings import Finding
    from .probe import Probe
    from .uri import Target

_ORDER = list(Symptom)


class Verdict(NamedTuple):
    """Immutable."""

    well: bool
    text: str
    advice: str = ""
    symptom: Symptom | None = None


def usable(probes: Sequence[Probe], target: Target) -> bool:
    """Whether a client finds a server at all."""
    return any(
        each.symptom is None
        and each.hello is not None
        and target.replica_set in {None, each.hello.get("setName")}
        for each in probes
    )


def decide(findings: Sequence[Finding], probes: Sequence[Probe], target: Target | None) -> Verdict:
    """The cause that explains most of what is wrong."""
    wrong = [each for each in findings if each.level is Level.WRONG]
    if not wrong:
        return _well([each for each in findings if each.level is Level.WARNING])
    found = wrong[0]
    if found.check not in {"uri", "library"} and target is not None and probes:
        if not usable(probes, target):
            seen = [Found(each.name, each.symptom, each.is_primary) for each in probes]
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
        return Verdict(True, "all is well")
    main = min(warnings, key=_rank)
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return Verdict(True, f"no fault found, {count}: {main.text}", main.advice, main.symptom)
