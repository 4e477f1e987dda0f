"""Why a server is, or is not, one that an operation may go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.server_choice.eligibility import Criteria, Mode
from pymongo_resilience.server_choice.explanation import explain
from pymongo_resilience.server_choice.server_description import ServerType
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text

from . import conversions
from .breaker_registry import ALONE
from .diagnosis import Found, diagnose
from .selector import applications_own

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience.breakers import Snapshot
    from pymongo_resilience.server_choice.eligibility import Servers
    from pymongo_resilience.server_choice.explanation import ServerVerdict
    from pymongo_resilience_instrumentation.addresses import Address

    from .diagnosis import Diagnosis


def explain_selection(
    client: Any, read_preference: Any, breakers: Mapping[Address, Snapshot], *, writes: bool
) -> tuple[ServerVerdict, ...]:
    """As :func:`pymongo_resilience.explain_selection`, of what is a client; ``breakers``: by
    server, of those that an attempt was meant for."""
    described = client.topology_description
    described.check_compatible()
    asked = client.read_preference if read_preference is None else read_preference
    if not hasattr(asked, "mongos_mode"):
        raise TypeError(f"an object of type {type(asked).__name__} is no read preference")
    own = applications_own(client.options.server_selector)
    if described.topology_type_name in ALONE:
        own = None  # the driver calls no selector there
    given = described.server_descriptions()

    def selector(servers: Servers) -> Servers:
        by_text = {address_text(address): each for address, each in given.items()}
        left = own([by_text[each.address] for each in servers])
        kept = {address_text(each.address) for each in left}
        return [each for each in servers if each.address in kept]

    criteria = Criteria(
        write=writes,
        read_preference=conversions.read_preference(asked),
        server_selector=None if own is None else selector,
        open_breakers=_open_breakers(breakers),
        local_threshold=client.options.local_threshold_ms / 1000,
    )
    return explain(conversions.topology(described, driver.monitors.topology_of(client)), criteria)


def _open_breakers(breakers: Mapping[Address, Snapshot]) -> dict[str, float]:
    return {
        address_text(address): breaker.next_probe_in
        for address, breaker in breakers.items()
        if breaker.next_probe_in > 0
    }


def why_not(topology: Any, selector: Any) -> str:
    """One text for all servers of a topology, none of which ``selector`` has let through."""
    criteria = _criteria(selector)
    if applications_own(driver.selection.selector_of(topology)) is not None:
        # It is not asked once more. What the rules have left is what it has refused.
        criteria = criteria._replace(server_selector=lambda _: ())
    verdicts = explain(conversions.topology(topology.description, topology), criteria)
    return "; ".join(map(str, verdicts)) or "no server is known"


def diagnosis(topology: Any, selector: Any) -> Diagnosis | None:
    """The likely cause of a failed selection; None where nothing is known."""
    described = topology.description
    criteria = _criteria(selector)
    found = [
        Found(
            address_text(each.address),
            conversions.symptom(each, topology),
            is_primary=each.server_type_name == ServerType.PRIMARY.value,
            is_member=each.is_server_type_known,
        )
        for each in conversions.servers_of(described)
    ]
    return (
        None
        if criteria.bound_elsewhere
        else diagnose(
            found,
            seeds=[address_text(each) for each in driver.waits.seeds(topology)],
            replica_set=described.topology_type_name.startswith("ReplicaSet"),
            wants_primary=criteria.mode is Mode.PRIMARY,
        )
    )


def _criteria(selector: object) -> Criteria:
    if driver.selection.selects_for_writes(selector):
        return Criteria(write=True)
    if driver.selection.is_no_selector(selector):
        return Criteria(bound_elsewhere=True)
    preference = getattr(selector, "effective_pref", selector)
    return Criteria(read_preference=conversions.read_preference(preference))
