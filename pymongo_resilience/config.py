"""Every option, once: its variable, type, default, legal range and one sentence.

``Config`` holds only options that act. Values come from keyword arguments, from
``PYMONGO_RESILIENCE_*`` variables, and from a TOML file that such a variable names; a variable
wins over the file. Namespace rules come from code and from the file alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import (
    BOOLEAN,
    LONGEST_MS,
    PREFIX,
    TIMEOUT_MODE,
    OptionType,
    boolean_or,
    integer,
    logger,
    names_its_fields,
    number,
    one_of,
    set_normal,
    several_of,
    warn_unknown,
)
from pymongo_resilience.policies.namespaces import policies_of, problems_of
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

FILE_VARIABLE = PREFIX + "CONFIG"
SERVER_VARIABLE = PREFIX + "TESTBED_SERVER"
"""Read by the test bed alone."""
_NO_OPTIONS = frozenset({FILE_VARIABLE, SERVER_VARIABLE})
RULES = "policies"
PEAK_EWMA = "peak_ewma"
RATIO, TOKENS, OFF = "ratio", "tokens", "off"
ALL, BY_DATABASE = "all", "by_database"
SWITCHES = ("enabled", "strategy")
"""Options whose variables win over code: whoever is on call has no other switch."""
ALWAYS, ON_RETRY, NEVER = "always", "on_retry", "never"
WOKEN_CHECKS, QUICK_CHECKS, INTERRUPTIONS = "woken_checks", "quick_checks", "interruptions"


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


class Option(NamedTuple):
    """One row of the table of options."""

    name: str
    kind: OptionType
    default: Any
    sentence: str
    telemetry: bool = False
    """It concerns nothing but what is shown of operations."""
    has_variable: bool = True
    """False for what is set in code or in a file alone."""

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    def value_of(self, text: str) -> Any:
        """The value that a variable's text means. Raises ValueError where it is none."""
        with suppress(ValueError, KeyError):
            value = self.kind.normal(self.kind.parse(text.strip()))
            if self.kind.legal(value):
                return value
        raise ValueError(f"{self.variable}={text!r}: expected {self.kind.allowed}")


def _option(default: object, kind: OptionType, sentence: str, **more: bool) -> Any:
    kind = kind._replace(optional=default is None)
    return field(default=default, metadata={"kind": kind, "sentence": sentence, **more})


