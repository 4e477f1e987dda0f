"""The types of values that options and rules have: what is legal, and what to say of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pymongo_resilience.internal_errors import logger

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
TimeoutMode = Literal["cursor_lifetime", "iteration"]
PREFIX = "PYMONGO_RESILIENCE_"
MAX_MS = 2_147_483_647


@dataclass(frozen=True, slots=True)
class OptionType:
    """A type of value: how text becomes one, which values are legal, and how to say so."""

    allowed: str
    legal: Callable[[object], bool]
    parse: Callable[[str], Any]
    """From a variable's text; raises ValueError or KeyError if it is no such value."""
    confidential: bool = False
    """An error names the type of a value alone."""

    def read(self, text: str) -> Any:
        """The value that a variable's text stands for; None where that is not legal."""
        with suppress(ValueError, KeyError):
            value = self.parse(text.strip())
            return value if self.legal(value) else None

    def problem(self, name: str, value: object) -> str:
        """What is wrong with a value that is not legal."""
        text = shown(value)
        if self.confidential or "://" in text:
            return wrong_type(name, value, self.allowed)
        return f"{name}={text}: expected {self.allowed}"


def problems_in(target: DataclassInstance) -> list[str]:
    """What is wrong with those fields of a dataclass that have a type in their metadata."""
    problems: list[str] = []
    for each in fields(target):
        kind, value = each.metadata.get("kind"), getattr(target, each.name)
        if kind is not None and value is not each.default and not kind.legal(value):
            problems.append(kind.problem(each.name, value))
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
    """The parser of what only code or a file can set."""
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
    """A name in small letters; a variable may have it in capitals."""
    allowed = "one of " + ", ".join(names)
    if not or_boolean:
        return OptionType(allowed, lambda value: _is_one(value, names), str.lower)
    return OptionType(
        f"{', '.join(names)} or {BOOLEAN.allowed}",
        lambda value: BOOLEAN.legal(value) or _is_one(value, names),
        lambda text: _BOOLEANS.get(text.lower(), text.lower()),
    )


def several_of(*names: str) -> OptionType:
    """A tuple of names; a variable has them with commas in between."""
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
    return all(_is_one(each, names) for each in values)


def _is_one(value: object, names: Collection[str]) -> bool:
    return isinstance(value, str) and value in names


CURSOR_LIFETIME = "cursor_lifetime"
ITERATION = "iteration"
TIMEOUT_MODE = one_of(CURSOR_LIFETIME, ITERATION)
"""What the timeout of a cursor holds for (Client-Side Operations Timeout, "timeoutMode")."""


def wrong_type(name: str, value: object, expected: str) -> str:
    """An error's text for what may be confidential, such as a connection string."""
    return f"{name} is of type {type(value).__name__}: expected {expected}"


def shown(value: object) -> str:
    # Python refuses to write a number of thousands of digits, which TOML can give in hexadecimal.
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a keyword may be anything, with a __repr__ of its own
        return f"<{type(value).__name__} that cannot be printed>"


def as_text(value: object) -> str:
    """The value of an option for a reader."""
    if value is None or value == ():
        return "unset"
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    """Empty where none is near."""
    # Without what all variables begin with, by which any two of them would be close. In one case:
    # a key of the file may be written as a variable is.
    candidates = {each.removeprefix(PREFIX).lower(): each for each in known}
    close = get_close_matches(name.removeprefix(PREFIX).lower(), candidates, n=1)
    return candidates[close[0]] if close else ""


def warn_unknown(
    name: str, what: str, known: Iterable[str], defaults: Mapping[str, object] = {}
) -> None:
    """``defaults``: those of options, by their known names."""
    close = _nearest(name, known)
    hint = f"; did you mean {close}?" if close else ""
    if close in defaults:
        default = as_text(defaults[close])
        hint += f" Unless it is set elsewhere, that option keeps its default: {default}"
    logger.warning("unknown %s %s is ignored%s", what, name, hint)


def check_keywords(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises a TypeError that names each unknown keyword, the nearest one and all that exist."""
    unknown: list[str] = []
    for name in given:
        if name not in known:
            close = _nearest(name, known)
            unknown.append(f"{name}; did you mean {close}?" if close else name)
    if unknown:
        raise TypeError(f"{owner} has no {', no '.join(unknown)} (it has {', '.join(known)})")


def check_field_names(cls: type[T]) -> type[T]:
    """A dataclass whose constructor checks its keywords with :func:`check_keywords`."""
    construct = cls.__init__
    known = tuple(each.name for each in fields(cls))  # type: ignore[arg-type]  # a dataclass

    @wraps(construct)
    def checked(self: T, *args: Any, **values: Any) -> None:
        check_keywords(cls.__name__, values, known)
        construct(self, *args, **values)

    cls.__init__ = checked  # type: ignore[assignment]  # the same parameters
    return cls
