"""The types of values that options and rules have: what is legal, and what to say of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

PREFIX = "PYMONGO_RESILIENCE_"
LONGEST_MS = 2_147_483_647

logger = logging.getLogger("pymongo_resilience")


class OptionType(NamedTuple):
    """A type of value: how text becomes one, which values are legal, and how to say so."""

    name: str
    allowed: str
    parse: Callable[[str], Any]
    """From a variable's text; raises ValueError or KeyError where it is no such value."""
    legal: Callable[[Any], bool]
    normal: Callable[[Any], Any] = lambda value: value
    """One spelling for all that mean the same; of what is not legal, anything."""


_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
BOOLEAN = OptionType(
    "boolean",
    "true, false, 1, 0, yes, no, on or off",
    lambda text: _BOOLEANS[text.lower()],
    lambda value: isinstance(value, bool),
)


def boolean_or(*names: str) -> OptionType:
    """A boolean, or one of the names in small letters, however it is written."""
    known = {**_BOOLEANS, **{name: name for name in names}}
    return OptionType(
        "boolean or name",
        f"{', '.join(names)} or {BOOLEAN.allowed}",
        lambda text: known[text.lower()],
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value in names),
        _lower,
    )


OPTIONAL_BOOLEAN = BOOLEAN._replace(legal=lambda value: value is None or isinstance(value, bool))


def _within(low: float, high: float, value: object, cls: Any) -> bool:
    return isinstance(value, cls) and not isinstance(value, bool) and low <= value <= high


def integer(low: int, high: int, *, optional: bool = False) -> OptionType:
    def legal(value: object) -> bool:
        return optional if value is None else _within(low, high, value, int)

    return OptionType("integer", f"an integer from {low} to {high}", int, legal)


def number(low: float, high: float) -> OptionType:
    def legal(value: object) -> bool:
        return _within(low, high, value, (int, float))

    return OptionType("number", f"a number from {low:g} to {high:g}", float, legal)


TRUTH = BOOLEAN._replace(allowed="true or false")
"""What code and files have: what variables may call true and false beside that is no boolean."""
ATTEMPT_TIMEOUT_MS = integer(1, LONGEST_MS)
TIMEOUT_MS = integer(0, LONGEST_MS)
"""0 disables the timeout."""
HEDGE = OptionType(
    "boolean or integer",
    f"true, false or an integer from 1 to {LONGEST_MS}",
    int,
    lambda value: isinstance(value, bool) or ATTEMPT_TIMEOUT_MS.legal(value),
)


def one_of(names: Iterable[str], *, optional: bool = False) -> OptionType:
    """A name in small letters, however it is written."""
    known = tuple(names)

    def legal(value: object) -> bool:
        return optional if value is None else isinstance(value, str) and value in known

    return OptionType("name", "one of " + ", ".join(known), str, legal, _lower)


def _lower(value: object) -> Any:
    return value.lower() if isinstance(value, str) else value


def several_of(names: Iterable[str]) -> OptionType:
    """A sequence of names; in a variable, with commas between."""
    known = tuple(names)

    def parse(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def legal(value: object) -> bool:
        return isinstance(value, (tuple, list)) and all(
            isinstance(each, str) and each in known for each in value
        )

    def normal(value: Any) -> Any:
        # Of a TOML file it is a list.
        several = isinstance(value, (tuple, list))
        return tuple(_lower(each) for each in value) if several else value

    return OptionType("names", "any of " + ", ".join(known), parse, legal, normal)


CURSOR_LIFETIME = "cursor_lifetime"
ITERATION = "iteration"
TIMEOUT_MODES = (CURSOR_LIFETIME, ITERATION)
TIMEOUT_MODE = one_of(TIMEOUT_MODES)
"""What the timeout of a cursor holds for (Client-Side Operations Timeout, "timeoutMode")."""


HIGH, NORMAL, LOW = PRIORITIES = ("high", "normal", "low")
PRIORITY = one_of(PRIORITIES)
"""What is low is refused first, where clients refuse anything."""


def shown(value: object) -> str:
    # Python refuses to write a number of thousands of digits, which TOML can give in hexadecimal.
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a keyword may be anything, with a __repr__ of its own
        return f"<{type(value).__name__} that cannot be printed>"


def warn_unknown(name: str, what: str, known: Iterable[str]) -> None:
    # Without what all variables begin with, by which any two of them would be close. In one case:
    # a key of the file may be written as a variable is.
    candidates = {each.removeprefix(PREFIX).lower(): each for each in known}
    nearest = get_close_matches(name.removeprefix(PREFIX).lower(), candidates, n=1)
    hint = f"; did you mean {candidates[nearest[0]]}?" if nearest else ""
    logger.warning("unknown %s %s is ignored%s", what, name, hint)
