"""The unified test format's rules for when a value is the expected one.

Whatever the rules here do not cover raises :class:`NotUnderstood`, so that a gap of this runner
never looks like a shortcoming of the server or of pymongo.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from bson.errors import BSONError
from pymongo.errors import ClientBulkWriteException, NotPrimaryError, OperationFailure, PyMongoError
from support.origin_text import text_without_origin

ERRORS: Final = (PyMongoError, BSONError)
"""What an operation may raise. Anything else is a mistake, and satisfies no ``expectError``."""


class CaseFailed(AssertionError):  # noqa: N818 - says what it is
    """Something else happened than the case expects."""


class NotUnderstood(Exception):  # noqa: N818 - says what it is
    """The case asks for something that this runner does not know."""


def only_known(keys: Collection[str], known: Collection[str], where: str) -> None:
    """Raise :class:`NotUnderstood` if there is a key that the runner would ignore."""
    unknown = sorted(set(keys) - set(known))
    if unknown:
        raise NotUnderstood(f"{where}: {', '.join(unknown)}")


def match(expected: Any, actual: Any, where: str = "", *, root: bool = True) -> None:
    """Raise :class:`CaseFailed` unless the actual value is the expected one.

    A document at the root, or in an array at the root, may have more fields than expected; a
    document further inside may not.
    """
    if isinstance(expected, Mapping):
        operator = next((key for key in expected if key.startswith("$$")), None)
        if operator is not None:
            _apply(operator, expected[operator], actual, where)
        else:
            _match_document(expected, actual, where, root=root)
    elif isinstance(expected, list):
        _match_array(expected, actual, where, root=root)
    elif not _equal(expected, actual):
        raise CaseFailed(f"{where}: expected {expected!r}, got {actual!r}")


def _match_document(expected: Mapping[str, Any], actual: Any, where: str, *, root: bool) -> None:
    if not isinstance(actual, Mapping):
        raise CaseFailed(f"{where}: expected a document, got {actual!r}")
    for key, value in expected.items():
        if key not in actual:
            raise CaseFailed(f"{where}.{key}: missing in {actual!r}")
        match(value, actual[key], f"{where}.{key}", root=False)
    more = [key for key in actual if key not in expected]
    if more and not root:
        raise CaseFailed(f"{where}: not expected: {', '.join(more)}")


def _match_array(expected: list[Any], actual: Any, where: str, *, root: bool) -> None:
    if not isinstance(actual, list):
        raise CaseFailed(f"{where}: expected an array, got {actual!r}")
    if len(expected) != len(actual):
        raise CaseFailed(f"{where}: expected {len(expected)} elements, got {actual!r}")
    for index, (each, found) in enumerate(zip(expected, actual, strict=True)):
        match(each, found, f"{where}[{index}]", root=root and not isinstance(each, list))


def _equal(expected: Any, actual: Any) -> bool:
    """Numbers of different types may be equal; a boolean is no number."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    return bool(expected == actual)


def _apply(operator: str, operand: Any, actual: Any, where: str) -> None:
    if operator != "$$matchesHexBytes":
        raise NotUnderstood(f"{where}: {operator}")
    if actual != bytes.fromhex(operand):
        raise CaseFailed(f"{where}: expected the bytes {operand}, got {actual!r}")


def match_error(expected: Mapping[str, Any], error: Exception) -> None:
    """Raise :class:`CaseFailed` unless the error is as ``expectError`` says."""
    only_known(expected, _ERROR_RULES, "expectError")
    for name, value in expected.items():
        if not _ERROR_RULES[name](value, error):
            raise CaseFailed(f"expectError.{name}: {value!r}, got {described(error)}")


def described(error: Exception) -> str:
    """The class and the text of an error, as plain pymongo has it."""
    return f"{type(error).__name__}: {text_without_origin(error)}"


def _is_client_error(error: Exception) -> bool:
    """Whether it came about without a reply of the server; a network error is one."""
    cause = error.error if isinstance(error, ClientBulkWriteException) and error.error else error
    return not isinstance(cause, OperationFailure | NotPrimaryError)


def _code(error: Exception) -> Any:
    return getattr(error, "code", None) or _details(error).get("code")


def _details(error: Exception) -> Mapping[str, Any]:
    return getattr(error, "details", None) or {}


def _labelled(error: Exception, labels: Collection[str]) -> list[bool]:
    # Asked of the error: the driver adds labels that no reply had.
    return [isinstance(error, PyMongoError) and error.has_error_label(each) for each in labels]


_ERROR_RULES: Final[dict[str, Callable[[Any, Exception], bool]]] = {
    "isError": lambda expected, error: expected is True,
    "isClientError": lambda expected, error: expected == _is_client_error(error),
    "errorCode": lambda expected, error: expected == _code(error),
    "errorCodeName": lambda expected, error: expected == _details(error).get("codeName"),
    "errorContains": lambda expected, error: expected.lower() in str(error).lower(),
    "errorLabelsContain": lambda expected, error: all(_labelled(error, expected)),
    "errorLabelsOmit": lambda expected, error: not any(_labelled(error, expected)),
}
