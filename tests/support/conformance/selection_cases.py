"""The specification tests of server selection and staleness, held against pymongo's look at its
servers as the library wraps it.

They have formats of their own and ask for no server: a case is a JSON file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import json_util
from pymongo.errors import ConfigurationError
from pymongo.read_preferences import make_read_preference
from pymongo.server_selectors import writable_server_selector
from support.conformance.matching import CaseFailed, only_known
from support.topologies import ANY_DISTANCE, found, mode_number, server, topology

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


@dataclass(frozen=True)
class SelectionCase:
    """One file."""

    suite: str
    file: str
    document: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.suite}/{self.file}"


def load(suite: str, path: Path) -> list[SelectionCase]:
    """The case of a file, named by its folders as well: they repeat the names of files."""
    document = json_util.loads(path.read_text(encoding="utf-8"))
    within = path.parts[path.parts.index(suite) + 1 :]
    return [SelectionCase(suite, "/".join(within).removesuffix(".json"), document)]


def selects_as_told(case: Mapping[str, Any]) -> None:
    """The formats "Server Selection Logic Tests" and "Max Staleness Tests"."""
    only_known(case, _CASE, "case")
    if case.get("error"):
        try:
            left = _left(case)
        except (ConfigurationError, ValueError) as error:
            if "staleness" not in str(error).lower():
                raise
        else:
            raise CaseFailed(f"expected an error, got {left}")
        return
    _same("suitable", case["suitable_servers"], _left(case, threshold_ms=ANY_DISTANCE))
    _same("in the latency window", case["in_latency_window"], _left(case))


def _left(case: Mapping[str, Any], **options: float) -> list[str]:
    preference = case["read_preference"]
    only_known(preference, {"maxStalenessSeconds", "mode", "tag_sets"}, "read preference")
    selector: Any = writable_server_selector
    if case.get("operation", "read") == "read":
        selector = make_read_preference(
            mode_number(preference.get("mode", "Primary")),
            preference.get("tag_sets"),
            preference.get("maxStalenessSeconds", -1),
        )
    avoided = [each["address"] for each in case.get("deprioritized_servers", ())]
    return found(_topology(case, **options), selector, avoided=avoided)


def _topology(case: Mapping[str, Any], **options: float) -> Any:
    described = case["topology_description"]
    frequency = case.get("heartbeatFrequencyMS", 10_000) / 1000
    servers = map(_server, described["servers"])
    return topology(described["type"], *servers, heartbeat_frequency=frequency, **options)


def _server(described: Mapping[str, Any]) -> Any:
    only_known(described, _SERVER, "server")
    return server(
        described["address"],
        described["type"],
        tags=described.get("tags"),
        last_write=described.get("lastWrite", {}).get("lastWriteDate", 0) / 1000,
        last_update=described.get("lastUpdateTime", 0) / 1000,
        rtt=described.get("avg_rtt_ms", 0) / 1000,
    )


def _same(what: str, expected: Collection[Mapping[str, Any]], hosts: list[str]) -> None:
    addresses = sorted(each["address"] for each in expected)
    if addresses != hosts:
        raise CaseFailed(f"{what}: expected {addresses}, got {hosts}")
