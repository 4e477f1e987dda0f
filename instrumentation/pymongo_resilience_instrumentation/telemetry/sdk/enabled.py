"""Whether one of the SDK's tracers or instruments is switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def enabled_check(of: Any) -> Callable[[], bool]:
    """What says so. Before 1.40, they always are."""
    check: Callable[[], bool] = getattr(of, "_is_enabled", _always)
    return check


def _always() -> bool:
    return True
