"""Every option from everywhere it can come from, and everything that can be wrong with it."""

from __future__ import annotations

import copy
import logging
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

from pymongo_resilience import instrument
from pymongo_resilience.config import FILE_VARIABLE, OPTIONS, PREFIX, Config, Option, Options, load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import as_text

if TYPE_CHECKING:
    from pathlib import Path

NO_VARIABLE = {option.name for option in OPTIONS if not option.has_variable}
"""Options of code and files alone."""
RANGES = {option.name: option.kind.allowed for option in OPTIONS}
ON = {**dict.fromkeys(("1", "true", "YES", " on "), True),
      **dict.fromkeys(("0", "false", "No", "OFF"), False)}  # fmt: skip
NO_BOOLEAN = (2, "ture", "y", None)
NO_NUMBER = (True, "soon", "1e3", -1, 1.5)
MS = 2_147_483_647
TABLE: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "enabled": (True, ON, NO_BOOLEAN),
    "strategy": ("fast_fail", {"best_effort": "best_effort", "MongoDB": "mongodb"},
                 (None, 1, "FAST-FAIL", "none")),
    "timeout_ms": (None, {"0": 0, "20000": 20_000, str(MS): MS}, (*NO_NUMBER, MS + 1, "20s")),
    "timeout_mode": (None, {"iteration": "iteration"}, (True, 1, "none")),
    "attempt_timeout_ms": (None, {"1": 1, str(MS): MS}, (*NO_NUMBER, 0)),
    "max_retries": (5, {"0": 0, "1000": 1000}, (*NO_NUMBER, 1001, None)),
    "base_backoff_ms": (100, {"1": 1, "60000": 60_000}, (*NO_NUMBER, 0, 60_001)),
    "max_backoff_ms": (10_000, {"1": 1, "600000": 600_000}, (*NO_NUMBER, 0, 600_001)),
    "retry_budget": ("ratio", {"Tokens": "tokens", "off": "off"}, (None, True, 1, "none")),
    "overload_retargeting": (None, ON, NO_BOOLEAN[:-1]),
    "circuit_breaker": ("off", {"on": "on", "Always": "always"}, (None, True, 1, "true")),
    "circuit_breaker_failure_rate": (0.5, {"0.01": 0.01, "1": 1}, (None, True, "0.5", 0, 1.01)),
    "circuit_breaker_window_s": (10.0, {"0.1": 0.1, "3600": 3600}, (None, "1", 0, 3601)),
    "circuit_breaker_minimum_calls": (20, {"1": 1, "1000000": 1_000_000}, (*NO_NUMBER, 0)),
    "circuit_breaker_open_s": (5.0, {"0.1": 0.1, "3600": 3600}, (None, "1", 0, 3601)),
    "disabled_recovery": ((), {"two": ("woken_checks", "quick_checks")},
                          (None, True, "quick_checks", (1,), ("all",))),
    "dead_peer_s": (5, {"0": 0, "3600": 3600}, (*NO_NUMBER, 3601, "5s")),
    "traces": (True, ON, NO_BOOLEAN),
    "command_spans": ("on_retry", {"ALWAYS": "always", "never": "never"}, (None, True, "some")),
    "query_text": ("sanitized", {"OFF": "off", "Sanitized": "sanitized"}, (None, True, "full")),
    "slow_ms": (None, {"0": 0, "500": 500}, (*NO_NUMBER, "1s")),
    "command_comment": (False, ON, NO_BOOLEAN),
    "metrics": (True, {"all": "all", "By_Database": "by_database", **ON},
                (None, 2, "some", ("all",))),
}  # fmt: skip
"""Each option's default, good values by how a variable has them, and bad ones."""


def variable(name: str) -> str:
    return PREFIX + name.upper()