@names_its_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What holds for the whole process. Immutable, so thread- and task-safe.

    Raises :class:`ConfigurationError` that names every value out of range.
    """

    enabled: bool = _option(True, BOOLEAN, "Whether instrument() does anything at all.")
    strategy: str = _option(
        "fast_fail",
        one_of(*NAMED, "driver"),
        "Which failures are repeated and when; driver leaves retries to pymongo.",
    )
    timeout_ms: int | None = _option(
        None,
        integer(0, LONGEST_MS),
        "The time an operation has, its retries included, unless the client or pymongo.timeout "
        "sets one; 0 disables the timeout, unset leaves one retry.",
    )
    timeout_mode: str | None = _option(
        None,
        TIMEOUT_MODE,
        "Whether the timeout of a cursor holds for its whole life or for each batch that it "
        "fetches; unset is its life for one that the application sets, else each batch.",
        has_variable=False,
    )
    attempt_timeout_ms: int | None = _option(
        None,
        integer(1, LONGEST_MS),
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
        has_variable=False,
    )
    max_backoff_ms: int = _option(
        10_000,
        integer(1, 600_000),
        "The longest back-off after an overload error.",
        has_variable=False,
    )
    retry_budget: str = _option(
        RATIO,
        one_of(RATIO, TOKENS, OFF),
        "What limits the retries of each client: ratio, in proportion to what succeeds, for every "
        "reason; tokens, the specification's bucket of 1,000, after overload errors; or nothing. A "
        "client's own adaptiveRetries comes first, and means tokens.",
    )
    load_shedding: bool = _option(
        False,
        BOOLEAN,
        "Whether a client refuses operations itself, those of low priority first, while a server "
        "rejects most of what it is sent.",
    )
    overload_retargeting: bool | None = _option(
        None,
        BOOLEAN,
        "Whether a retry after an overload error avoids the server that sent it; unset, all do but "
        "reads with primaryPreferred or secondaryPreferred. On a sharded cluster every retry "
        "does.",
        has_variable=False,
    )
    server_selection: str = _option(
        "driver",
        one_of("driver", "least_loaded", PEAK_EWMA),
        "What chooses among the servers that an operation may go to: pymongo, or the library, by "
        "the attempts in progress on each (least_loaded), or by these and its latency "
        "(peak_ewma).",
    )
    circuit_breaker: str = _option(
        "off",
        one_of("off", "on", "always"),
        "Whether a server that keeps failing gets no operations for a time, where they may go "
        "elsewhere; with always also writes to a replica set, and a server that is the only one.",
    )
    circuit_breaker_failure_rate: float = _option(
        0.5,
        number(0.01, 1),
        "The fraction of a server's calls that must fail to open its circuit breaker.",
        has_variable=False,
    )
    circuit_breaker_window_s: float = _option(
        10.0,
        number(0.1, 3600),
        "The time over which a circuit breaker counts calls and failures.",
        has_variable=False,
    )
    circuit_breaker_minimum_calls: int = _option(
        20,
        integer(1, 1_000_000),
        "The calls in that time without which no circuit breaker opens.",
        has_variable=False,
    )
    circuit_breaker_open_s: float = _option(
        5.0,
        number(0.1, 3600),
        "How long a circuit breaker stays open before it lets three probes through.",
        has_variable=False,
    )
    disabled_recovery: tuple[str, ...] = _option(
        (),
        several_of(WOKEN_CHECKS, QUICK_CHECKS, INTERRUPTIONS),
        "Which ways to recover sooner than pymongo are disabled.",
        has_variable=False,
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
        ON_RETRY,
        one_of(ALWAYS, ON_RETRY, NEVER),
        "Which commands have spans of their own: all; those of operations that send more than one, "
        "or whose attempts fail; or none. What has none is shown on its operation's span.",
        telemetry=True,
    )
    slow_ms: int | None = _option(
        None,
        integer(0, LONGEST_MS),
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
        boolean_or(ALL, BY_DATABASE),
        "Whether durations, retries, servers and pools are measured; with all also attempts, wait "
        "and use times, which cost every operation a record each; with by_database durations have "
        "no collection's name, for applications with any number of collections.",
        telemetry=True,
    )
    policies: Mapping[str, Policy] = field(default_factory=dict, hash=False)
    """Namespace rules by pattern, as ``instrument(policies=...)`` takes them; not in a variable."""

    def __post_init__(self) -> None:
        problems = set_normal(self, {option.name: option.kind for option in OPTIONS})
        problems += problems_of(self.policies)
        if problems:
            raise ConfigurationError(problems)
        # A copy: what the caller changes later must not seem to hold.
        object.__setattr__(self, "policies", dict(self.policies))

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
        return load({FILE_VARIABLE: str(Path(path))}).config


class Options(TypedDict, total=False):
    """The fields of ``Config`` as ``instrument()`` takes them by keyword, beside its own."""

    enabled: bool
    timeout_ms: int | None
    timeout_mode: str | None
    attempt_timeout_ms: int | None
    max_retries: int
    base_backoff_ms: int
    max_backoff_ms: int
    retry_budget: str
    load_shedding: bool
    overload_retargeting: bool | None
    server_selection: str
    circuit_breaker: str
    circuit_breaker_failure_rate: float
    circuit_breaker_window_s: float
    circuit_breaker_minimum_calls: int
    circuit_breaker_open_s: float
    disabled_recovery: tuple[str, ...]
    dead_peer_s: int
    traces: bool
    command_spans: str
    slow_ms: int | None
    command_comment: bool
    metrics: bool | str


class Loaded(NamedTuple):
    """A configuration, and where it came from. Immutable."""

    config: Config
    sources: Mapping[str, str]
    """The variable, or the file, that each value came from; what has none is a default."""
    ignored: tuple[str, ...]
    """Wrong values of telemetry's options, whose defaults hold; or variables without effect."""


