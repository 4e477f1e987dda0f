"""What became of each case, counted by suite and side, and the list of those that cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from support.conformance.deployments import Bed
from support.conformance.matching import CaseFailed, described
from support.conformance.runner import Case, failure

Result = Literal["passed", "failed", "not runnable"]
RESULTS: Final[tuple[Result, ...]] = ("passed", "failed", "not runnable")


@dataclass(frozen=True)
class Verdict:
    """What became of one case on one side of pymongo."""

    suite: str
    file: str
    description: str
    side: str
    result: Result
    ours: str | None = None
    """Why it failed with the library."""
    plain: str | None = None
    """Why it failed with plain pymongo; ``None`` where it passed, or was not tried."""

    def __str__(self) -> str:
        return (
            f"{self.result}\n"
            f"with the library: {self.ours or 'passes'}\n"
            f"with plain pymongo: {self.plain or 'passes'}"
        )


def judge(case: Case, bed: Bed, side: str) -> Verdict:
    """Run a case with the library, and with plain pymongo on the same server if that fails.

    Not runnable is only what both fail in the same words, and not for a gap of the runner: what
    plain pymongo fails otherwise could hide a fault of ours.
    """
    ours = failure(case, bed, side, instrumented=True)
    plain = None if ours is None else failure(case, bed, side, instrumented=False)
    result: Result = "failed"
    if ours is None:
        result = "passed"
    elif isinstance(plain, CaseFailed) and _text(plain) == _text(ours):
        result = "not runnable"
    return Verdict(case.suite, case.file, case.description, side, result, _text(ours), _text(plain))


def _text(error: Exception | None) -> str | None:
    if error is None or isinstance(error, CaseFailed):
        return str(error) if error else None
    return described(error)


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """One line for each suite and side."""
    counts = Counter((each.suite, each.side, each.result) for each in verdicts)
    return [
        f"conformance, {suite}, {side}: "
        + ", ".join(f"{counts[suite, side, result]} {result}" for result in RESULTS)
        for suite, side in sorted({(each.suite, each.side) for each in verdicts})
    ]
