"""The options: name, environment variable, type, default, allowed values and description of each.

Values come from keyword arguments, from ``PYMONGO_RESILIENCE_*`` variables, and from a TOML file
that ``PYMONGO_RESILIENCE_CONFIG`` names. A variable takes precedence over the file. Namespace rules
come only from code and from the file.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import (
    BOOLEAN,
    MAX_MS,
    PREFIX,
    TIMEOUT_MODE,
    OptionType,
    check_field_names,
    integer,
    number,
    one_of,
    problems_in,
    several_of,
    warn_unknown,
)
from pymongo_resilience.policies.namespaces import policies_of, problems_of
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

T = TypeVar("T")

FILE_VARIABLE = PREFIX + "CONFIG"
SERVER_VARIABLE = PREFIX + "TESTBED_SERVER"
PYTHON_VARIABLE = PREFIX + "TESTBED_PYTHON"
TESTBED_VARIABLES = frozenset({SERVER_VARIABLE, PYTHON_VARIABLE})
"""Only the test bed reads them."""
_NO_OPTIONS = TESTBED_VARIABLES | {FILE_VARIABLE}
RULES = "policies"
SWITCHES = ("enabled", "strategy")
"""Options whose variables take precedence over code, because an operator on call cannot change the
code.
"""
TELEMETRY = ("traces", "command_spans", "query_text", "slow_ms", "command_comment", "metrics")
"""Options that affect only telemetry."""


# Allowed values of options. A Config keeps the plain strings it was given; they compare equal to
# these members.
class BudgetKind(enum.StrEnum):
    """``retry_budget``."""

    RATIO = "ratio"
    TOKENS = "tokens"
    OFF = "off"


class BreakerMode(enum.StrEnum):
    """``circuit_breaker``."""

    OFF = "off"
    ON = "on"
    ALWAYS = "always"


class CommandSpanMode(enum.StrEnum):
    """``command_spans``."""

    ALWAYS = "always"
    ON_RETRY = "on_retry"
    NEVER = "never"


class QueryText(enum.StrEnum):
    """``query_text``."""

    SANITIZED = "sanitized"
    OFF = "off"


class MetricDetail(enum.StrEnum):
    """``metrics``, unless it is a boolean."""

    ALL = "all"
    BY_DATABASE = "by_database"


class RecoveryStep(enum.StrEnum):
    """``disabled_recovery``: what the library does to recover sooner than pymongo."""

    WOKEN_CHECKS = "woken_checks"
    QUICK_CHECKS = "quick_checks"
    INTERRUPTIONS = "interruptions"
    REJECTIONS = "rejections"


PYMONGO_DECIDES = "driver"
"""The ``strategy`` that leaves retries to pymongo."""


class Option(NamedTuple):
    """One row of the table of options."""

    name: str
    kind: OptionType
    default: Any
    sentence: str
    has_variable: bool = True
    """False for an option that only code or a file can set."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _option(default: T, kind: OptionType, sentence: str, **more: bool) -> T:
    return field(default=default, metadata={"kind": kind, "sentence": sentence, **more})


