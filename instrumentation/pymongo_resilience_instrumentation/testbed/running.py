"""What is started and stopped, by hand or by a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Running(ABC):
    """A context manager over ``start`` and ``stop``."""

    @abstractmethod
    def start(self) -> None:
        """Begin; raises if it cannot, and leaves nothing behind then."""

    @abstractmethod
    def stop(self) -> None:
        """End; harmless when it does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
