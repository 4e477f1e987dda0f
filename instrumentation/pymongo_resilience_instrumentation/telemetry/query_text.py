"""The text of a command for spans and the log: its shape without any value, or the whole command.

Only this module decides what a shape may contain. Everything in it is a constant of this module,
except for two kinds of names: that of the collection, and those of top-level fields if they look
like names. Anything nested inside a field counts as a value, because a document may be a map whose
keys are data (``{"votes.alice": 1}``).

Source: OpenTelemetry's semantic conventions, "Sanitization of db.query.text".
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bson import json_util

from . import semconv

LEFT_OUT = frozenset({"lsid", "$db", "$clusterTime", "signature"})
HIDDEN = '"?"'
HIDDEN_FIELD = '"?": "?"'
"""Stands for all fields of a document that are not shown."""

MAX_TEXT = 1024
"""Characters of a shape."""
MAX_FIELDS = 64
"""Fields that are shown of a whole command."""
MAX_ITEMS = 8
"""Elements that are shown of a list."""
MAX_DEPTH = 8
MAX_PATH = 120
"""Characters of a field's path. A longer one is not examined."""
MAX_CACHED = 16, 200
"""Fields of a document whose shape is cached, and characters of their names together. Names may be
data, so the cache must not keep long ones.
"""
_NAME = re.compile(r"(?=.{1,40}\Z)[^\W\d]+(?:\d{1,3}[^\W\d]*)?")
"""What a name looks like: letters and underscores, and at most one group of up to three digits.

Numbers, dates, e-mail addresses, identifiers, hashes, and tokens do not match.
"""

_BRANCHES = frozenset({"$and", "$or", "$nor"})
_CONDITIONS = frozenset({
    "$all", "$bitsAllClear", "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet", "$elemMatch", "$eq",
    "$exists", "$geoIntersects", "$geoWithin", "$gt", "$gte", "$in", "$lt", "$lte", "$maxDistance",
    "$minDistance", "$mod", "$ne", "$near", "$nearSphere", "$nin", "$not", "$options", "$regex",
    "$size", "$type",
})  # fmt: skip
_OF_FILTERS = frozenset({"$comment", "$expr", "$jsonSchema", "$sampleRate", "$text", "$where"})
_CHANGES = frozenset({
    "$addToSet", "$bit", "$currentDate", "$inc", "$max", "$min", "$mul", "$pop", "$pull",
    "$pullAll", "$push", "$rename", "$set", "$setOnInsert", "$unset",
})  # fmt: skip
_NAMING = frozenset({"$addFields", "$group", "$project", "$set"})
"""Stages whose keys are names of fields."""
_STAGES = _NAMING | {
    "$bucket", "$bucketAuto", "$changeStream", "$collStats", "$count", "$currentOp", "$densify",
    "$documents", "$facet", "$fill", "$geoNear", "$graphLookup", "$indexStats", "$limit",
    "$listSearchIndexes", "$lookup", "$match", "$merge", "$out", "$rankFusion", "$redact",
    "$replaceRoot", "$replaceWith", "$sample", "$search", "$searchMeta", "$setWindowFields",
    "$skip", "$sort", "$sortByCount", "$unionWith", "$unset", "$unwind", "$vectorSearch",
}  # fmt: skip
_OPERATORS = {
    name: name for name in (*_BRANCHES, *_CONDITIONS, *_OF_FILTERS, *_CHANGES, *_STAGES, "$natural")
}
"""Every operator that may be shown. Another one may be the key of a document that is a value."""
_DIRECTIONS: dict[object, str] = {1: "1", -1: "-1"}

_COMMANDS = frozenset({
    "aggregate", "bulkWrite", "count", "createIndexes", "delete", "distinct", "find",
    "findAndModify", "findandmodify", "insert", "update",
})  # fmt: skip
"""Commands that have a shape. Names in another one may be confidential."""


def shape_of(command: Mapping[str, Any]) -> str | None:
    """Return the shape of a command, or None if it has none.

    It has at most ``MAX_TEXT`` characters. Most of a long command is not examined.
    """
    # pymongo replaces a command with credentials by an empty document. Of other mappings, such as
    # raw BSON, nothing is read, because that may be slow or run code of the application.
    if not command or not isinstance(command, dict):
        return None
    try:
        keys = iter(command)
        name = next(keys)
        if name not in _COMMANDS:
            return None
        target = command[name]
        parts, shape = [_beginning(name, target if type(target) is str else None)], _Shape()
        for key in keys:
            # Most arguments are not shown.
            if key in _ARGUMENTS:
                write = _ARGUMENTS[key]
                text = write if isinstance(write, str) else f'"{key}": {write(shape, command[key])}'
                parts.append(text)
    except (KeyError, RuntimeError, TypeError):
        # Another thread of the application is changing the filter, or a key is not text.
        return None
    return f"{{{', '.join(parts)}}}"[:MAX_TEXT]


