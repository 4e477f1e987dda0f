"""``pymongo-resilience report``: an HTML file of what was recorded, to look at without a network.

``recorder`` writes JSON lines while something runs; ``records`` reads them, and structured log
lines, and counts; ``page`` draws.
"""

from .recorder import Recorder

__all__ = ["Recorder"]
