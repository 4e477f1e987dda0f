"""Every option, once: its variable, type, default, legal range and one sentence.

``Config`` holds only options that act. Values come from keyword arguments, from
``PYMONGO_RESILIENCE_*`` variables, and from a TOML file that such a variable names; a variable
wins over the file.
"""

from __future__ import annotations

import logging
import os
import tomllib
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PREFIX = "PYMONGO_RESILIENCE_"
FILE_VARIABLE = PREFIX + "CONFIG"
STRATEGIES = ("fast_fail", "best_effort", "mongodb", "driver")
LONGEST_MS = 2_147_483_647
LARGEST_FILE = 1024 * 1024
"""Bytes; a device that never ends would be read for ever."""

logger = logging.getLogger("pymongo_resilience")


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value: how text becomes one, which values are legal, and how to say so."""

    name: str
    allowed: str
    parse: Callable[[str], Any]
    """From a variable's text; raises ValueError or KeyError where it is no such value."""
    legal: Callable[[Any], bool]


_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
BOOLEAN = Kind(
    "boolean",
    "true, false, 1, 0, yes, no, on or off",
    lambda text: _BOOLEANS[text.lower()],
    lambda value: isinstance(value, bool),
)


def _integer(low: int, high: int, *, optional: bool = False) -> Kind:
    def legal(value: Any) -> bool:
        if value is None:
            return optional
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Kind("integer", f"an integer from {low} to {high}", int, legal)


def _one_of(names: tuple[str, ...]) -> Kind:
    return Kind(
        "name",
        "one of " + ", ".join(names),
        str,
        lambda value: isinstance(value, str) and value in names,
    )


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table of options."""

    name: str
    kind: Kind
    default: Any
    sentence: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _option(default: Any, kind: Kind, sentence: str) -> Any:
    return field(default=default, metadata={"kind": kind, "sentence": sentence})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What holds for the whole process. Immutable, so thread- and task-safe.

    Raises :class:`ConfigurationError` that names every value out of range.
    """

    enabled: bool = _option(True, BOOLEAN, "Whether instrument() does anything at all.")
    strategy: str = _option(
        "fast_fail",
        _one_of(STRATEGIES),
        "Which failures are repeated and when; driver leaves pymongo's own loop alone.",
    )
    timeout_ms: int | None = _option(
        None,
        _integer(0, LONGEST_MS, optional=True),
        "The time an operation has, its retries included, unless the client or pymongo.timeout "
        "sets one; 0 is without end, unset leaves one retry.",
    )
    max_retries: int = _option(
        5,
        _integer(0, 1000),
        "How often a command is repeated once an overload error was seen.",
    )
    base_backoff_ms: int = _option(
        100,
        _integer(1, 60_000),
        "The base of the back-off after an overload error; it doubles with each retry.",
    )
    max_backoff_ms: int = _option(
        10_000, _integer(1, 600_000), "The longest back-off after an overload error."
    )
    adaptive_retries: bool = _option(
        False,
        BOOLEAN,
        "Whether retries after overload errors spend a budget of tokens, one for each client; "
        "a client's own adaptiveRetries wins.",
    )
    retry_token_capacity: int = _option(
        1000,
        _integer(1, 1_000_000),
        "How many tokens a client's retry budget holds, and begins with.",
    )
    overload_retargeting: bool = _option(
        True, BOOLEAN, "Whether a retry avoids the server that failed, where another one is there."
    )
    traces: bool = _option(True, BOOLEAN, "Whether operations and commands are drawn as spans.")
    metrics: bool = _option(
        True, BOOLEAN, "Whether durations, retries, servers and pools are measured."
    )

    def __post_init__(self) -> None:
        problems = [
            f"{option.name}={_shown(getattr(self, option.name))}: expected {option.kind.allowed}"
            for option in OPTIONS
            if not option.kind.legal(getattr(self, option.name))
        ]
        if problems:
            raise ConfigurationError(problems)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """From the variables, and from the TOML file that ``PYMONGO_RESILIENCE_CONFIG`` names.

        An empty variable is an unset one; an unknown variable is a warning with the nearest name.
        Raises ConfigurationError with every bad value at once.
        """
        problems: list[str] = []
        values: dict[str, Any] = {}
        path = environ.get(FILE_VARIABLE)
        if path:
            values.update(_from_file(Path(path), problems))
        known = {option.variable: option for option in OPTIONS}
        for variable, text in environ.items():
            if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or not text.strip():
                continue
            option = known.get(variable)
            if option is None:
                _warn_unknown(variable, "variable", [*known, FILE_VARIABLE])
                continue
            try:
                value = option.kind.parse(text.strip())
                legal = option.kind.legal(value)
            except (ValueError, KeyError):
                legal = False
            if legal:
                values[option.name] = value
            else:
                problems.append(f"{variable}={text!r}: expected {option.kind.allowed}")
        if problems:
            raise ConfigurationError(problems)
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """From a TOML file whose top-level keys are the options' names.

        An unknown key is a warning with the nearest name. Raises ConfigurationError with every
        bad value at once, also where the file cannot be read.
        """
        problems: list[str] = []
        values = _from_file(Path(path), problems)
        if problems:
            raise ConfigurationError(problems)
        return cls(**values)


def _from_file(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        document = tomllib.loads(_content(path))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path}: expected a readable TOML file: {error}")
        return {}
    known = {option.name: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for name, value in document.items():
        option = known.get(name)
        if option is None:
            _warn_unknown(name, f"key in {path}", known)
        elif option.kind.legal(value):
            values[name] = value
        else:
            problems.append(f"{path}: {name} = {_shown(value)}: expected {option.kind.allowed}")
    return values


def _content(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("it is larger than 1 MiB")
    return content.decode()


def _shown(value: Any) -> str:
    # Python refuses to write a number of thousands of digits, which TOML can give in hexadecimal.
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a keyword may be anything, with a __repr__ of its own
        return f"<{type(value).__name__} that cannot be printed>"


def _warn_unknown(name: str, what: str, known: Iterable[str]) -> None:
    # Without what all variables begin with, by which any two of them would be close.
    candidates = {each.removeprefix(PREFIX): each for each in known}
    nearest = get_close_matches(name.removeprefix(PREFIX), candidates, n=1)
    hint = f"; did you mean {candidates[nearest[0]]}?" if nearest else ""
    logger.warning("unknown %s %s is ignored%s", what, name, hint)


def _row(entry: Field[Any]) -> Option:
    default = None if entry.default is MISSING else entry.default
    return Option(entry.name, entry.metadata["kind"], default, entry.metadata["sentence"])


OPTIONS: tuple[Option, ...] = tuple(_row(entry) for entry in fields(Config))
"""The table that ``pymongo-resilience config`` and the README show."""
