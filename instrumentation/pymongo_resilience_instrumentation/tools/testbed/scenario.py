"""A scenario: which faults are injected when, and on which members; fixed, or random from a
seed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from .deployment import Deployment, Target
from .fault import Fault, Interception, call_text, not_negative, positive, refused, whole

_ROLES: Final = ("all", "primary", "secondary")


@dataclass(frozen=True)
class Strike:
    """A fault that is created when its time has come, and the members to which it then applies."""

    kind: Callable[..., Fault]
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    on: Target = "all"
    within: float | None = None
    """Seconds after which an interception that has not acted yet is removed."""

    def __str__(self) -> str:
        return f"{call_text(self.kind, self.arguments, self.options)} on {self.on}"

    def fault(self) -> Fault:
        """Return a new fault of this description. Its time starts now."""
        fault = self.kind(*self.arguments, **self.options)
        if self.within is not None and isinstance(fault, Interception):
            fault.until = time.monotonic() + self.within
        return fault


def strike(
    kind: Callable[..., Fault],
    *arguments: object,
    on: Target = "all",
    within: float | None = None,
    **options: object,
) -> Strike:
    """Return a strike, as in ``strike(CutAfter, "update", times=3, on="primary")``.

    Raises:
        ValueError: The fault does not accept these arguments.
    """
    if within is not None:
        positive("within", within)
    made = Strike(kind, arguments, options, on, within)
    is_index = isinstance(on, int) and not isinstance(on, bool) and on >= 0
    if not is_index and on not in _ROLES:
        allowed = ", ".join(repr(role) for role in _ROLES)
        raise refused("on", on, f"{allowed}, or the index of a member")
    # Create the fault once without using it, so that a wrong argument raises an error here and
    # not in the middle of the scenario.
    made.fault()
    return made


class Scenario:
    """Faults in order, each a number of seconds after the one before:

        scenario = (
            Scenario()
            .after(1.0, CutAfter, "update", times=3, on="primary")
            .after(2.0, Election, gap=12.0)
            .after(20.0, RollingRestart)
        )
        deployment.play(scenario)

    Immutable. One scenario may be played on several deployments. ``str()`` lists it line by line.
    """

    def __init__(self, steps: Sequence[tuple[float, Strike]] = ()) -> None:
        self.steps = tuple(steps)
        """Seconds since the step before, and the strike."""

    def after(
        self,
        seconds: float,
        kind: Callable[..., Fault],
        *arguments: object,
        on: Target = "all",
        within: float | None = None,
        **options: object,
    ) -> Self:
        """Return the same scenario with one more fault at its end.

        Args:
            within: Remove an interception that has not acted within this many seconds.
        """
        pause = not_negative("seconds", seconds)
        struck = strike(kind, *arguments, on=on, within=within, **options)
        return type(self)((*self.steps, (pause, struck)))

    def then(self, other: Scenario) -> Self:
        """Return this scenario, followed by another one."""
        return type(self)((*self.steps, *other.steps))

    @classmethod
    def random(
        cls,
        seed: int,
        seconds: float,
        recipes: Sequence[Callable[[random.Random], Strike]],
        *,
        every: float = 0.5,
    ) -> Self:
        """Return random faults for a number of seconds. The same seed gives the same scenario.

        Args:
            recipes: Functions that each create a random strike. They are equally likely.
            every: Seconds between two faults, on average.
        """
        if not recipes:
            raise refused(
                "recipes", recipes, "at least one recipe, for example those of fault_catalog"
            )
        positive("seconds", seconds)
        positive("every", every)
        rng = random.Random(whole("seed", seed, least=0))  # noqa: S311 (random faults, not secrets)
        steps: list[tuple[float, Strike]] = []
        elapsed = 0.0
        while (elapsed := elapsed + (pause := rng.uniform(0.5, 1.5) * every)) < seconds:
            steps.append((pause, rng.choice(recipes)(rng)))
        return cls(steps)

    async def run(self, deployment: Deployment) -> None:
        """Play the scenario, in the deployment's event loop. Raises what a fault raises."""
        begun: list[asyncio.Future[None]] = []
        for pause, each in self.steps:
            await asyncio.sleep(pause)
            fault = each.fault()
            done = await deployment.strike(fault, each.on)
            # An interception may wait for a command that never comes.
            if not isinstance(fault, Interception):
                begun.append(asyncio.wrap_future(done))
        await asyncio.gather(*begun)

    def __str__(self) -> str:
        lines: list[str] = []
        elapsed = 0.0
        for pause, each in self.steps:
            elapsed += pause
            lines.append(f"{elapsed:8.3f} s  {each}")
        return "\n".join(lines)
