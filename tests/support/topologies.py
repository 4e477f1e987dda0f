"""pymongo's descriptions of servers and deployments, and its look at them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from bson.datetime_ms import EPOCH_NAIVE
from pymongo.hello import Hello
from pymongo.read_preferences import read_pref_mode_from_name
from pymongo.server_description import ServerDescription
from pymongo.synchronous.settings import TopologySettings
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription

IN_A_SET = {"ok": 1, "setName": "rs"}
HELLOS: dict[str, dict[str, Any]] = {
    "Unknown": {},
    "PossiblePrimary": {},
    "Standalone": {"ok": 1},
    "Mongos": {"ok": 1, "msg": "isdbgrid"},
    "RSPrimary": {**IN_A_SET, "isWritablePrimary": True},
    "RSSecondary": {**IN_A_SET, "secondary": True},
    "RSArbiter": {**IN_A_SET, "arbiterOnly": True},
    "RSOther": IN_A_SET,
    "RSGhost": {"ok": 1, "isreplicaset": True},
    "LoadBalancer": {"ok": 1, "serviceId": "one"},
}
ANY_DISTANCE = 1e9


def server(
    host: str,
    kind: str = "RSSecondary",
    tags: dict[str, Any] | None = None,
    last_write: float = 0.0,
    last_update: float = 0.0,
    rtt: float = 0.0,
    error: Exception | None = None,
) -> ServerDescription:
    """Times in seconds."""
    written = EPOCH_NAIVE + timedelta(seconds=last_write)
    hello = {**HELLOS[kind], "tags": tags or {}, "lastWrite": {"lastWriteDate": written}}
    made = ServerDescription((host, 27017), Hello(hello), rtt, error)
    made._last_update_time = last_update
    return made


def topology(
    kind: str,
    *servers: ServerDescription,
    heartbeat_frequency: float = 10.0,
    threshold_ms: float = 15.0,
) -> TopologyDescription:
    settings = TopologySettings(
        heartbeat_frequency=heartbeat_frequency,  # type: ignore[arg-type]  # pymongo's says int
        local_threshold_ms=threshold_ms,  # type: ignore[arg-type]  # as above
    )
    by_address = {each.address: each for each in servers}
    return TopologyDescription(getattr(TOPOLOGY_TYPE, kind), by_address, "rs", None, None, settings)


def mode_number(name: str) -> int:
    """Of a mode as the specifications write it: ``SecondaryPreferred``."""
    return read_pref_mode_from_name(name[0].lower() + name[1:])


def found(
    described: TopologyDescription,
    selector: Any,
    own: Any = None,
    avoided: Sequence[str] = (),
) -> list[str]:
    """The hosts that pymongo would choose from."""
    known = described.server_descriptions()
    left_out = [known[each, 27017] for each in avoided]
    found = described.apply_selector(selector, None, own, left_out)
    return sorted(each.address[0] for each in found)
