"""Every option from everywhere it can come from, and everything that can be wrong with it."""

from __future__ import annotations

import copy
import logging
import pickle
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from pymongo_resilience import instrument
from pymongo_resilience.breakers import BreakerSettings
from pymongo_resilience.config import FILE_VARIABLE, OPTIONS, PREFIX, Config, Option, Options, load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NO_VARIABLE = {option.name for option in OPTIONS if not option.has_variable}
"""Options of code and files alone."""
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "strategy": "fast_fail",
    "timeout_ms": None,
    "timeout_mode": None,
    "max_retries": 5,
    "base_backoff_ms": 100,
    "max_backoff_ms": 10_000,
    "retry_budget": "ratio",
    "load_shedding": False,
    "overload_retargeting": None,
    "circuit_breaker": "off",
    "circuit_breaker_failure_rate": 0.5,
    "circuit_breaker_window_s": 10.0,
    "circuit_breaker_minimum_calls": 20,
    "circuit_breaker_open_s": 5.0,
    "attempt_timeout_ms": None,
    "disabled_recovery": (),
    "dead_peer_s": 5,
    "traces": True,
    "command_spans": "on_retry",
    "slow_ms": None,
    "metrics": True,
}
BOOLEANS = (
    *(name for name, default in DEFAULTS.items() if isinstance(default, bool)),
    "overload_retargeting",
)
BOOLEANS = tuple(name for name in BOOLEANS if name != "metrics")
GOOD: list[tuple[str, str, Any]] = [
    *((name, text, value)
      for name in BOOLEANS
      for text, value in (("1", True), ("true", True), ("YES", True), ("On", True), (" on ", True),
                          ("0", False), ("false", False), ("No", False), ("OFF", False))),
    *(("strategy", name, name) for name in ("fast_fail", "best_effort", "mongodb", "driver")),
    *((name, text, text.lower())
      for name, text in (("strategy", "MongoDB"), ("strategy", "FAST_FAIL"),
                         ("timeout_mode", "Iteration"),
                         ("circuit_breaker", "Always"))),
    *(("slow_ms", str(number), number) for number in (0, 500)),
    *(("timeout_ms", str(number), number) for number in (0, 1, 20_000, 2_147_483_647)),
    *(("timeout_mode", name, name) for name in ("cursor_lifetime", "iteration")),
    *(("max_retries", str(number), number) for number in (0, 5, 1000)),
    *(("retry_budget", name, name) for name in ("ratio", "tokens", "off")),
    *(("base_backoff_ms", str(number), number) for number in (1, 60_000)),
    *(("max_backoff_ms", str(number), number) for number in (1, 600_000)),
    *(("circuit_breaker", name, name) for name in ("off", "on", "always")),
    *(("circuit_breaker_failure_rate", text, float(text)) for text in ("0.01", "0.25", "1", "1.0")),
    *((f"circuit_breaker_{name}_s", text, float(text))
      for name in ("window", "open") for text in ("0.1", "30", "2.5", "3600")),
    *(("circuit_breaker_minimum_calls", str(number), number) for number in (1, 1_000_000)),
    *(("command_spans", name, name) for name in ("always", "on_retry", "never")),
    *(("metrics", text, value)
      for text, value in (("all", "all"), ("By_Database", "by_database"), ("1", True),
                          ("off", False))),
    *(("dead_peer_s", str(number), number) for number in (0, 1, 3600)),
    *(("attempt_timeout_ms", str(number), number) for number in (1, 300, 2_147_483_647)),
    *(("disabled_recovery", text, names)
      for text, names in (("quick_checks", ("quick_checks",)),
                          ("WOKEN_CHECKS, quick_checks", ("woken_checks", "quick_checks")))),
]  # fmt: skip
BAD: list[tuple[str, str, str]] = [
    *((name, text, "true or false")
      for name in BOOLEANS if name != "overload_retargeting"
      for text in ("2", "ture", "None", "y")),
    *(("strategy", text, "one of fast_fail, best_effort, mongodb, driver")
      for text in ("fastfail", "FAST-FAIL", "fast_fail,mongodb")),
    *(("timeout_ms", text, "an integer from 0 to 2147483647")
      for text in ("-1", "2147483648", "1.5", "20s", "None", "1e3")),
    *(("slow_ms", text, "an integer from 0 to 2147483647") for text in ("-1", "0.5", "1s")),
    *(("max_retries", text, "an integer from 0 to 1000") for text in ("-1", "1001", "5.0", "true")),
    *(("retry_budget", text, "one of ratio, tokens, off") for text in ("none", "true", "10")),
    *(("circuit_breaker", text, "one of off, on, always") for text in ("true", "1", "YES")),
    *(("command_spans", text, "one of always, on_retry, never") for text in ("retry", "true")),
    *(("metrics", text, "all, by_database or true or false")
      for text in ("some", "2")),
    *(("attempt_timeout_ms", text, "an integer from 1 to 2147483647")
      for text in ("0", "-1", "1.5")),
    *(("dead_peer_s", text, "an integer from 0 to 3600") for text in ("-1", "3601", "1.5", "5s")),
]  # fmt: skip
WRONG_TYPES: list[tuple[str, Any]] = [
    *((name, value)
      for name in BOOLEANS
      for value in (1, 0, "true", *(() if DEFAULTS[name] is None else (None,)))),
    *(("strategy", value) for value in (None, 1, ["mongodb"], "none")),
    *(("timeout_ms", value) for value in (True, 1.0, "1", -1)),
    *(("slow_ms", value) for value in (True, 1.0, "1", -1)),
    *(("timeout_mode", value) for value in (True, 1, "none", ["iteration"])),
    *((name, value)
      for name in ("max_retries", "base_backoff_ms", "max_backoff_ms",
                   "circuit_breaker_minimum_calls", "dead_peer_s")
      for value in (None, True, 1.0, "1", -1)),
    *(("retry_budget", value) for value in (None, True, 1, ["off"])),
    *(("circuit_breaker", value) for value in (None, True, False, 1, "true")),
    *(("command_spans", value) for value in (None, True, "some")),
    *(("metrics", value) for value in (None, 1, "some", "true", ["all"])),
    *(("attempt_timeout_ms", value) for value in (True, 1.0, "1", -1, 0)),
    *(("disabled_recovery", value) for value in (None, True, "quick_checks", [1], ["all"])),
    *((f"circuit_breaker_{name}", value)
      for name in ("failure_rate", "window_s", "open_s") for value in (None, True, "1", -1, 0)),
]  # fmt: skip


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
    defaults = {**DEFAULTS, "policies": {}}
    assert {field.name: getattr(Config(), field.name) for field in fields(Config)} == defaults
    assert Config.from_env({}) == Config()


