"""Every option, once: its variable, type, default, legal range and one sentence.

``Config`` holds only options that act. Values come from keyword arguments, from
``PYMONGO_RESILIENCE_*`` variables, and from a TOML file that such a variable names; a variable
wins over the file. Namespace rules come from code and from the file alone.
"""

from __future__ import annotations

import functools
import os
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.former_names import warn_former
from pymongo_resilience.option_types import (
    BOOLEAN,
    LONGEST_MS,
    OPTIONAL_BOOLEAN,
    PREFIX,
    TIMEOUT_MODES,
    OptionType,
    boolean_or,
    integer,
    logger,
    number,
    one_of,
    several_of,
    shown,
    warn_unknown,
)
from pymongo_resilience.policies.namespaces import problems_of
from pymongo_resilience.rules.strategy import NAMED

from .metric_names import METRICS, OF_EACH_OPERATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pymongo_resilience.policies.policy import Policy

FILE_VARIABLE = PREFIX + "CONFIG"
RULES = "policies"
STRATEGIES = (*NAMED, "driver")
PEAK_EWMA = "peak_ewma"
SERVER_SELECTIONS = ("driver", "least_loaded", PEAK_EWMA)
RATIO, TOKENS, OFF = RETRY_BUDGETS = ("ratio", "tokens", "off")
BREAKER_MODES = ("off", "on", "always")
ALL = "all"
ALWAYS, ON_RETRY, NEVER = COMMAND_SPANS = ("always", "on_retry", "never")
WOKEN_CHECKS, QUICK_CHECKS, INTERRUPTIONS = RECOVERIES = (
    "woken_checks",
    "quick_checks",
    "interruptions",
)
LARGEST_FILE = 1024 * 1024
"""Bytes; a device that never ends would be read for ever."""