def toml(value: Any) -> str:
    """``value`` as it stands in a TOML file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "resilience.toml"


def test_the_defaults() -> None:
    defaults = {name: row[0] for name, row in TABLE.items()} | {"policies": {}}
    assert {field.name: getattr(Config(), field.name) for field in fields(Config)} == defaults
    assert Config.from_env({}) == Config()
    # An empty variable is an unset one, and somebody else's is not ours.
    empty = {option.variable: " " for option in OPTIONS} | {FILE_VARIABLE: "", "PATH": "/"}
    assert Config.from_env(empty) == Config()


def test_instrument_takes_each_by_keyword_with_the_same_type() -> None:
    types = get_type_hints(Config)
    own = {"strategy", "policies"}
    assert get_type_hints(Options) == {name: types[name] for name in types if name not in own}


@pytest.mark.parametrize("name", TABLE)
def test_good_values_from_everywhere(name: str, file: Path) -> None:
    """In a variable also in capitals."""
    _, good, _ = TABLE[name]
    for text, value in good.items():
        expected = Config(**{name: value})
        assert getattr(expected, name) == value
        file.write_text(f"{name} = {toml(value)}\n")
        assert Config.from_toml(file) == Config.from_toml(str(file)) == expected
        assert Config.from_env({FILE_VARIABLE: str(file)}) == expected
        if name not in NO_VARIABLE:
            assert Config.from_env({variable(name): text}) == expected


@pytest.mark.parametrize(
    "config",
    [Config(), pickle.loads(pickle.dumps(Config()))],  # noqa: S301 - our own
)
def test_default_values_are_plain_strings(config: Config) -> None:
    """An application prints, pickles and compares them."""
    texts = [value for name in TABLE if isinstance(value := getattr(config, name), str)]
    assert texts
    assert {type(each) for each in texts} == {str}
    assert "<" not in repr(config)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_type_reads_the_text_that_is_shown_of_its_values(option: Option) -> None:
    _, good, _ = TABLE[option.name]
    for value in good.values():
        assert option.kind.read(as_text(value)) == value


@pytest.mark.parametrize("name", TABLE)
def test_bad_values_are_named_with_their_range(name: str, file: Path) -> None:
    allowed, (_, good, bad) = RANGES[name], TABLE[name]
    for value in bad:
        with pytest.raises(ConfigurationError) as caught:
            Config(**{name: value})
        assert caught.value.problems == (f"{name}={value!r}: expected {allowed}",)
        assert caught.value.problems[0] in str(caught.value)
        if value is not None:
            file.write_text(f"{name} = {toml(value)}\n")
            with pytest.raises(ConfigurationError) as caught:
                Config.from_toml(file)
            assert caught.value.problems == (f"{file}: {name}={value!r}: expected {allowed}",)
        # A boolean is legal as the text of a variable where 1 is.
        if name not in NO_VARIABLE and not (value is True and "1" in good):
            with pytest.raises(ConfigurationError) as caught:
                Config.from_env({variable(name): str(value)})
            problem = f"{variable(name)}={str(value)!r}: expected {allowed}"
            assert caught.value.problems == (problem,)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301 - our own
def test_its_error_survives_copy_and_pickle(again: Any) -> None:
    error = ConfigurationError(["first", "second"])
    made = again(error)
    assert (type(made), str(made), made.problems) == (type(error), str(error), error.problems)


def test_all_bad_values_are_reported_at_once(file: Path) -> None:
    file.write_text('metrics = "often"\nbase_backoff_ms = 0\n')
    with pytest.raises(ConfigurationError) as caught:
        Config.from_env(
            {
                FILE_VARIABLE: str(file),
                "PYMONGO_RESILIENCE_STRATEGY": "luck",
                "PYMONGO_RESILIENCE_TIMEOUT_MS": "soon",
                "PYMONGO_RESILIENCE_TRACES": "true",
            }
        )
    assert [problem.split(": expected ")[0] for problem in caught.value.problems] == [
        f"{file}: metrics='often'",
        f"{file}: base_backoff_ms=0",
        "PYMONGO_RESILIENCE_STRATEGY='luck'",
        "PYMONGO_RESILIENCE_TIMEOUT_MS='soon'",
    ]
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_a_variable_wins_over_the_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text('strategy = "mongodb"\ntimeout_ms = 1000\n')
    config = Config.from_env({variable("timeout_ms"): "2000", FILE_VARIABLE: str(file)})
    assert config == Config(strategy="mongodb", timeout_ms=2000)
    assert caplog.records == [], "the variable that names the file is a known one"


KEPT = "Unless that option is set elsewhere, its default applies"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TIMOUT_MS", f"; did you mean PYMONGO_RESILIENCE_TIMEOUT_MS? {KEPT}: unset"),
        ("TRACE", f"; did you mean PYMONGO_RESILIENCE_TRACES? {KEPT}: true"),
        ("CONFIG_FILE", "; did you mean PYMONGO_RESILIENCE_CONFIG?"),
        ("GEARBOX_LEVER", ""),
    ],
)
def test_an_unknown_variable_is_a_warning(
    name: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config.from_env({variable(name): "5"}) == Config()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pymongo_resilience", logging.WARNING)
    assert record.getMessage() == f"unknown variable {variable(name)} is ignored{hint}"


def test_an_unknown_key_is_a_warning_with_the_nearest_name(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("max_retrys = 3\nPYMONGO_RESILIENCE_TRACES = true\n[nothing_like_it]\n")
    assert Config.from_toml(file) == Config()
    near, prefixed, unlike = (set(record.getMessage().split()) for record in caplog.records)
    assert {str(file), "max_retrys", "max_retries?"} <= near
    assert {variable("TRACES"), "traces?"} <= prefixed
    assert {str(file), "nothing_like_it"} <= unlike


def test_the_environment_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMONGO_RESILIENCE_MAX_RETRIES", "3")
    assert Config.from_env().max_retries == 3


@pytest.mark.parametrize(
    "content",
    [
        b"strategy = ",
        b"= 1",
        b"\xff\xfe",
        b"timeout_ms = 1\ntimeout_ms = 2\n",
        b"timeout_ms = " + b"9" * 5000,
        b"timeout_ms = " + b"[" * 100_000,
    ],
    ids=["no value", "no key", "not UTF-8", "twice", "a number too long", "too deep"],
)
def test_an_invalid_file_is_a_configuration_error(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        Config.from_toml(file)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: expected a readable TOML file: ")
    with pytest.raises(ConfigurationError):
        Config.from_env({FILE_VARIABLE: str(file)})


@pytest.mark.parametrize(
    "name", ["missing.toml", "", "\0", "x" * 9000], ids=["missing", "a folder", "NUL", "too long"]
)
def test_an_unreadable_file_is_a_configuration_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a readable TOML file"):
        Config.from_env({FILE_VARIABLE: f"{tmp_path}/{name}"})


def test_a_bad_file_does_not_hide_a_bad_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_env({FILE_VARIABLE: str(tmp_path), variable("strategy"): "luck"})
    assert len(caught.value.problems) == 2


def test_a_config_cannot_be_changed_and_takes_keywords_alone() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().timeout_ms = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Config(False)  # type: ignore[misc]


@pytest.mark.parametrize("make", [Config, instrument])
def test_an_unknown_keyword_is_one_error_with_the_nearest_and_all_that_exist(make: Any) -> None:
    with pytest.raises(TypeError) as caught:
        make(timeout_ms=5, timeout=5, gearbox=1)
    text = str(caught.value)
    assert "has no timeout; did you mean timeout_ms?, no gearbox (it has enabled, " in text
    assert all(option.name in text for option in OPTIONS)


@pytest.mark.parametrize("name", sorted(NO_VARIABLE))
def test_a_variable_of_an_option_of_files_is_ignored_and_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config.from_env({variable(name): "1"}) == Config()
    assert caplog.messages == [f"{variable(name)} is ignored: only code or a file can set {name}"]


@pytest.mark.parametrize(
    ("name", "text", "value"), [("enabled", "false", False), ("strategy", "driver", "driver")]
)
def test_the_variable_of_a_switch_wins_over_code(
    name: str, text: str, value: object, file: Path
) -> None:
    file.write_text("timeout_ms = 8\nmax_retries = 3\n")
    environ = {variable(name): text, variable("timeout_ms"): "soon", FILE_VARIABLE: str(file)}
    code = Config(timeout_ms=5, strategy="mongodb")
    whole = load(environ, code)
    assert whole.config == replace(code, **{name: value})
    assert whole.sources == {name: variable(name)}
    assert whole.overridden == (FILE_VARIABLE, variable("timeout_ms"))
    some = load(environ, {"timeout_ms": 5, "strategy": "mongodb"})
    assert some.config == replace(code, **{name: value, "max_retries": 3})
    assert some.sources == {name: variable(name), "max_retries": str(file)}
    assert some.overridden == tuple(sorted([str(file), variable("timeout_ms")]))


def test_a_switch_with_a_wrong_value_is_an_error_also_beside_code() -> None:
    with pytest.raises(ConfigurationError, match="ENABLED='fasle': expected true"):
        load({variable("enabled"): "fasle"}, Config())
