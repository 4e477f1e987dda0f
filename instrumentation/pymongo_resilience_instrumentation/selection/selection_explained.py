"""Why a server is, or is not, one that an operation may go to; and what a failed selection was
waiting for. The sentences are the engine's. Imported where one has failed, or somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.errors import ConnectionFailure
from pymongo.server_selectors import writable_server_selector

from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.server_choice import eligibility
from pymongo_resilience.server_choice.eligibility import Criteria, Mode, Servers, ServerVerdict
from pymongo_resilience.server_choice.server_description import ServerType
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.causes import Diagnosis, Found, diagnose
from pymongo_resilience_instrumentation.failures.classify import attribute

from . import conversions
from .selector import applications_own

ALONE = frozenset({"Single", "LoadBalanced"})
"""Topologies for which the driver calls no selector."""
UNREACHABLE = "No server can be reached"
TOPOLOGY = ", Topology Description: "
"""What pymongo puts between the text of a failed selection and all servers once more."""
TIMEOUT = ", Timeout: "
"""What it puts before that."""
OWN_WORDS = ("No ", "Could not reach any servers")
"""How pymongo's own sentences begin; else the text is the errors of servers, which ours has."""


def explain_selection(
    client: Any, read_preference: Any, breakers: Mapping[Address, Snapshot], *, writes: bool
) -> tuple[ServerVerdict, ...]:
    """Implements :func:`pymongo_resilience.explain_selection`; ``breakers``: those in use, by
    server."""
    described = client.topology_description
    described.check_compatible()
    asked = client.read_preference if read_preference is None else read_preference
    if not hasattr(asked, "mongos_mode"):
        raise TypeError(f"an object of type {type(asked).__name__} is no read preference")
    own = applications_own(client.options.server_selector)
    if described.topology_type_name in ALONE:
        own = None
    given = {address_text(at): each for at, each in described.server_descriptions().items()}

    def selector(servers: Servers) -> Servers:
        left = own([given[each.address] for each in servers])
        kept = {address_text(each.address) for each in left}
        return [each for each in servers if each.address in kept]

    criteria = Criteria(
        write=writes,
        read_preference=conversions.read_preference(asked),
        server_selector=None if own is None else selector,
        open_breakers={
            address_text(address): breaker.next_probe_in
            for address, breaker in breakers.items()
            if breaker.next_probe_in > 0
        },
        local_threshold=client.options.local_threshold_ms / 1000,
    )
    topology = conversions.topology(described, driver.monitors.topology_of(client))
    return eligibility.explain(topology, criteria)


def explain(error: Exception, loop: Any) -> None:
    """Say of each server why ``loop`` did not select it, in place of the driver's description of
    them all, and the likely cause as the last sentence. The driver's log keeps its own text."""
    if not (error.args and isinstance(error.args[0], str)):
        return
    topology, selector = driver.selection.selecting(loop)
    words, comma, timeout = error.args[0].partition(TOPOLOGY)[0].rpartition(TIMEOUT)
    found = topology.description.server_descriptions().values()
    errors = [each.error for each in found if each.error is not None]
    if not words.startswith(OWN_WORDS) and all(
        isinstance(each, ConnectionFailure) and not attribute(each, "details") for each in errors
    ):
        words = UNREACHABLE
    criteria = _criteria(selector)
    if applications_own(driver.selection.selector_of(topology)) is not None:
        # It is not called once more. What the rules have left is what it has refused.
        criteria = criteria._replace(server_selector=lambda _: ())
    verdicts = eligibility.explain(conversions.topology(topology.description, topology), criteria)
    why = "; ".join(map(str, verdicts)) or "no server is known"
    cause = diagnosis(topology, selector)
    text = f"{words} ({why}){comma}{timeout}"
    error.args = (text if cause is None else f"{text}. {cause}", *error.args[1:])


def diagnosis(topology: Any, selector: Any) -> Diagnosis | None:
    """The likely cause of a failed selection; None where nothing is known."""
    described, criteria = topology.description, _criteria(selector)
    if criteria.bound_elsewhere:
        return None
    return diagnose(
        [
            Found(
                address_text(each.address),
                conversions.symptom(each, topology),
                is_primary=each.server_type_name == ServerType.PRIMARY.value,
                is_member=each.is_server_type_known,
            )
            for each in conversions.servers_of(described)
        ],
        seeds=[address_text(each) for each in driver.waits.seeds(topology)],
        replica_set=described.topology_type_name.startswith("ReplicaSet"),
        wants_primary=criteria.mode is Mode.PRIMARY,
    )


def _criteria(selector: object) -> Criteria:
    if selector is writable_server_selector:
        return Criteria(write=True)
    if driver.selection.is_no_selector(selector):
        return Criteria(bound_elsewhere=True)
    preference = getattr(selector, "effective_pref", selector)
    return Criteria(read_preference=conversions.read_preference(preference))
