"""Every option, once: its variable, type, default, legal range and one sentence.

``Config`` holds only options that act. Values come from keyword arguments, from
``PYMONGO_RESILIENCE_*`` variables, and from a TOML file that such a variable names; a variable
wins over the file. Namespace rules come from code and from the file alone.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.kinds import (
    BOOLEAN,
    LONGEST_MS,
    OPTIONAL_BOOLEAN,
    PREFIX,
    TIMEOUT_MODES,
    Kind,
    integer,
    number,
    one_of,
    several_of,
    shown,
    warn_unknown,
)
from pymongo_resilience.metric_names import METRICS
from pymongo_resilience.namespaces import problems_of
from pymongo_resilience.strategy import NAMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience.policy import Policy

FILE_VARIABLE = PREFIX + "CONFIG"
RULES = "policies"
STRATEGIES = (*NAMED, "driver")
SERVER_SELECTIONS = ("driver", "least_loaded")
BREAKER_MODES = ("off", "on", "always")
LARGEST_FILE = 1024 * 1024
"""Bytes; a device that never ends would be read for ever."""


class Option(NamedTuple):
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
        one_of(STRATEGIES),
        "Which failures are repeated and when; driver leaves pymongo's own loop alone.",
    )
    timeout_ms: int | None = _option(
        None,
        integer(0, LONGEST_MS, optional=True),
        "The time an operation has, its retries included, unless the client or pymongo.timeout "
        "sets one; 0 is without end, unset leaves one retry.",
    )
    timeout_mode: str | None = _option(
        None,
        one_of(TIMEOUT_MODES, optional=True),
        "Whether the timeout of a cursor holds for its whole life or for each batch that it "
        "fetches; unset is its life for one that the application sets, else each batch.",
    )
    max_retries: int = _option(
        5,
        integer(0, 1000),
        "How often a command is repeated once an overload error was seen.",
    )
    base_backoff_ms: int = _option(
        100,
        integer(1, 60_000),
        "The base of the back-off after an overload error; it doubles with each retry.",
    )
    max_backoff_ms: int = _option(
        10_000, integer(1, 600_000), "The longest back-off after an overload error."
    )
    adaptive_retries: bool = _option(
        False,
        BOOLEAN,
        "Whether retries after overload errors spend a budget of tokens, one for each client; "
        "a client's own adaptiveRetries wins.",
    )
    retry_token_capacity: int = _option(
        1000,
        integer(1, 1_000_000),
        "How many tokens a client's retry budget holds, and begins with.",
    )
    overload_retargeting: bool | None = _option(
        None,
        OPTIONAL_BOOLEAN,
        "Whether a retry after an overload error avoids the server that sent it; unset, all do but "
        "reads with primaryPreferred or secondaryPreferred. On a sharded cluster every retry "
        "does.",
    )
    server_selection: str = _option(
        "driver",
        one_of(SERVER_SELECTIONS),
        "Who chooses among the servers that an operation may go to: pymongo, or the library, which "
        "counts the attempts in progress on each.",
    )
    circuit_breaker: str = _option(
        "off",
        one_of(BREAKER_MODES),
        "Whether a server that keeps failing is left alone for a time; with always also one that "
        "is the only one, or a load balancer.",
    )
    circuit_breaker_failure_rate: float = _option(
        0.5,
        number(0.01, 1),
        "The part of a server's calls whose failure opens its circuit breaker.",
    )
    circuit_breaker_window_s: float = _option(
        10.0,
        number(0.1, 3600),
        "The time over which a circuit breaker counts calls and failures.",
    )
    circuit_breaker_minimum_calls: int = _option(
        20,
        integer(1, 1_000_000),
        "How many calls in that time it takes for a circuit breaker to open.",
    )
    circuit_breaker_open_s: float = _option(
        5.0,
        number(0.1, 3600),
        "How long a circuit breaker stays open before it lets three probes through.",
    )
    traces: bool = _option(True, BOOLEAN, "Whether operations and commands are drawn as spans.")
    command_comment: bool = _option(
        False,
        BOOLEAN,
        "Whether commands carry a comment with their operation's trace, for the server's profiler "
        "and slow-query log.",
    )
    metrics: bool = _option(
        True, BOOLEAN, "Whether durations, retries, servers and pools are measured."
    )
    metrics_by_collection: bool = _option(
        True,
        BOOLEAN,
        "Whether durations are told apart by collection; off where their names are without "
        "number, one for each customer or day, say.",
    )
    metrics_without: tuple[str, ...] = _option(
        (),
        several_of(METRICS),
        "Metrics that are not measured at all, for what they cost each operation.",
    )
    policies: Mapping[str, Policy] = field(default_factory=dict, hash=False)
    """Namespace rules by pattern, as ``instrument(policies=...)`` takes them; not in a variable."""

    def __post_init__(self) -> None:
        problems = [
            f"{option.name}={shown(getattr(self, option.name))}: expected {option.kind.allowed}"
            for option in OPTIONS
            if not option.kind.legal(getattr(self, option.name))
        ]
        problems += problems_of(self.policies)
        if problems:
            raise ConfigurationError(problems)
        # Of a TOML file it is a list.
        object.__setattr__(self, "metrics_without", tuple(self.metrics_without))
        # A copy: what the caller changes later must not seem to hold.
        object.__setattr__(self, "policies", dict(self.policies))

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
                warn_unknown(variable, "variable", [*known, FILE_VARIABLE])
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
        """From a TOML file whose top-level keys are the options' names, and ``policies``.

        An unknown key is a warning with the nearest name. Raises ConfigurationError with every
        bad value at once, also where the file cannot be read.
        """
        problems: list[str] = []
        values = _from_file(Path(path), problems)
        if problems:
            raise ConfigurationError(problems)
        return cls(**values)


def _from_file(path: Path, problems: list[str]) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - it compiles its patterns, and most processes have no file

    from pymongo_resilience.policy_file import policies_of  # noqa: PLC0415 - the same

    try:
        document = tomllib.loads(_content(path))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path}: expected a readable TOML file: {error}")
        return {}
    known = {option.name: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for name, value in document.items():
        option = known.get(name)
        if name == RULES:
            values[name] = policies_of(value, path, problems)
        elif option is None:
            warn_unknown(name, f"key in {path}", [*known, RULES])
        elif option.kind.legal(value):
            values[name] = value
        else:
            problems.append(f"{path}: {name} = {shown(value)}: expected {option.kind.allowed}")
    return values


def _content(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("it is larger than 1 MiB")
    return content.decode()


def _row(entry: Field[Any]) -> Option:
    default = None if entry.default is MISSING else entry.default
    return Option(entry.name, entry.metadata["kind"], default, entry.metadata["sentence"])


OPTIONS: tuple[Option, ...] = tuple(_row(entry) for entry in fields(Config) if entry.name != RULES)
"""The table that ``pymongo-resilience config`` and the README show."""