def test_a_breaker_of_its_own_defaults_is_that_of_the_options() -> None:
    breaker = BreakerSettings()
    assert Config() == Config(
        circuit_breaker_failure_rate=breaker.failure_rate,
        circuit_breaker_window_s=breaker.window,
        circuit_breaker_minimum_calls=breaker.minimum_calls,
        circuit_breaker_open_s=breaker.open_for,
    )


def test_the_number_of_probes_is_what_the_table_says() -> None:
    (option,) = (option for option in OPTIONS if option.name == "circuit_breaker_open_s")
    assert BreakerSettings().probes == 3
    assert "three probes" in option.sentence


def test_the_table_has_each_option_once_with_its_sentence() -> None:
    # Rules for namespaces are no option: no variable could have them.
    names = [field.name for field in fields(Config) if field.name != "policies"]
    assert [option.name for option in OPTIONS] == names
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)
    sentences = [option.sentence for option in OPTIONS]
    assert len(set(sentences)) == len(sentences)
    for option in OPTIONS:
        assert option.variable == "PYMONGO_RESILIENCE_" + option.name.upper()
        assert option.default == DEFAULTS[option.name]
        assert option.kind.legal(option.default), option.name
        assert option.kind.allowed
        assert option.sentence[0].isupper()
        assert option.sentence.endswith(".")


def test_instrument_takes_each_by_keyword_with_the_same_type() -> None:
    types = get_type_hints(Config)
    own = {"strategy", "policies"}
    assert get_type_hints(Options) == {name: types[name] for name in types if name not in own}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_tested_below(option: Option) -> None:
    """With a value that is not its default, or nothing would be proved; and with a bad one."""
    assert any(name == option.name and value != option.default for name, _, value in GOOD)
    assert option.name in NO_VARIABLE or any(name == option.name for name, _, _ in BAD)
    assert any(name == option.name for name, _ in WRONG_TYPES)


@pytest.mark.parametrize(
    ("name", "text", "value"), [row for row in GOOD if row[0] not in NO_VARIABLE]
)
def test_from_a_variable(name: str, text: str, value: Any) -> None:
    assert Config.from_env({variable(name): text}) == Config(**{name: value})
    assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_from_a_file(name: str, text: str, value: Any, file: Path) -> None:
    file.write_text(f"{name} = {toml(value)}\n")
    assert Config.from_toml(file) == Config(**{name: value})
    assert Config.from_toml(str(file)) == Config(**{name: value})
    assert Config.from_env({FILE_VARIABLE: str(file)}) == Config(**{name: value})


