"""The types of option values: which values are allowed, and the errors for others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from pymongo_resilience.internal_errors import logger

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
TimeoutMode = Literal["cursor_lifetime", "iteration"]
PREFIX = "PYMONGO_RESILIENCE_"
MAX_MS = 2_147_483_647
"""Milliseconds. The server rejects a larger maxTimeMS, which is a signed 32-bit integer."""


@dataclass(frozen=True, slots=True)
class OptionType:
    """A type of value: how text is parsed, which values are allowed, and the error for others."""

    allowed: str
    legal: Callable[[object], bool]
    parse: Callable[[str], Any]
    """Convert the text of a variable. Raises ValueError or KeyError if that is impossible."""
    confidential: bool = False
    """Errors show only the type of the value."""

    def read(self, text: str) -> Any:
        """Return the value of a variable's text, or None if it is not allowed."""
        # A text that cannot be parsed is not allowed, so the caller reports both cases alike.
        with suppress(ValueError, KeyError):
            value = self.parse(text.strip())
            return value if self.legal(value) else None

    def problem(self, name: str, value: object) -> str:
        """Return the error text for a value that is not allowed."""
        text = shown(value)
        # A connection string contains a password, so its value must not appear in an error.
        if self.confidential or "://" in text:
            return wrong_type(name, value, self.allowed)
        return f"{name}={text}: expected {self.allowed}"


def problems_in(target: DataclassInstance) -> list[str]:
    """Return the errors of those dataclass fields whose metadata contains a type."""
    problems: list[str] = []
    for entry in fields(target):
        kind, value = entry.metadata.get("kind"), getattr(target, entry.name)
        # Defaults need no check, and None is the default of several options whose type excludes it.
        if kind is not None and value is not entry.default and not kind.legal(value):
            problems.append(kind.problem(entry.name, value))
    return problems


_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
BOOLEAN = OptionType(
    "true or false",
    lambda value: isinstance(value, bool),
    lambda text: _BOOLEANS[text.lower()],
)


def _within(low: float, high: float, value: object) -> bool:
    # bool is a subclass of int, but a boolean is not a number.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def integer(low: int, high: int) -> OptionType:
    allowed = f"an integer from {low} to {high}"
    return OptionType(
        allowed, lambda value: isinstance(value, int) and _within(low, high, value), int
    )


def number(low: float, high: float) -> OptionType:
    allowed = f"a number from {low:g} to {high:g}"
    return OptionType(allowed, lambda value: _within(low, high, value), float)


def _not_as_text(text: str) -> Any:
    """Raise ValueError: the parser of options that only code or a file can set."""
    raise ValueError(text)


MAPPING = OptionType(
    "a mapping", lambda value: isinstance(value, Mapping), _not_as_text, confidential=True
)
ATTEMPT_TIMEOUT_MS = integer(1, MAX_MS)
TIMEOUT_MS = integer(0, MAX_MS)
"""0 disables the timeout."""
HEDGE = OptionType(
    f"true, false or an integer from 1 to {MAX_MS}",
    lambda value: isinstance(value, bool) or ATTEMPT_TIMEOUT_MS.legal(value),
    lambda text: _BOOLEANS[text.lower()] if text.lower() in _BOOLEANS else int(text),
)


def one_of(*names: str, or_boolean: bool = False) -> OptionType:
    """Return the type of a name in lowercase. A variable may contain it in uppercase."""
    allowed = "one of " + ", ".join(names)
    if not or_boolean:
        return OptionType(allowed, lambda value: _is_one(value, names), str.lower)
    return OptionType(
        f"{', '.join(names)} or {BOOLEAN.allowed}",
        lambda value: BOOLEAN.legal(value) or _is_one(value, names),
        lambda text: _BOOLEANS.get(text.lower(), text.lower()),
    )


