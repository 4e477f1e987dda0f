"""Drills: named scenarios that operators practice. Each takes at most about ten seconds.

For ``pymongo-resilience testbed --drill NAME``, for the control of a running test bed, and for the
fixture ``mongo_faults``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .command_faults import RateLimit
from .deployment import Deployment, Target
from .fault import refused
from .member_faults import BlackHole, Election, Restart, RollingRestart
from .scenario import Scenario, Strike, strike

DRILLS: Final[Mapping[str, Scenario]] = {
    "rolling-maintenance": Scenario().after(0.2, RollingRestart, downtime=1.0, pause=0.5, gap=0.5),
    # The region of the primary is lost: the other members elect a primary, and what was sent to the
    # lost one is never answered.
    "regional-black-hole": Scenario()
    .after(0.2, BlackHole, 4.0, on="primary")
    .after(1.0, Election, gap=1.0),
    "overload-pulse": Scenario(
        [(pause, strike(RateLimit, 20, seconds=2.0, on="primary")) for pause in (0.2, 3.0)]
    ),
    "flapping-member": Scenario(
        [(pause, strike(Restart, downtime=0.3, gap=0.2, on=2)) for pause in (0.2, 1.0, 1.0, 1.0)]
    ),
}
"""Written for a replica set of three members. ``drill`` adapts them to other deployments."""


def named(name: str) -> Scenario:
    """Return the drill with this name.

    Raises:
        ValueError: There is no such drill.
    """
    scenario = DRILLS.get(name) if isinstance(name, str) else None
    if scenario is None:
        raise refused("drill", name, f"one of {', '.join(DRILLS)}")
    return scenario


def drill(name: str, deployment: Deployment) -> Scenario:
    """Return the drill with this name, adapted to a deployment."""
    scenario = named(name)
    steps = [(pause, fitted(each, deployment)) for pause, each in scenario.steps]
    return Scenario([each for each in steps if deployment.elects or each[1].kind is not Election])


def fitted(struck: Strike, deployment: Deployment) -> Strike:
    """Replace roles in a scenario by members that exist in a deployment other than a replica set of
    three.
    """
    return replace(struck, on=_fitting(struck.on, deployment))


def _fitting(on: Target, deployment: Deployment) -> Target:
    count = len(deployment.members)
    if isinstance(on, int):
        return on % count
    if on == "all" or on in deployment.roles:
        return on
    return "all" if on == "primary" else count - 1
