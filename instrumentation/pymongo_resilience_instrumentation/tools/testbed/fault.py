"""What every fault is: something that strikes members of a deployment, and counts its blows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Fault(ABC):
    """The base of all faults. An instance strikes once: make a new one for each injection."""

    def __init__(self) -> None:
        self.injected = 0
        """What a fault adds to each time it acts; read it as ``struck``."""

    @property
    def struck(self) -> int:
        """How often it has struck; may be read from any thread."""
        return self.injected

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Do the harm to members of a ``Deployment``, in its event loop, and repair it at the end.

        Cancelled when the deployment is cleared: whatever must be repaired belongs into a
        ``finally`` clause. What is done before the first ``await`` is in force when
        ``Deployment.inject`` returns, and what is raised before it, ``Deployment.inject`` raises.
        It returns when the fault has run its course.
        """


# What arguments may be: each of these returns the value, or raises a ``ValueError`` that names the
# argument, the value, and what is allowed. Booleans are no numbers here.


def number(name: str, value: float) -> float:
    """Any number but infinities and NaN."""
    if not _is_finite(value):
        raise refused(name, value, "a finite number")
    return value


def positive(name: str, value: float) -> float:
    """A finite number greater than 0: how long or how often anything can be."""
    if not _is_finite(value) or value <= 0:
        raise refused(name, value, "a finite number greater than 0")
    return value


def not_negative(name: str, value: float) -> float:
    """A finite number of at least 0."""
    if not _is_finite(value) or value < 0:
        raise refused(name, value, "a finite number of at least 0")
    return value


def whole(name: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """A whole number within bounds."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not valid or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refused(name, value, str(least) if most == least else f"a whole number {bounds}")
    return value


def refused(name: str, value: object, allowed: str) -> ValueError:
    """The error for an argument that cannot be."""
    return ValueError(f"{name} is {value!r}, but must be {allowed}")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
