"""A command as text, for ``db.query.text``: relaxed extended JSON, cut at a length.

Only what fits is turned into text, so the length of the text bounds the work and not the length of
the command. Source: OpenTelemetry (MongoDB driver specifications), "db.query.text".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bson import Binary, json_util

from pymongo_resilience.internal_errors import deliver

LEFT_OUT = frozenset({"lsid", "$db", "$clusterTime", "signature"})
RELAXED = json_util.RELAXED_JSON_OPTIONS


def text_of(command: Mapping[str, Any], length: int) -> str:
    """``length``: the most characters of it."""
    shown, _ = _shown(
        {name: value for name, value in command.items() if name not in LEFT_OUT}, length
    )
    return json.dumps(shown)[:length]


def _shown(value: Any, room: int) -> tuple[Any, int]:
    """As ``json`` writes it, as much of it as there is room for, and the room that is left.

    What is counted is never more than what is written: so whatever is left out is past the cut.
    """
    if isinstance(value, Mapping):
        document: dict[str, Any] = {}
        for name, each in value.items():
            if room <= 0:
                break
            document[str(name)], room = _shown(each, room - len(str(name)))
        return document, room
    if isinstance(value, (list, tuple)):
        array = []
        for each in value:
            if room <= 0:
                break
            shown, room = _shown(each, room - 1)
            array.append(shown)
        return array, room
    if type(value) in (str, bytes):
        value = value[: max(room, 0)]
    elif type(value) is Binary:
        value = Binary(value[: max(room, 0)], value.subtype)
    return _leaf(value), room - (len(value) if isinstance(value, str | bytes) else 1)


def _leaf(value: object) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    try:
        return json_util.default(value, RELAXED)
    except Exception as error:  # noqa: BLE001 - the application's own type: it has a codec, we have not
        deliver(error)
        return f"<{type(value).__name__}>"