@check_field_names
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of the whole process. Immutable, so thread- and task-safe.

    Raises:
        ConfigurationError: Lists every invalid value.
    """

    enabled: bool = _option(True, BOOLEAN, "Whether instrument() has any effect.")
    strategy: str = _option(
        "fast_fail",
        one_of(*NAMED, PYMONGO_DECIDES),
        "Which failures are retried, and when. driver leaves all retries to pymongo.",
    )
    timeout_ms: int | None = _option(
        None,
        integer(0, MAX_MS),
        "Milliseconds for a whole operation, including its retries, unless the client or "
        "pymongo.timeout sets a timeout. 0 means no limit. If unset, an operation is retried once.",
    )
    timeout_mode: str | None = _option(
        None,
        TIMEOUT_MODE,
        "Whether a cursor's timeout covers its whole life or each batch. If unset, it covers the "
        "whole life if the application sets the timeout, otherwise each batch.",
        has_variable=False,
    )
    attempt_timeout_ms: int | None = _option(
        None,
        integer(1, MAX_MS),
        "Milliseconds that one attempt may wait for its reply. After that, the operation is "
        "retried if that is safe.",
    )
    max_retries: int = _option(
        5,
        integer(0, 1000),
        "Maximum number of retries of a command after an overload error.",
    )
    base_backoff_ms: int = _option(
        100,
        integer(1, 60_000),
        "Base of the delay after an overload error, in milliseconds. It doubles with each retry.",
        has_variable=False,
    )
    max_backoff_ms: int = _option(
        10_000,
        integer(1, 600_000),
        "Limit of the delay after an overload error, and of the delay that a throttling server "
        "asks for, in milliseconds.",
        has_variable=False,
    )
    retry_budget: str = _option(
        BudgetKind.RATIO.value,
        one_of(*BudgetKind),
        "How the retries of a client are limited. ratio: in proportion to its successful "
        "operations. tokens: by the token bucket of MongoDB's specification, only after overload "
        "errors. off: not by a budget.",
    )
    overload_retargeting: bool | None = _option(
        None,
        BOOLEAN,
        "Whether retries avoid an overloaded server. If unset, all retries do, except those of "
        "reads with primaryPreferred or secondaryPreferred.",
        has_variable=False,
    )
    circuit_breaker: str = _option(
        BreakerMode.OFF.value,
        one_of(*BreakerMode),
        "Whether to stop sending operations to a server that keeps failing. on: only operations "
        "that another server can handle. always: all operations.",
    )
    circuit_breaker_failure_rate: float = _option(
        0.5,
        number(0.01, 1),
        "Fraction of the calls of a server that must fail before its circuit breaker opens.",
        has_variable=False,
    )
    circuit_breaker_window_s: float = _option(
        10.0,
        number(0.1, 3600),
        "Seconds over which a circuit breaker counts calls and failures.",
        has_variable=False,
    )
    circuit_breaker_minimum_calls: int = _option(
        20,
        integer(1, 1_000_000),
        "Number of calls that a server must get in the window before its circuit breaker can open.",
        has_variable=False,
    )
    circuit_breaker_open_s: float = _option(
        5.0,
        number(0.1, 3600),
        "Seconds that a circuit breaker stays open before it allows three probes.",
        has_variable=False,
    )
    disabled_recovery: tuple[str, ...] = _option(
        (),
        several_of(*RecoveryStep),
        "Which parts of the faster recovery are turned off.",
        has_variable=False,
    )
    dead_peer_s: int = _option(
        5,
        integer(0, 3600),
        "A connection counts as lost if the server's kernel acknowledges nothing for this many "
        "seconds. 0 disables the check.",
    )
    traces: bool = _option(True, BOOLEAN, "Whether operations and commands are recorded as spans.")
    command_spans: str = _option(
        CommandSpanMode.ON_RETRY.value,
        one_of(*CommandSpanMode),
        "Which commands get their own spans. on_retry: only commands of operations that "
        "send several.",
    )
    query_text: str = _option(
        QueryText.SANITIZED.value,
        one_of(*QueryText),
        "Whether spans and the log of slow operations contain commands without their values.",
    )
    slow_ms: int | None = _option(
        None,
        integer(0, MAX_MS),
        "Operations that take at least this many milliseconds are logged with a timeline. If "
        "unset, only operations that time out are logged.",
    )
    command_comment: bool = _option(
        False,
        BOOLEAN,
        "Whether commands carry a comment that identifies the operation's trace in the server's "
        "log.",
    )
    metrics: bool | str = _option(
        True,
        one_of(*MetricDetail, or_boolean=True),
        "Whether metrics are recorded. all: also numbers of attempts and waiting times. "
        "by_database: durations without the collection's name.",
    )
    policies: Mapping[str, Policy] = field(default_factory=dict[str, Policy], hash=False)
    """Namespace rules by pattern, as for ``instrument(policies=...)``. No variable sets them."""

    def __post_init__(self) -> None:
        problems = problems_in(self) + problems_of(self.policies)
        if problems:
            raise ConfigurationError(problems)
        # Copy the mapping, so that later changes by the caller do not appear to take effect.
        object.__setattr__(self, "policies", dict(self.policies))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Return the configuration from the environment variables and the TOML file they name.

        Empty variables are ignored. An unknown variable causes a warning with the nearest known
        name.

        Raises:
            ConfigurationError: Lists every invalid value.
        """
        return load(environ).config

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """Return the configuration from a TOML file.

        Its top-level keys are the names of options, and ``policies``. An unknown key causes a
        warning with the nearest known name.

        Raises:
            ConfigurationError: Lists every invalid value, or reports that the file cannot be read.
        """
        return load({FILE_VARIABLE: str(Path(path))}).config


class Options(TypedDict, total=False):
    """The fields of ``Config``, as keyword arguments of ``instrument()``."""

    # ``strategy`` and ``policies`` are missing, because ``instrument()`` has its own parameters for
    # them.
    enabled: bool
    timeout_ms: int | None
    timeout_mode: str | None
    attempt_timeout_ms: int | None
    max_retries: int
    base_backoff_ms: int
    max_backoff_ms: int
    retry_budget: str
    overload_retargeting: bool | None
    circuit_breaker: str
    circuit_breaker_failure_rate: float
    circuit_breaker_window_s: float
    circuit_breaker_minimum_calls: int
    circuit_breaker_open_s: float
    disabled_recovery: tuple[str, ...]
    dead_peer_s: int
    traces: bool
    command_spans: str
    query_text: str
    slow_ms: int | None
    command_comment: bool
    metrics: bool | str