@pytest.mark.parametrize(
    ("name", "text", "allowed"), BAD, ids=[f"{name}={text:.30}" for name, text, _ in BAD]
)
def test_a_bad_variable_is_named_with_value_and_range(name: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_env({variable(name): text})
    assert caught.value.problems == (f"{variable(name)}={text!r}: expected {allowed}",)
    assert caught.value.problems[0] in str(caught.value)


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES)
def test_a_bad_keyword_is_named_with_value_and_range(name: str, value: Any) -> None:
    allowed = next(option.kind.allowed for option in OPTIONS if option.name == name)
    with pytest.raises(ConfigurationError) as caught:
        Config(**{name: value})
    assert caught.value.problems == (f"{name}={value!r}: expected {allowed}",)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, value in WRONG_TYPES if value is not None]
)
def test_a_bad_line_of_a_file_is_named(name: str, value: Any, file: Path) -> None:
    allowed = next(option.kind.allowed for option in OPTIONS if option.name == name)
    file.write_text(f"{name} = {toml(value)}\n")
    with pytest.raises(ConfigurationError) as caught:
        Config.from_toml(file)
    assert caught.value.problems == (f"{file}: {name}={value!r}: expected {allowed}",)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301 - our own
def test_its_error_survives_copy_and_pickle(again: Any) -> None:
    error = ConfigurationError(["first", "second"])
    made = again(error)
    assert (type(made), str(made), made.problems) == (type(error), str(error), error.problems)


CAPITALS: dict[str, Any] = {
    "strategy": "BEST_EFFORT",
    "timeout_mode": "Iteration",
    "circuit_breaker": "ON",
    "disabled_recovery": ["QUICK_CHECKS"],
}


@pytest.mark.parametrize("name", CAPITALS)
def test_names_may_be_in_capitals_wherever_they_stand(name: str, file: Path) -> None:
    value = CAPITALS[name]
    small = value.lower() if isinstance(value, str) else (value[0].lower(),)
    text = value if isinstance(value, str) else value[0]
    file.write_text(f"{name} = {toml(value)}\n")
    expected = Config(**{name: small})
    assert getattr(expected, name) == small
    assert Config(**{name: value}) == expected
    assert Config.from_toml(file) == expected
    if name not in NO_VARIABLE:
        assert Config.from_env({variable(name): text}) == expected


def test_names_in_rules_may_be_in_capitals(file: Path) -> None:
    rule = '[policies."*.*"]\nstrategy = "MongoDB"\ntimeout_mode = "ITERATION"\n'
    file.write_text(rule)
    policy = Policy(strategy=NAMED["mongodb"], timeout_mode="iteration")
    assert Config.from_toml(file).policies == {"*.*": policy}


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


def test_all_bad_keywords_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config(strategy="luck", max_retries=-1)
    assert len(caught.value.problems) == 2


def test_a_variable_wins_over_the_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text('strategy = "mongodb"\ntimeout_ms = 1000\n')
    config = Config.from_env({variable("timeout_ms"): "2000", FILE_VARIABLE: str(file)})
    assert config == Config(strategy="mongodb", timeout_ms=2000)
    assert caplog.records == [], "the variable that names the file is a known one"


