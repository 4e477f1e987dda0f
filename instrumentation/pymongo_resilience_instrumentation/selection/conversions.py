"""pymongo's descriptions of servers and read preferences as the engine's: the one conversion."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

from pymongo.errors import ConnectionFailure

from pymongo_resilience.rules.explanations import Symptom
from pymongo_resilience.server_choice.eligibility import Mode, ReadPreference
from pymongo_resilience.server_choice.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.causes import cause_of, symptom_of
from pymongo_resilience_instrumentation.failures.classify import attribute
from pymongo_resilience_instrumentation.failures.error_texts import safe_message

LONGEST_ERROR = 200
"""Characters of one server's error."""
AFTER = re.compile(r" \(configured timeouts: .*| \([^()]*\b\d+ attempts?(?:; .*)?\)$", re.DOTALL)
"""What stands behind the cause in an error of the driver's: the timeouts, its origin."""
NUMBER = re.compile(r"^\[Errno (-?\d+)\] ")
"""The operating system's errors begin so; those of name resolution are negative."""


def topology(described: Any, of: Any = None) -> TopologyDescription:
    """Everything but whether the driver is compatible, which it asks itself. ``of``: the driver's
    topology, where a server that was never reached is to be explained."""
    servers = [server(each) for each in servers_of(described)]
    if of is not None:
        servers = [
            made._replace(check=_check(of, each.address)) if made.error is None else made
            for made, each in zip(servers, servers_of(described), strict=True)
        ]
    return TopologyDescription(
        type=TopologyType(described.topology_type_name),
        servers=tuple(servers),
        heartbeat_frequency=described.heartbeat_frequency,
    )


def servers_of(described: Any) -> list[Any]:
    """In the order of their addresses, as the driver shows them."""
    return sorted(described.server_descriptions().values(), key=lambda each: each.address)


def server(described: Any) -> ServerDescription:
    error = described.error
    updated = described.last_update_time
    return ServerDescription(
        address=address_text(described.address),
        type=ServerType(described.server_type_name),
        tags=described.tags,
        last_write=described.last_write_date,
        last_update=updated,
        average_rtt=described.round_trip_time,
        minimum_rtt=described.min_round_trip_time or None,
        error=None if error is None else error_text(error, described.address),
        error_age=None if error is None else max(0.0, driver.csot.now() - updated),
    )


def symptom(described: Any, of: Any) -> Symptom | None:
    """What is wrong with a server of the driver's topology ``of``; None where it is reached."""
    if described.is_server_type_known:
        return None
    cause = cause_of(described.error)
    if cause in {Symptom.PASSWORD, Symptom.SET_NAME}:
        return cause
    if described.error is None:
        return symptom_of(_check(of, described.address))
    return symptom_of(error_text(described.error, described.address))


def _check(topology: object, address: Address) -> str | None:
    check = driver.monitors.check_in_progress(topology, address)
    if check is None:
        return None
    seconds = f"for {driver.csot.now() - check.since:.1f} s".replace(".0 s", " s")
    if check.connection is not None:
        return f"no answer to hello {seconds}"
    if check.connected:
        return f"TLS handshake unanswered {seconds}"
    return f"no answer to a connection attempt {seconds} (firewall, wrong address?)"


def read_preference(preference: Any) -> ReadPreference:
    """Raises AttributeError or ValueError for what is no read preference."""
    return ReadPreference(
        Mode(preference.mongos_mode), tuple(preference.tag_sets), preference.max_staleness
    )


def error_text(error: Exception, address: Address) -> str:
    """The operating system's or the TLS library's words of a connection that failed; of anything
    else only the class and the code, since a server's text quotes values."""
    text = error.args[0] if error.args else None
    of_server = attribute(error, "details")
    if not isinstance(error, ConnectionFailure) or of_server or not isinstance(text, str):
        return safe_message(error)
    text = AFTER.sub("", text.removeprefix(f"{address_text(address)}: "))
    number = NUMBER.match(text)
    if number is not None:
        # asyncio has words of its own, with the address in it once more.
        known = int(number[1]) in errno.errorcode
        text = os.strerror(int(number[1])) if known else text[number.end() :]
    return " ".join(text.split())[:LONGEST_ERROR] or safe_message(error)