class Option(NamedTuple):
    """One row of the table of options."""

    name: str
    kind: OptionType
    default: Any
    sentence: str
    telemetry: bool
    """It concerns nothing but what is shown of operations."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _option(default: object, kind: OptionType, sentence: str, *, telemetry: bool = False) -> Any:
    about = {"kind": kind, "sentence": sentence, "telemetry": telemetry}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What holds for the whole process. Immutable, so thread- and task-safe.

    Raises :class:`ConfigurationError` that names every value out of range.
    """

    enabled: bool = _option(True, BOOLEAN, "Whether instrument() does anything at all.")
    strategy: str = _option(
        "fast_fail",
        one_of(STRATEGIES),
        "Which failures are repeated and when; driver leaves retries to pymongo.",
    )
    timeout_ms: int | None = _option(
        None,
        integer(0, LONGEST_MS, optional=True),
        "The time an operation has, its retries included, unless the client or pymongo.timeout "
        "sets one; 0 disables the timeout, unset leaves one retry.",
    )
    timeout_mode: str | None = _option(
        None,
        one_of(TIMEOUT_MODES, optional=True),
        "Whether the timeout of a cursor holds for its whole life or for each batch that it "
        "fetches; unset is its life for one that the application sets, else each batch.",
    )
    attempt_timeout_ms: int | None = _option(
        None,
        integer(1, LONGEST_MS, optional=True),
        "How long an attempt may wait for its reply before it is given up, and repeated where that "
        "is safe; unset is as long as the operation has.",
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
    retry_budget: str = _option(
        RATIO,
        one_of(RETRY_BUDGETS),
        "What limits the retries of each client: ratio, in proportion to what succeeds, for every "
        "reason; tokens, the specification's bucket, after overload errors; or nothing. A client's "
        "own adaptiveRetries comes first, and means tokens.",
    )
    adaptive_retries: bool | None = _option(
        None,
        OPTIONAL_BOOLEAN,
        "Deprecated: true means retry_budget=tokens, false means off, where retry_budget is ratio.",
    )
    retry_token_capacity: int = _option(
        1000,
        integer(1, 1_000_000),
        "The tokens of a client's budget at the beginning and at most, with retry_budget=tokens.",
    )
    load_shedding: bool = _option(
        False,
        BOOLEAN,
        "Whether a client refuses operations itself, those of low priority first, while a server "
        "rejects most of what it is sent.",
    )
    overload_retargeting: bool | None = _option(
        None,
        OPTIONAL_BOOLEAN,
        "Whether a retry after an overload error avoids the server that sent it; unset, all do but "
        "reads with primaryPreferred or secondaryPreferred. On a sharded cluster every retry "
        "does.",
    )
    single_document_writes: bool = _option(
        True,
        BOOLEAN,
        "Whether update_many and delete_many whose filter pins _id are sent as writes to one "
        "document, which can be repeated.",
    )
    server_selection: str = _option(
        "driver",
        one_of(SERVER_SELECTIONS),
        "What chooses among the servers that an operation may go to: pymongo, or the library, by "
        "the attempts in progress on each (least_loaded), or by these and its latency "
        "(peak_ewma).",
    )
    circuit_breaker: str = _option(
        "off",
        one_of(BREAKER_MODES),
        "Whether a server that keeps failing gets no operations for a time; with always also one "
        "that is the only one, or a load balancer.",
    )
    circuit_breaker_failure_rate: float = _option(
        0.5,
        number(0.01, 1),
        "The fraction of a server's calls that must fail to open its circuit breaker.",
    )
    circuit_breaker_window_s: float = _option(
        10.0,
        number(0.1, 3600),
        "The time over which a circuit breaker counts calls and failures.",
    )
    circuit_breaker_minimum_calls: int = _option(
        20,
        integer(1, 1_000_000),
        "The calls in that time without which no circuit breaker opens.",
    )
    circuit_breaker_open_s: float = _option(
        5.0,
        number(0.1, 3600),
        "How long a circuit breaker stays open before it lets three probes through.",
    )
    disabled_recovery: tuple[str, ...] = _option(
        (),
        several_of(RECOVERIES),
        "Which ways to recover sooner than pymongo are disabled.",
    )
    dead_peer_s: int = _option(
        5,
        integer(0, 3600),
        "Closes a connection whose server's kernel has acknowledged nothing for this long, where "
        "the system can do that; 0 leaves it to pymongo.",
    )
    traces: bool = _option(
        True, BOOLEAN, "Whether operations and commands are recorded as spans.", telemetry=True
    )
    command_spans: str = _option(
        ALWAYS,
        one_of(COMMAND_SPANS),
        "Which commands have spans of their own: all; those of operations that send more than one, "
        "or whose attempts fail; or none. What has none is shown on its operation's span.",
        telemetry=True,
    )
    slow_ms: int | None = _option(
        None,
        integer(0, LONGEST_MS, optional=True),
        "Operations that take this long are logged with their timeline by "
        "pymongo_resilience.slow; unset, only those that ran out of time have one.",
        telemetry=True,
    )
    command_comment: bool = _option(
        False,
        BOOLEAN,
        "Whether commands carry a comment with their operation's trace, for the server's profiler "
        "and slow-query log.",
        telemetry=True,
    )
    metrics: bool | str = _option(
        True,
        boolean_or(ALL),
        "Whether durations, retries, servers and pools are measured; with all also attempts, wait "
        "and use times, which cost every operation a record each.",
        telemetry=True,
    )
    metrics_by_collection: bool = _option(
        True,
        BOOLEAN,
        "Whether durations have the collection's name as an attribute; off where the number of "
        "names is unbounded, one for each customer or day, say.",
        telemetry=True,
    )
    disabled_metrics: tuple[str, ...] = _option(
        (),
        several_of(METRICS),
        "Metrics that are not measured, to save their cost.",
        telemetry=True,
    )
    policies: Mapping[str, Policy] = field(default_factory=dict, hash=False)
    """Namespace rules by pattern, as ``instrument(policies=...)`` takes them; not in a variable."""

    def __post_init__(self) -> None:
        given = {option.name: getattr(self, option.name) for option in OPTIONS}
        problems = []
        for option in OPTIONS:
            normal = option.kind.normal(given[option.name])
            object.__setattr__(self, option.name, normal)
            if not option.kind.legal(normal):
                said = shown(given[option.name])
                problems.append(f"{option.name}={said}: expected {option.kind.allowed}")
        problems += problems_of(self.policies)
        if problems:
            raise ConfigurationError(problems)
        self._replace_deprecated()
        # A copy: what the caller changes later must not seem to hold.
        object.__setattr__(self, "policies", dict(self.policies))

    def _replace_deprecated(self) -> None:
        if self.adaptive_retries is None:
            return
        if self.retry_budget == RATIO:
            object.__setattr__(self, "retry_budget", TOKENS if self.adaptive_retries else OFF)
        logger.warning(
            "adaptive_retries is deprecated and ends with the next minor version: retry_budget=%s "
            "says the same",
            self.retry_budget,
        )

    @property
    def unmeasured(self) -> frozenset[str]:
        """The names of those that are not measured, where any are."""
        beyond_standard = () if self.metrics == ALL else OF_EACH_OPERATION
        return frozenset((*self.disabled_metrics, *beyond_standard))

    @property
    def metrics_without(self) -> tuple[str, ...]:
        """The former name of ``disabled_metrics``."""
        warn_former("metrics_without", "disabled_metrics")
        return self.disabled_metrics

    @property
    def recovery_without(self) -> tuple[str, ...]:
        """The former name of ``disabled_recovery``."""
        warn_former("recovery_without", "disabled_recovery")
        return self.disabled_recovery

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """From the variables, and from the TOML file that ``PYMONGO_RESILIENCE_CONFIG`` names.

        An empty variable is an unset one; an unknown variable is a warning with the nearest name.
        Raises ConfigurationError with every bad value at once.
        """
        return load(environ).config

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """From a TOML file whose top-level keys are the options' names, and ``policies``.

        An unknown key is a warning with the nearest name. Raises ConfigurationError with every
        bad value at once, also where the file cannot be read.
        """
        values = _Values()
        values.read_file(Path(path))
        values.check()
        return cls(**values.found)


FORMER = {"metrics_without": "disabled_metrics", "recovery_without": "disabled_recovery"}
"""Names of options before, which end with the next minor version."""


def _taking_former_names(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Config, **given: Any) -> None:  # noqa: N807 - it takes the place of one
        for former in FORMER.keys() & given.keys():
            warn_former(former, FORMER[former])
            given[FORMER[former]] = given.pop(former)
        init(self, **given)

    return __init__


Config.__init__ = _taking_former_names(Config.__init__)  # type: ignore[method-assign]


class Loaded(NamedTuple):
    """A configuration, and where it came from. Immutable."""

    config: Config
    sources: Mapping[str, str]
    """The variable, or the file, that each value came from; what has none is a default."""
    ignored: tuple[str, ...]
    """Wrong values of options of telemetry alone, which have their defaults instead."""


def load(environ: Mapping[str, str] = os.environ, *, tolerant: bool = False) -> Loaded:
    """As :meth:`Config.from_env`. ``tolerant``: a wrong value that concerns telemetry alone is no
    error, and the option has its default."""
    values = _Values()
    path = environ.get(FILE_VARIABLE)
    if path:
        values.read_file(Path(path))
    values.read_variables(environ)
    values.check(tolerant=tolerant)
    return Loaded(Config(**values.found), values.sources, tuple(values.of_telemetry))


class _Values:
    """What was found so far, with all that is wrong."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[str] = []
        self.of_telemetry: list[str] = []
        """Among the problems."""

    def check(self, *, tolerant: bool = False) -> None:
        """Raises ConfigurationError with every problem at once."""
        if len(self.problems) > (len(self.of_telemetry) if tolerant else 0):
            raise ConfigurationError(self.problems)

    def read_variables(self, environ: Mapping[str, str]) -> None:
        known = {option.variable: option for option in OPTIONS}
        former = {PREFIX + each.upper(): known[PREFIX + FORMER[each].upper()] for each in FORMER}
        for variable, text in environ.items():
            if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or not text.strip():
                continue
            option = known.get(variable) or former.get(variable)
            if option is not None and variable in former:
                logger.warning("%s is called %s now", variable, option.variable)
            if option is None:
                warn_unknown(variable, "variable", [*known, FILE_VARIABLE])
                continue
            try:
                value = option.kind.normal(option.kind.parse(text.strip()))
                legal = option.kind.legal(value)
            except (ValueError, KeyError):
                legal = False
            if legal:
                self._take(option.name, value, variable)
            else:
                self._refuse(option, f"{variable}={text!r}: expected {option.kind.allowed}")

    def read_file(self, path: Path) -> None:
        import tomllib  # noqa: PLC0415 - it compiles its patterns, and most processes have no file

        from .policy_file import policies_of  # noqa: PLC0415 - the same

        try:
            document = tomllib.loads(_content(path))
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{path}: expected a readable TOML file: {error}")
            return
        known = {option.name: option for option in OPTIONS}
        for name, value in document.items():
            option = known.get(FORMER.get(name, name))
            if name in FORMER:
                logger.warning("%s in %s is called %s now", name, path, FORMER[name])
            if name == RULES:
                self._take(name, policies_of(value, path, self.problems), str(path))
            elif option is None:
                warn_unknown(name, f"key in {path}", [*known, RULES])
            elif option.kind.legal(normal := option.kind.normal(value)):
                self._take(option.name, normal, str(path))
            else:
                expected = f"expected {option.kind.allowed}"
                self._refuse(option, f"{path}: {name} = {shown(value)}: {expected}")

    def _take(self, name: str, value: object, source: str) -> None:
        self.found[name] = value
        self.sources[name] = source

    def _refuse(self, option: Option, problem: str) -> None:
        self.problems.append(problem)
        if option.telemetry:
            self.of_telemetry.append(problem)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("it is larger than 1 MiB")
    return content.decode()


def _row(entry: Field[Any]) -> Option:
    default = None if entry.default is MISSING else entry.default
    return Option(name=entry.name, default=default, **entry.metadata)


OPTIONS: tuple[Option, ...] = tuple(_row(entry) for entry in fields(Config) if entry.name != RULES)
"""The table that ``pymongo-resilience config`` and docs/options.md show."""
