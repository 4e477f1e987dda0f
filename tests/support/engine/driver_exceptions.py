"""Hypothesis strategies: any exception of the driver, built in any way, and some of nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymongo.errors
from hypothesis import strategies as st
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    EncryptionError,
    OperationFailure,
    PyMongoError,
)
from support.hostile_input import (
    bson_values,
    codes,
    error_documents,
    error_texts,
    inner_errors,
    labels,
    likely_errors,
    write_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class NastyError(Exception):
    """What its own author did not expect to be asked."""


def _nasty(*_: object) -> Any:
    raise NastyError


def _subclasses(cls: type[PyMongoError]) -> list[type[PyMongoError]]:
    return [cls, *(each for sub in cls.__subclasses__() for each in _subclasses(sub))]


CLASSES = sorted(
    {cls for cls in _subclasses(PyMongoError) if cls.__module__ == pymongo.errors.__name__},
    key=lambda cls: cls.__name__,
)


def made(make: Callable[[], Exception]) -> Exception:
    """The exception, or what the driver's own constructor raises in its place."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - whatever it is, the application would see it
        return error


huge = st.integers(-(10**400), 10**400)
surrogates = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)
anything = bson_values | huge | surrogates | st.builds(object) | st.just(NastyError())
hostile_fields = st.dictionaries(
    st.sampled_from(["code", "codeName", "errorLabels", "baseBackoffMS", "errmsg", "error"]),
    anything,
    max_size=4,
)
results = st.fixed_dictionaries(
    {},
    optional={
        "writeErrors": write_errors,
        "writeConcernErrors": write_errors | st.lists(inner_errors, min_size=1),
        "error": st.builds(NastyError) | st.builds(AutoReconnect) | anything,
        "anySuccessful": anything,
    },
)
details = error_documents | likely_errors | results | hostile_fields | anything


def _of_class(cls: type[PyMongoError], text: Any, code: Any, document: Any) -> Exception:
    """As the driver builds it, as near as its constructor allows."""
    if issubclass(cls, BulkWriteError):
        return cls(document)
    if issubclass(cls, ClientBulkWriteException):
        return cls(document, True)
    if issubclass(cls, OperationFailure):
        return cls(text, code, document)
    if issubclass(cls, AutoReconnect):
        return cls(text, document)
    if issubclass(cls, EncryptionError):
        return cls(document)
    return cls(text)


built = st.builds(
    lambda *given: made(lambda: _of_class(*given)),
    st.sampled_from(CLASSES),
    error_texts | anything,
    codes | anything,
    details,
)


def _filled(cls: type[PyMongoError], fields: dict[str, Any]) -> Exception:
    """Whatever the constructor would have refused, and what a subclass may have made of it."""
    error = cls.__new__(cls)
    error.args = (fields["args"],)
    error.__dict__.update(fields)
    return error


filled = st.builds(
    _filled,
    st.sampled_from(CLASSES),
    st.fixed_dictionaries(
        {"args": anything},
        optional={
            "_error_labels": st.sets(st.text() | st.integers()) | labels | anything,
            "_OperationFailure__code": codes | anything,
            "_OperationFailure__details": details,
            "_EncryptionError__cause": st.builds(BulkWriteError, results),
            "details": details,
            "errors": details,
            "code": codes | anything,
        },
    ),
)


def _with_nasty(cls: type[PyMongoError], nasty: set[str]) -> Exception:
    members = {name: property(_nasty) for name in nasty if not name.endswith("()")}
    methods = {name[:-2]: _nasty for name in nasty if name.endswith("()")}
    child = type("NastyChild", (cls,), {**members, **methods})
    error: Exception = child.__new__(child)
    return error


nasty_children = st.builds(
    _with_nasty,
    st.sampled_from(CLASSES),
    st.sets(
        st.sampled_from(
            [
                *("code", "details", "timeout", "error", "_error_labels", "_message"),
                *("has_error_label()", "__str__()", "__repr__()", "__eq__()", "__hash__()"),
            ]
        ),
        min_size=1,
    ),
)


def made_of_itself() -> Exception:
    error = EncryptionError(ValueError())
    error.__dict__["_EncryptionError__cause"] = error
    return error


others = st.sampled_from([ValueError, KeyError, RecursionError, MemoryError, OSError]).map(
    lambda cls: cls(104)
)
exceptions = st.one_of(
    built,
    filled,
    nasty_children,
    others,
    st.builds(made_of_itself),
)
