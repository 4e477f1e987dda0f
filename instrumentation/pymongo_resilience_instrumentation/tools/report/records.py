"""Reads what was recorded, files of ``Recorder`` and logs as JSON lines, and counts it."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

LOG_FIELD: Final = "pymongo_resilience"
"""Of a log line, the attribute that EventLog gives its records."""
TIMES: Final = ("at", "timestamp", "@timestamp", "time", "ts", "created", "asctime")


class ReportError(ValueError):
    """What was given is no recording; the text says where."""


class Operation(NamedTuple):
    at: float
    name: str
    seconds: float
    error: str | None
    server: str | None


class Retry(NamedTuple):
    at: float
    reason: str
    server: str | None
    is_final: bool


class Hedge(NamedTuple):
    at: float
    """When the read had its answer, or failed."""
    server: str
    waited: float
    winner: str
    """``first``, ``hedge`` or ``neither``."""


class Fault(NamedTuple):
    at: float
    text: str
    seconds: float
    struck: int


@dataclass
class Side:
    """What one side met; times in seconds since it began."""

    name: str
    began: float = 0.0
    """In seconds since 1970."""
    operations: list[Operation] = field(default_factory=list)
    commands: list[Operation] = field(default_factory=list)
    """Of the servers; none where no client had the listener."""
    retries: list[Retry] = field(default_factory=list)
    hedges: list[Hedge] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    breakers: list[tuple[float, str, str]] = field(default_factory=list)
    """When, the server, and ``opened`` or ``closed``."""
    balance: tuple[int, int] | None = None
    """Writes lost and duplicated; None where they were not compared."""

    @property
    def end(self) -> float:
        ends = [each.at + each.seconds for each in self.operations + self.commands]
        ends += [each.at + each.seconds for each in self.faults]
        ends += [each.at for each in self.retries] + [each.at for each in self.hedges]
        ends += [at for at, _, _ in self.breakers]
        return max(ends, default=0.0)


def read(paths: Iterable[Path]) -> list[Side]:
    """The sides in the order of their first records; one that an earlier file has is named with
    its file. Raises ReportError, OSError."""
    sides: dict[str, Side] = {}
    for path in paths:
        of_file: dict[str, Side] = {}
        for number, record in _records(path):
            try:
                _add(of_file, record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ReportError(f"{path}, line {number}: no record of this library") from error
        for side in of_file.values():
            if side.end > 0:
                side.name += f", {path.stem}" if side.name in sides else ""
                side.faults.sort()
                sides[side.name] = side
    if not sides:
        raise ReportError("nothing was recorded there")
    return list(sides.values())


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            # Not every line of an application's log need be its formatter's.
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict):
                continue
            ours = record.get(LOG_FIELD)
            if isinstance(ours, dict):
                yield number, ours | {"at": _time(record), "type": ours.get("event")}
            elif "type" in record and "at" in record:
                yield number, record
            # Other lines of the application's log.


def _time(record: dict[str, Any]) -> float:
    value = next((record[name] for name in TIMES if name in record), 0.0)
    if isinstance(value, int | float):
        return float(value)
    return datetime.fromisoformat(str(value).replace(",", ".")).timestamp()


def _add(sides: dict[str, Side], record: dict[str, Any]) -> None:
    kind, at = record["type"], float(record["at"])
    name = str(record.get("side", "ours"))
    began = min((each.began for each in sides.values()), default=at)
    side = sides.setdefault(name, Side(name, began))
    if kind == "run":
        side.began = at
        return
    at -= side.began
    match kind:
        case "operation" | "command":
            seconds, error, server = float(record["seconds"]), record["error"], record["server"]
            ended = side.operations if kind == "operation" else side.commands
            ended.append(Operation(at, str(record["name"]), seconds, error, server))
            for reason, count in record.get("repeated", {}).items():
                side.retries += [Retry(at, reason, server, False)] * count
        case "fault":
            text = f"{record['fault']} on {record['on']}"
            side.faults.append(Fault(at, text, float(record["seconds"]), int(record["struck"])))
        case "retry.scheduled" | "retry.declined":
            final = kind == "retry.declined"
            side.retries.append(Retry(at, str(record["reason"]), record["server"], final))
        case "read.hedged":
            winner = str(record["winner"] or "neither")
            server = str(record["server"])
            side.hedges.append(Hedge(at, server, float(record["waited"]), winner))
        case "balance":
            side.balance = int(record["lost"]), int(record["duplicated"])
        case "circuit_breaker.opened" | "circuit_breaker.closed":
            side.breakers.append((at, str(record["server"]), kind.rpartition(".")[2]))


class Latency(NamedTuple):
    """Of many operations, in seconds; those of none are None. Immutable."""

    operations: int
    errors: int
    median: float | None
    p99: float | None
    longest: float | None


def latency(operations: Sequence[Operation]) -> Latency:
    times = sorted(each.seconds for each in operations)
    errors = sum(each.error is not None for each in operations)
    if not times:
        return Latency(0, errors, None, None, None)
    middle, late = (times[math.ceil(share * len(times)) - 1] for share in (0.5, 0.99))
    return Latency(len(times), errors, middle, late, times[-1])


def by_server(side: Side) -> Mapping[str, tuple[Latency, int]]:
    """Of each server, its commands or the operations that ended there, and the attempts that failed
    there."""
    operations: dict[str, list[Operation]] = defaultdict(list)
    failed = Counter(each.server for each in side.retries if each.server is not None)
    for each in side.commands or side.operations:
        if each.server is not None:
            operations[each.server].append(each)
    names = sorted({*operations, *failed})
    return {name: (latency(operations.get(name, [])), failed[name]) for name in names}


def hedges(side: Side) -> Mapping[str, tuple[Counter[str], float]]:
    """Of each server that was too slow, the hedged reads by who answered first, and the median of
    the seconds after which they were hedged."""
    found: dict[str, list[Hedge]] = defaultdict(list)
    for each in side.hedges:
        found[each.server].append(each)
    return {
        server: (
            Counter(each.winner for each in found[server]),
            median(each.waited for each in found[server]),
        )
        for server in sorted(found)
    }


def reasons(side: Side) -> Counter[str]:
    """Of attempts that were repeated."""
    return Counter(each.reason for each in side.retries if not each.is_final)
