"""Whether the instrumentation acts. Off outside of instrument() ... uninstrument()."""

from __future__ import annotations

active: bool = False
"""One for the process. What is still wrapped or still listening passes through while it is off."""