class _Shape:
    """The shape of one command while it is written. Belongs to one thread or task."""

    _depth, _left = 0, MAX_FIELDS

    def _fields(self, document: Any, write: Callable[[Any, Any], str]) -> str:
        """Return a document whose fields are written by ``write``. Equal ones are shown once."""
        if not isinstance(document, dict) or self._depth == MAX_DEPTH:
            return HIDDEN
        self._depth += 1
        shown: dict[str, None] = {}
        for key, value in document.items():
            self._left -= 1
            if self._left < 0:
                shown[HIDDEN_FIELD] = None
                break
            shown[write(key, value)] = None
        self._depth -= 1
        return f"{{{', '.join(shown)}}}"

    def _list(self, values: Any, write: Callable[[Any], str], *, once: bool = True) -> str:
        """Return a list whose elements are written by ``write``."""
        if not isinstance(values, list | tuple):
            return HIDDEN
        shown = [write(each) for each in values[:MAX_ITEMS]]
        if len(values) > MAX_ITEMS:
            shown.append(HIDDEN)
        return f"[{', '.join(dict.fromkeys(shown) if once else shown)}]"

    def filter(self, document: Any) -> str:
        if isinstance(document, dict):
            for value in document.values():
                if isinstance(value, _NESTED):
                    break
            else:
                return self.names(document)
        return self._fields(document, self._condition)

    def _condition(self, key: Any, value: Any) -> str:
        if key in _BRANCHES:
            return f'"{key}": {self._list(value, self.filter)}'
        if isinstance(value, dict):
            return f'"{_name(key)}": {self._operators(value)}'
        return _without_value(key, value)

    def _operators(self, document: dict[Any, Any]) -> str:
        """Return the operators that a field is compared with. Another document is a value."""
        if next(iter(document), None) not in _CONDITIONS:
            return HIDDEN
        return self._fields(document, self._operator)

    def _operator(self, key: Any, value: Any) -> str:
        if key not in _CONDITIONS:
            return HIDDEN_FIELD
        if key == "$not" and isinstance(value, dict):
            return f'"$not": {self._operators(value)}'
        return _without_value(key, value)

    def update(self, update: Any) -> str:
        if not isinstance(update, dict):
            return self.pipeline(update)
        changes: list[str] = []
        for key, value in update.items():
            if key in _CHANGES:
                changes.append(f'"{key}": {self.names(value)}')
        # An update without operators is a whole document.
        return f"{{{', '.join(changes)}}}" if changes else HIDDEN

    def pipeline(self, stages: Any) -> str:
        return self._list(stages, self._stage, once=False)

    def _stage(self, stage: Any) -> str:
        return self._fields(stage, self._work)

    def _work(self, key: Any, value: Any) -> str:
        if key not in _STAGES:
            return HIDDEN_FIELD
        if key == "$match":
            shown = self.filter(value)
        elif key == "$sort":
            shown = self.directions(value)
        elif key in _NAMING:
            shown = self.names(value)
        elif key == "$facet":
            shown = self._fields(value, self._facet)
        elif key in {"$lookup", "$unionWith"} and isinstance(value, dict) and "pipeline" in value:
            shown = f'{{"pipeline": {self.pipeline(value["pipeline"])}}}'
        else:
            shown = HIDDEN
        return f'"{key}": {shown}'

    def _facet(self, key: Any, value: Any) -> str:
        return f'"{_name(key)}": {self.pipeline(value)}'

    def names(self, document: Any) -> str:
        """Return a document without its values."""
        fields, characters = MAX_CACHED
        if isinstance(document, dict) and len(document) <= fields <= self._left:
            keys = tuple(document)
            if len("".join(keys)) <= characters:
                self._left -= len(keys)
                return _of_keys(keys)
        return self._fields(document, _without_value)

    def directions(self, document: Any) -> str:
        return self._fields(document, _with_direction)

    def name(self, name: Any) -> str:
        return f'"{_name(name)}"'

    def statements(self, statements: Any) -> str:
        """Return the shapes of the parts of a bulk write. Most have the same one."""
        if not isinstance(statements, list | tuple):
            return HIDDEN
        shown: dict[str, None] = {}
        # The same steps as in ``_list`` and ``shape_of``, written out. Sharing their code would add
        # four calls to each update with an SDK, which test_crossings does not allow.
        for statement in statements[:MAX_ITEMS]:
            parts: list[str] = []
            for key, value in statement.items() if isinstance(statement, dict) else ():
                if (write := _STATEMENT.get(key)) is not None:
                    parts.append(
                        write if isinstance(write, str) else f'"{key}": {write(self, value)}'
                    )
            shown[f"{{{', '.join(parts)}}}"] = None
        if len(statements) > MAX_ITEMS:
            shown[HIDDEN] = None
        return f"[{', '.join(shown)}]"