def test_no_file_is_named_by_an_empty_variable() -> None:
    assert Config.from_env({FILE_VARIABLE: ""}) == Config()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TIMEOUT", "TIMEOUT_MS"),
        ("STRATGEY", "STRATEGY"),
        ("CONFIG_FILE", "CONFIG"),
        ("TRACE", "TRACES"),
    ],
)
def test_an_unknown_variable_is_a_warning(
    name: str, nearest: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config.from_env({variable(name): "whatever"}) == Config()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pymongo_resilience", logging.WARNING)
    assert {variable(name), f"{variable(nearest)}?"} <= set(record.getMessage().split())


def test_an_unknown_key_is_a_warning_with_the_nearest_name(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("max_retrys = 3\nPYMONGO_RESILIENCE_TRACES = true\n[nothing_like_it]\n")
    assert Config.from_toml(file) == Config()
    near, prefixed, unlike = (set(record.getMessage().split()) for record in caplog.records)
    assert {str(file), "max_retrys", "max_retries?"} <= near
    assert {variable("TRACES"), "traces?"} <= prefixed
    assert {str(file), "nothing_like_it"} <= unlike


def test_other_peoples_variables_are_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    others = {"PATH": "/", "PYMONGO_TIMEOUT_MS": "1", "pymongo_resilience_traces": "maybe"}
    assert Config.from_env(others) == Config()
    assert caplog.records == []


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


def test_a_number_too_long_for_python_is_a_bad_value() -> None:
    with pytest.raises(ConfigurationError, match="expected an integer from 0 to 2147483647"):
        Config.from_env({variable("timeout_ms"): "9" * 5000})


def test_a_bad_file_does_not_hide_a_bad_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_env({FILE_VARIABLE: str(tmp_path), variable("strategy"): "luck"})
    assert len(caught.value.problems) == 2


def test_a_configuration_error_is_a_value_error() -> None:
    assert issubclass(ConfigurationError, ValueError)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().timeout_ms = 1  # type: ignore[misc]


def test_options_come_by_keyword_only() -> None:
    with pytest.raises(TypeError):
        Config(False)  # type: ignore[misc]


@pytest.mark.parametrize("make", [Config, instrument])
def test_an_unknown_keyword_is_one_error_with_the_nearest_and_all_that_exist(make: Any) -> None:
    with pytest.raises(TypeError) as caught:
        make(timeout_ms=5, timeout=5, gearbox=1)
    text = str(caught.value)
    assert "has no timeout; did you mean timeout_ms?, no gearbox (it has enabled, " in text
    assert all(option.name in text for option in OPTIONS)


variables = st.sampled_from([option.variable for option in OPTIONS]) | st.text().map(PREFIX.__add__)
values = (
    st.text()
    | st.integers().map(str)
    | st.sampled_from([text for _, text, _ in GOOD])
    | st.floats().map(str)
)


def made(make: Callable[[], Config]) -> Config | ConfigurationError:
    """What ``make`` gives or raises; any other exception fails the test."""
    try:
        return make()
    except ConfigurationError as error:
        return error


@given(environ=st.dictionaries(variables, values, max_size=6))
def test_any_text_in_any_variable(environ: dict[str, str]) -> None:
    environ.pop(FILE_VARIABLE, None)
    config = made(lambda: Config.from_env(environ))
    if isinstance(config, Config):
        assert all(option.kind.legal(getattr(config, option.name)) for option in OPTIONS)
    else:
        assert config.problems
        assert all(problem.split("=")[0] in environ for problem in config.problems)


@given(path=st.text(st.characters(exclude_characters="/"), max_size=300))
def test_any_text_as_the_name_of_a_file(path: str) -> None:
    if not path:
        return
    with pytest.raises(ConfigurationError):
        Config.from_env({FILE_VARIABLE: f"missing-folder/{path}"})


lines = st.builds(
    "{} = {}".format,
    st.sampled_from([option.name for option in OPTIONS]),
    values.map(toml) | st.integers().map(str) | st.sampled_from(["true", "[]", "{}", "1979-05-27"]),
)


documents = st.lists(lines, max_size=4).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(content=b"disabled_recovery = []")
@example(content=b"disabled_recovery = []\ndisabled_recoveri = 1")
@given(content=st.binary(max_size=80) | documents.map(lambda text: text.encode(errors="replace")))
def test_any_bytes_in_the_file(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    config = made(lambda: Config.from_toml(file))
    if isinstance(config, Config):
        document = tomllib.loads(content.decode())
        for option in OPTIONS:
            said = option.kind.normal(document.get(option.name, option.default))
            assert getattr(config, option.name) == said
    else:
        assert config.problems
        assert all(str(file) in problem for problem in config.problems)


def test_an_empty_variable_is_an_unset_one() -> None:
    empty = {option.variable: " " for option in OPTIONS} | {FILE_VARIABLE: ""}
    assert Config.from_env(empty) == Config()


def test_the_nearest_name_is_near_in_what_tells_names_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Config.from_env({"PYMONGO_RESILIENCE_GEARBOX_LEVER": "true"})
    assert "did you mean" not in caplog.text
    Config.from_env({"PYMONGO_RESILIENCE_TIMEOUT": "1"})
    assert "did you mean PYMONGO_RESILIENCE_TIMEOUT_MS?" in caplog.text


def test_few_options_have_a_variable() -> None:
    assert len([option for option in OPTIONS if option.has_variable]) == 13


@pytest.mark.parametrize("name", sorted(NO_VARIABLE))
def test_a_variable_of_an_option_of_files_is_ignored_and_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config.from_env({variable(name): "1"}) == Config()
    assert caplog.messages == [f"{variable(name)} is ignored: only code or a file can set {name}"]


@pytest.mark.parametrize(
    ("name", "text", "value"), [("enabled", "false", False), ("strategy", "driver", "driver")]
)
def test_the_variable_of_a_switch_wins_over_code(name: str, text: str, value: object) -> None:
    code = Config(timeout_ms=5, strategy="mongodb")
    environ = {variable(name): text, variable("timeout_ms"): "7", FILE_VARIABLE: "x.toml"}
    loaded = load(environ, code)
    assert loaded.config == replace(code, **{name: value})
    assert loaded.sources == {name: variable(name)}
    assert loaded.overridden == (FILE_VARIABLE, variable("timeout_ms"))


def test_a_switch_with_a_wrong_value_is_an_error_also_beside_code() -> None:
    environ = {variable("enabled"): "fasle", variable("timeout_ms"): "soon"}
    with pytest.raises(ConfigurationError, match="ENABLED='fasle': expected true") as caught:
        load(environ, Config())
    assert "TIMEOUT" not in str(caught.value)
