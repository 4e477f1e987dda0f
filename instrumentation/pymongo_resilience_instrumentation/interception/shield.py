"""Where a fault of our own ends: logged, and the driver goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience.faults import from_outside, logger

if TYPE_CHECKING:
    from types import TracebackType


class shielded:  # noqa: N801 - as contextlib's own
    """A block of our code that must not fail; ``what`` says where, in the log. What strikes from
    outside is raised: a signal handler's exception, say."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or from_outside(error):
            return False
        logger.error(
            "internal error in pymongo-resilience %s", self._what, exc_info=error, stacklevel=2
        )
        return True