_Write = Callable[[_Shape, Any], str]
_WITHOUT_VALUE = {
    name: f'"{name}": "?"'
    for name in (
        "arrayFilters", "collation", "comment", "delete", "document", "documents", "insert", "let",
        "limit", "max", "min", "skip", "update",
    )
}  # fmt: skip
"""The texts for the arguments of which only the name is shown."""
_ARGUMENTS: dict[object, _Write | str] = _WITHOUT_VALUE | {
    "deletes": _Shape.statements,
    "fields": _Shape.names,
    "filter": _Shape.filter,
    "hint": _Shape.directions,
    "indexes": _Shape.statements,
    "key": _Shape.name,
    "ops": _Shape.statements,
    "pipeline": _Shape.pipeline,
    "projection": _Shape.names,
    "query": _Shape.filter,
    "sort": _Shape.directions,
    "update": _Shape.update,
    "updates": _Shape.statements,
}
"""What is shown of each argument: a text, or a function that writes the shape of its value."""
_STATEMENT: dict[object, _Write | str] = _WITHOUT_VALUE | {
    "filter": _Shape.filter,
    "hint": _Shape.directions,
    "key": _Shape.directions,
    "partialFilterExpression": _Shape.filter,
    "q": _Shape.filter,
    "sort": _Shape.directions,
    "u": _Shape.update,
    "updateMods": _Shape.update,
}
"""The same for one part of a bulk write, and for one index that is created."""


_NESTED = (dict, list, tuple)


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _beginning(name: str, collection: str | None) -> str:
    return f'"{name}": {HIDDEN if collection is None else json.dumps(collection)}'


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _of_keys(keys: tuple[Any, ...]) -> str:
    """Return a document with these keys, without its values. Cached, because most documents of a
    program have one of a few shapes.
    """
    return f"{{{', '.join(dict.fromkeys(_without_value(key, None) for key in keys))}}}"


def _without_value(key: Any, _value: Any) -> str:
    return f'"{_name(key)}": "?"'


def _with_direction(key: Any, value: Any) -> str:
    """Return the field of an index or a sort order. Both directions are shown, because they decide
    which index the server uses.
    """
    direction = _DIRECTIONS.get(value, HIDDEN) if isinstance(value, int | float) else HIDDEN
    return f'"{_name(key)}": {direction}'


def _name(key: Any) -> str:
    """Return what may be shown of a key."""
    return _shown(key) if isinstance(key, str) and len(key) <= MAX_PATH else "?"


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _shown(key: str) -> str:
    """Return an operator, or the first name of a field's path. Cached, because a match takes longer
    than everything else.
    """
    if (operator := _OPERATORS.get(key)) is not None:
        return operator
    first, dot, _ = key.partition(".")
    if _NAME.fullmatch(first) is None:
        return "?"
    return f"{first}.?" if dot else first


def text_of(command: Mapping[str, Any], length: int) -> str:
    """Return a command as relaxed extended JSON with at most ``length`` characters.

    Source: OpenTelemetry (MongoDB driver specifications), "db.query.text".
    """
    shown = {name: value for name, value in command.items() if name not in LEFT_OUT}
    text = ""
    # Convert piece by piece and stop early, because a command may be 48 MB long.
    for piece in _extended_json(shown):
        text += piece
        if len(text) >= length:
            break
    return text[:length]


def _extended_json(value: Any) -> Iterator[str]:
    """Yield a value as pieces of relaxed extended JSON."""
    if isinstance(value, Mapping):
        yield "{"
        for index, (name, each) in enumerate(value.items()):
            yield f"{', ' if index else ''}{json.dumps(str(name))}: "
            yield from _extended_json(each)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, each in enumerate(value):
            yield ", " if index else ""
            yield from _extended_json(each)
        yield "]"
    else:
        try:
            yield json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS)
        except Exception:  # noqa: BLE001 - a type of the application, which only its codec encodes
            yield f'"<{type(value).__name__}>"'
