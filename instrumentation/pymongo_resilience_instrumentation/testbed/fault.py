"""What every fault is: something that strikes members of a deployment, and counts its blows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.testbed.deployment import Deployment
    from pymongo_resilience_instrumentation.testbed.member import Member


class Fault(ABC):
    """The base of all faults. An instance strikes once: make a new one for each injection."""

    def __init__(self) -> None:
        self.injected = 0
        """How often it acted; may be read from any thread."""

    @abstractmethod
    async def strike(self, deployment: Deployment, targets: Sequence[Member]) -> None:
        """Do the harm, in the event loop of the deployment, and mend it when it ends.

        Cancelled when the deployment is cleared: whatever must be mended belongs into a
        ``finally`` clause. What is done before the first ``await`` is in force when
        ``Deployment.inject`` returns.
        """


def positive(name: str, value: float) -> float:
    """``value``, or ``ValueError`` when nothing can last or happen that often."""
    if not value > 0:
        raise ValueError(f"{name} is {value}, but must be greater than 0")
    return value
