"""The text of a failed selection: pymongo's own words, every server, and the likely cause.

The rules of server selection are imported where a selection has failed, or someone asks.
"""

from __future__ import annotations

from typing import Any

from pymongo.errors import ConnectionFailure

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.classify import attribute

UNREACHABLE = "No server can be reached"
TOPOLOGY = ", Topology Description: "
"""What pymongo puts between the text of a failed selection and all servers once more."""
TIMEOUT = ", Timeout: "
"""What it puts before that."""


def explain(error: Exception, loop: Any) -> None:
    """Say of each server why ``loop`` did not select it, in place of the driver's description of
    them all, and the likely cause as the last sentence. The driver's log keeps its own text."""
    if not (error.args and isinstance(error.args[0], str)):
        return
    from .server_verdicts import diagnosis, why_not  # noqa: PLC0415 - rarely needed

    topology, selector = driver.selection.selecting(loop)
    words, comma, timeout = error.args[0].partition(TOPOLOGY)[0].rpartition(TIMEOUT)
    if _only_lists_servers(words, topology):
        words = UNREACHABLE
    text = f"{words} ({why_not(topology, selector)}){comma}{timeout}"
    cause = diagnosis(topology, selector)
    error.args = (text if cause is None else f"{text}. {cause}", *error.args[1:])


def _only_lists_servers(text: str, topology: Any) -> bool:
    """Whether pymongo's words are the errors of servers that cannot be reached: ours have those."""
    found = topology.description.server_descriptions().values()
    errors = [each.error for each in found if each.error is not None]
    if not all(
        isinstance(each, ConnectionFailure) and not attribute(each, "details") for each in errors
    ):
        return False
    for each in sorted(map(str, errors), key=len, reverse=True):
        text = text.replace(each, "")
    return bool(errors) and not text.strip(",")