IF_POSSIBLE: Final = "if_possible"
Resumable = bool | Literal["if_possible"]
RESUMABLE = one_of(IF_POSSIBLE, or_boolean=True)
"""Whether finds are resumed: none, all (others are refused), or those that can be."""


def several_of(*names: str) -> OptionType:
    """Return the type of a tuple of names. In a variable, they are separated by commas."""
    return OptionType(
        "any of " + ", ".join(names),
        lambda value: (
            isinstance(value, tuple) and _are_all(cast("tuple[object, ...]", value), names)
        ),
        _names_in,
    )


def _names_in(text: str) -> tuple[str, ...]:
    names = (name.strip().lower() for name in text.split(","))
    return tuple(name for name in names if name)


def _are_all(values: tuple[object, ...], names: Collection[str]) -> bool:
    return all(_is_one(value, names) for value in values)


def _is_one(value: object, names: Collection[str]) -> bool:
    return isinstance(value, str) and value in names


CURSOR_LIFETIME = "cursor_lifetime"
ITERATION = "iteration"
TIMEOUT_MODE = one_of(CURSOR_LIFETIME, ITERATION)
"""Whether a timeout covers a cursor's whole life or each batch (Client Side Operations Timeout,
"timeoutMode").
"""


def wrong_type(name: str, value: object, expected: str) -> str:
    """Return an error text that shows only the type of a value, which may be confidential."""
    return f"{name} is of type {type(value).__name__}: expected {expected}"


def shown(value: object) -> str:
    """Return the repr of a value, or a placeholder if it cannot be printed."""
    # Python refuses to print numbers with thousands of digits, which a TOML file can contain in
    # hexadecimal. And a keyword argument may be any object.
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a keyword may be anything, with a __repr__ of its own
        return f"<{type(value).__name__} that cannot be printed>"


def as_text(value: object) -> str:
    """Return the value of an option as text for users."""
    if value is None or value == ():
        return "unset"
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to ``name``, or an empty string if none is."""
    # Compare without the prefix that all variables share, which would make any two of them similar.
    # Ignore case, because a key of the file may be written like a variable.
    candidates = {candidate.removeprefix(PREFIX).lower(): candidate for candidate in known}
    close = get_close_matches(name.removeprefix(PREFIX).lower(), candidates, n=1)
    return candidates[close[0]] if close else ""


def warn_unknown(
    name: str, what: str, known: Iterable[str], defaults: Mapping[str, object] = {}
) -> None:
    """Log a warning about an unknown name, with the nearest known one.

    Args:
        name: The unknown name.
        what: What it is, such as "variable".
        known: All known names.
        defaults: The defaults of options, by their known names.
    """
    close = _nearest(name, known)
    hint = f"; did you mean {close}?" if close else ""
    if close in defaults:
        default = as_text(defaults[close])
        hint += f" Unless that option is set elsewhere, its default applies: {default}"
    logger.warning("unknown %s %s is ignored%s", what, name, hint)


def check_keywords(owner: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a TypeError that lists each unknown keyword, the nearest known one, and all known
    ones.
    """
    unknown: list[str] = []
    for name in names:
        if name not in known:
            close = _nearest(name, known)
            unknown.append(f"{name}; did you mean {close}?" if close else name)
    if unknown:
        raise TypeError(f"{owner} has no {', no '.join(unknown)} (it has {', '.join(known)})")


def check_field_names(cls: type[T]) -> type[T]:
    """Return the dataclass with a constructor that checks its keywords with
    ``check_keywords``.
    """
    # A dataclass itself names only the first unknown keyword, and suggests none.
    construct = cls.__init__
    known = tuple(field.name for field in fields(cls))  # type: ignore[arg-type]  # a dataclass

    @wraps(construct)
    def checked(self: T, *args: Any, **values: Any) -> None:
        check_keywords(cls.__name__, values, known)
        construct(self, *args, **values)

    cls.__init__ = checked  # type: ignore[assignment]  # the same parameters
    return cls
