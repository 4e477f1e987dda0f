"""What runs in place of a topology's text of a failed selection: pymongo's words, and every server.

The rules of server selection are imported where a selection has failed, or someone asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import ConnectionFailure

from pymongo_resilience.internal_errors import deliver
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.failures.classify import attribute
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Function


UNREACHABLE = "No server can be reached"
TOPOLOGY = ", Topology Description: "
"""What pymongo puts between the text of a failed selection and all servers once more."""


class _Explained(str):
    """What pymongo's log shows as it is, beside the topology; in the text of an error, which
    pymongo formats, each server is explained."""

    __slots__ = ("_formatted",)
    _formatted: str

    @classmethod
    def made(cls, text: str, formatted: str) -> _Explained:
        made = cls(text)
        made._formatted = formatted
        return made

    def __format__(self, _: str) -> str:
        return self._formatted


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


def name_servers_once(error: Exception, likely_cause: str) -> None:
    """Of a failed selection whose text explains each server: the driver's description of them all
    is left out, which the client and the driver's log have; ``likely_cause`` is the last sentence.
    """
    if error.args and isinstance(error.args[0], str):
        text = error.args[0].partition(TOPOLOGY)[0]
        error.args = (". ".join(filter(None, [text, likely_cause])), *error.args[1:])


def error_message(enabled_flag: EnabledFlag) -> Method:
    """A topology's text of a failed selection: after pymongo's own words, every server.

    It runs under the topology's lock, so an internal error is not even logged.
    """

    def around(original: Function) -> Function:
        def method(topology: object, selector: object) -> Any:
            text = original(topology, selector)
            if not enabled_flag.on:
                return text
            try:
                from .server_verdicts import diagnosis, why_not  # noqa: PLC0415 - rarely needed

                words = UNREACHABLE if _only_lists_servers(text, topology) else text
                said = _Explained.made(words, f"{words} ({why_not(topology, selector)})")
                call = calls.current()
                if call is not None:
                    call.likely_cause = str(diagnosis(topology, selector) or "")
                return said  # noqa: TRY300 - all of it is ours
            except Exception as error:  # noqa: BLE001 - the driver's text does without ours
                deliver(error)
                return text

        return method

    return Method(around)