def load(environ: Mapping[str, str] = os.environ, *, tolerant: bool = False) -> Loaded:
    """What :meth:`Config.from_env` reads. ``tolerant``: a wrong value that concerns telemetry alone
    is no error, and the option has its default."""
    values = _Values()
    path = environ.get(FILE_VARIABLE)
    if path:
        values.read_file(Path(path))
    values.read_variables(environ)
    if len(values.problems) > (len(values.of_telemetry) if tolerant else 0):
        raise ConfigurationError(values.problems)
    return Loaded(Config(**values.found), values.sources, tuple(values.of_telemetry))


def apply_switches(config: Config, environ: Mapping[str, str] = os.environ) -> Loaded:
    """``config`` from code, with what the variables of ``SWITCHES`` say in its place.

    ``Loaded.ignored`` names the other variables that are set: code overrides them. Raises
    ConfigurationError where a switch has a wrong value.
    """
    values = _Values()
    values.read_variables(environ)
    switches = {name: values.found[name] for name in SWITCHES if name in values.found}
    wrong = [each for each in values.problems if each.split("=")[0] in map(variable_of, SWITCHES)]
    if wrong:
        raise ConfigurationError(wrong)
    overridden = [values.sources[name] for name in values.found if name not in SWITCHES]
    if environ.get(FILE_VARIABLE):
        overridden.append(FILE_VARIABLE)
    sources = {name: values.sources[name] for name in switches}
    return Loaded(replace(config, **switches), sources, tuple(sorted(overridden)))


class _Values:
    """What was found so far, with all that is wrong."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[str] = []
        self.of_telemetry: list[str] = []
        """Among the problems."""

    def read_variables(self, environ: Mapping[str, str]) -> None:
        for variable, text in environ.items():
            if not variable.startswith(PREFIX) or variable in _NO_OPTIONS or not text.strip():
                continue
            option = BY_VARIABLE.get(variable)
            if option is None:
                warn_unknown(variable, "variable", [*BY_VARIABLE, *sorted(_NO_OPTIONS)])
                continue
            if not option.has_variable:
                logger.warning("%s is ignored: code or a file sets %s", variable, option.name)
                continue
            try:
                self._take(option.name, option.value_of(text), variable)
            except ValueError as error:
                self._refuse(option, str(error))

    def read_file(self, path: Path) -> None:
        import tomllib  # noqa: PLC0415 - it compiles its patterns, and most processes have no file

        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{path}: expected a readable TOML file: {error}")
            return
        for name, value in document.items():
            option = BY_NAME.get(name)
            if name == RULES:
                self._take(name, policies_of(value, path, self.problems), str(path))
            elif option is None:
                warn_unknown(name, f"key in {path}", [*BY_NAME, RULES])
            elif option.kind.legal(normal := option.kind.normal(value)):
                self._take(option.name, normal, str(path))
            else:
                self._refuse(option, f"{path}: {option.kind.problem(name, value)}")

    def _take(self, name: str, value: object, source: str) -> None:
        self.found[name] = value
        self.sources[name] = source

    def _refuse(self, option: Option, problem: str) -> None:
        self.problems.append(problem)
        if option.telemetry:
            self.of_telemetry.append(problem)


OPTIONS: tuple[Option, ...] = tuple(
    Option(name=entry.name, default=entry.default, **entry.metadata)
    for entry in fields(Config)
    if entry.name != RULES
)
"""The table that ``pymongo-resilience config`` and docs/options.md show."""
BY_NAME = {option.name: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