class Loaded(NamedTuple):
    """A configuration, and where its values came from. Immutable."""

    config: Config
    sources: Mapping[str, str]
    """For each option that a variable or the file set: the variable, or the path of the file."""
    overridden: tuple[str, ...]
    """Variables, and the file, whose values code overrides."""
    ignored: tuple[str, ...]
    """Descriptions of invalid telemetry options, which were replaced by their defaults."""


def load(
    environ: Mapping[str, str] = os.environ,
    code: Config | Mapping[str, Any] | None = None,
    *,
    tolerant: bool = False,
) -> Loaded:
    """Merge the variables, the file, and the options given in code.

    If ``code`` is a ``Config``, the file is not read. Values that code overrides are not checked.

    Args:
        environ: The environment variables.
        code: A whole configuration, or options by name.
        tolerant: Replace invalid telemetry options by their defaults instead of raising.

    Raises:
        ConfigurationError: Lists every invalid value.
    """
    is_whole = isinstance(code, Config)
    base, options = (code, {}) if isinstance(code, Config) else (Config(), code or {})
    path = environ.get(FILE_VARIABLE)
    # A whole Config replaces the file, which is then not even opened.
    overridden: set[str] = {FILE_VARIABLE} if is_whole and path else set()
    problems: list[str] = []
    ignored: list[str] = []
    values: dict[str, Any] = {**options}
    sources: dict[str, str] = {}
    file = _of_file(path, problems) if path and not is_whole else ()
    for name, value, source in (*file, *_of_variables(environ)):
        option = BY_NAME.get(name)
        # Operators on call use the variables of the two switches, so these take precedence over
        # code. The file does not, because it ships with the code.
        wins_over_code = name in SWITCHES and source != path
        # Code overrides this value, so do not check it: a wrong value without effect is no reason
        # to refuse to start.
        if (is_whole or name in options) and not wins_over_code:
            overridden.add(source)
        elif option is None or option.kind.legal(value):
            values[name], sources[name] = value, source
        else:
            # Under OpenTelemetry's loader, a typo in a telemetry option must not turn the retries
            # off.
            tolerated = tolerant and name in TELEMETRY
            place = f"{path}: {name}" if source == path else source
            (ignored if tolerated else problems).append(option.kind.problem(place, value))
    if problems:
        raise ConfigurationError([*problems, *ignored])
    return Loaded(replace(base, **values), sources, tuple(sorted(overridden)), tuple(ignored))


_Entry = tuple[str, Any, str]
"""An option's name, its value, and the variable or file it came from."""


def _of_variables(environ: Mapping[str, str]) -> Iterator[_Entry]:
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in _NO_OPTIONS or not text.strip():
            continue
        option = BY_VARIABLE.get(variable)
        if option is None:
            defaults = {name: known.default for name, known in BY_VARIABLE.items()}
            warn_unknown(variable, "variable", [*defaults, *sorted(_NO_OPTIONS)], defaults)
        elif not option.has_variable:
            logger.warning("%s is ignored: only code or a file can set %s", variable, option.name)
        else:
            # Pass text that cannot be parsed on as it is, so that the caller reports it.
            value = option.kind.read(text)
            yield option.name, text if value is None else value, variable


def _of_file(path: str, problems: list[str]) -> Iterator[_Entry]:
    import tomllib  # noqa: PLC0415 - it compiles its patterns, and most processes have no file

    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        # A file with arrays nested too deeply raises RecursionError.
        problems.append(f"{path}: expected a readable TOML file: {error}")
        return
    for name, value in document.items():
        if name == RULES:
            yield name, policies_of(value, path, problems), path
        elif name in BY_NAME:
            # TOML has arrays only; options with several values are tuples.
            items = tuple(cast("list[object]", value)) if isinstance(value, list) else value
            yield name, items, path
        else:
            defaults = {key: known.default for key, known in BY_NAME.items()}
            warn_unknown(name, f"key in {path}", [*defaults, RULES], defaults)


OPTIONS: tuple[Option, ...] = tuple(
    Option(name=entry.name, default=entry.default, **entry.metadata)
    for entry in fields(Config)
    if entry.name != RULES
)
"""The table shown by ``pymongo-resilience config`` and docs/options.md."""
BY_NAME = {option.name: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
