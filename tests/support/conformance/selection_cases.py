"""The specification tests that the engine passes alone: selection and staleness.

They have formats of their own and ask for no server: a case is a JSON file, and is held against
the engine's functions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import json_util
from support.conformance.matching import CaseFailed, only_known
from support.engine.topologies import suitable_of

from pymongo_resilience.server_choice.eligibility import (
    Criteria,
    Decision,
    Mode,
    ReadPreference,
    decide,
)
from pymongo_resilience.server_choice.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)
from pymongo_resilience.server_choice.server_load import choose

_CASE: Final = {
    "deprioritized_servers",
    "error",
    "heartbeatFrequencyMS",
    "in_latency_window",
    "operation",
    "read_preference",
    "suitable_servers",
    "topology_description",
}
_IN_WINDOW_CASE: Final = {
    "description",
    "iterations",
    "mocked_topology_state",
    "outcome",
    "topology_description",
}
# Wire versions are the driver's concern: every version that it speaks has a last write date.
_SERVER: Final = {
    "address",
    "avg_rtt_ms",
    "lastUpdateTime",
    "lastWrite",
    "maxWireVersion",
    "tags",
    "type",
}
SEED: Final = 1


@dataclass(frozen=True)
class SelectionCase:
    """One file, and what holds the engine against it."""

    suite: str
    file: str
    document: Mapping[str, Any]
    judge: Callable[[Mapping[str, Any]], None]
    """Raises CaseFailed, or what the engine raises."""

    def __str__(self) -> str:
        return f"{self.suite}/{self.file}"


def load(suite: str, judge: Callable[[Mapping[str, Any]], None], path: Path) -> list[SelectionCase]:
    """The case of a file, named by its folders as well: they repeat the names of files."""
    document = json_util.loads(path.read_text(encoding="utf-8"))
    within = path.parts[path.parts.index(suite) + 1 :]
    return [SelectionCase(suite, "/".join(within).removesuffix(".json"), document, judge)]


def selects_as_told(case: Mapping[str, Any]) -> None:
    """The formats "Server Selection Logic Tests" and "Max Staleness Tests"."""
    only_known(case, _CASE, "case")
    if case.get("error"):
        _refused(case)
        return
    decision = _decided(case)
    _same("suitable", case["suitable_servers"], suitable_of(decision))
    _same("in the latency window", case["in_latency_window"], decision.in_window)


def spreads_as_told(case: Mapping[str, Any]) -> None:
    """The format "Server Selection Within Latency Window Tests": how often each server is taken.

    A frequency of 0 or 1 is exact.
    """
    only_known(case, _IN_WINDOW_CASE, "case")
    criteria = Criteria(read_preference=ReadPreference(Mode.NEAREST))
    in_window = decide(_topology(case), criteria).in_window
    operations = {
        each["address"]: each["operation_count"] for each in case["mocked_topology_state"]
    }
    rng = random.Random(SEED).random  # noqa: S311 - the same choices in every run
    taken = Counter(choose(in_window, operations, rng).address for _ in range(case["iterations"]))
    for address, expected in case["outcome"]["expected_frequencies"].items():
        frequency = taken[address] / case["iterations"]
        tolerance = 0 if expected in {0, 1} else case["outcome"]["tolerance"]
        if abs(frequency - expected) > tolerance:
            raise CaseFailed(f"{address}: expected {expected}, got {frequency}")


def _refused(case: Mapping[str, Any]) -> None:
    try:
        decision = _decided(case)
    except ValueError as error:
        if "maxStalenessSeconds" not in str(error):
            raise
    else:
        raise CaseFailed(f"expected an error, got {decision.in_window}")


def _decided(case: Mapping[str, Any]) -> Decision:
    preference = case["read_preference"]
    only_known(preference, {"maxStalenessSeconds", "mode", "tag_sets"}, "read preference")
    mode = preference.get("mode", "Primary")
    criteria = Criteria(
        write={"read": False, "write": True}[case.get("operation", "read")],
        read_preference=ReadPreference(
            Mode(mode[0].lower() + mode[1:]),
            preference.get("tag_sets", ({},)),
            preference.get("maxStalenessSeconds"),
        ),
        deprioritized={each["address"] for each in case.get("deprioritized_servers", ())},
    )
    return decide(_topology(case), criteria)


def _topology(case: Mapping[str, Any]) -> TopologyDescription:
    described = case["topology_description"]
    return TopologyDescription(
        TopologyType(described["type"]),
        tuple(map(_server, described["servers"])),
        heartbeat_frequency=case.get("heartbeatFrequencyMS", 10_000) / 1000,
    )


def _server(described: Mapping[str, Any]) -> ServerDescription:
    only_known(described, _SERVER, "server")
    written = described.get("lastWrite", {}).get("lastWriteDate")
    rtt = described.get("avg_rtt_ms")
    return ServerDescription(
        described["address"],
        ServerType(described["type"]),
        tags=described.get("tags", {}),
        last_write=None if written is None else written / 1000,
        last_update=described.get("lastUpdateTime", 0) / 1000,
        average_rtt=None if rtt is None else rtt / 1000,
    )


def _same(
    what: str, expected: Collection[Mapping[str, Any]], actual: Collection[ServerDescription]
) -> None:
    addresses = sorted(each["address"] for each in expected)
    found = sorted(each.address for each in actual)
    if addresses != found:
        raise CaseFailed(f"{what}: expected {addresses}, got {found}")
