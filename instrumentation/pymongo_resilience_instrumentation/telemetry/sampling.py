"""Whether a tracer records at all, and whether it does below a span that it did not record.

Only what is certain counts: an SDK's own samplers, asked what they are by the description that
OpenTelemetry's specification asks of them ("Sampler", "GetDescription").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SDK = "opentelemetry.sdk.trace.sampling"
OFF = "AlwaysOffSampler"


class Sampling:
    """Of one tracer. Thread- and task-safe: what two find out at once is the same."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.sampler: Any = None
        """The one that was looked at last."""
        self.never = False
        """Whether it records no span at all."""
        self.never_below = False

    def never_below_undrawn(self) -> bool:
        """Whether it records no span whose parent, of this process, it did not record."""
        if getattr(self._tracer, "sampler", None) is not self.sampler:
            self.look()
        return self.never_below

    def look(self) -> None:
        # Read anew: the application may have replaced it.
        sampler = getattr(self._tracer, "sampler", None)
        described = ""
        if sampler is not None and type(sampler).__module__ == SDK:
            described = sampler.get_description()
        self.never = described == OFF
        self.never_below = self.never or (
            described.startswith("ParentBased{")
            and described.endswith(f"localParentNotSampled:{OFF}}}")
        )
        self.sampler = sampler
