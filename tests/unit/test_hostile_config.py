"""Any environment and any file: a legal Config, or one error that names all that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, strategies as st
from support.hostile_input import examples

from pymongo_resilience.config import FILE_VARIABLE, OPTIONS, PREFIX, Config
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import problems_in
from pymongo_resilience.policies.namespaces import problems_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VARIABLES = [option.variable for option in OPTIONS if option.has_variable]
RANGES = {option.variable: option.kind.allowed for option in OPTIONS}
INTEGERS = {
    "PYMONGO_RESILIENCE_TIMEOUT_MS": range(2_147_483_648),
    "PYMONGO_RESILIENCE_MAX_RETRIES": range(1001),
    "PYMONGO_RESILIENCE_DEAD_PEER_S": range(3601),
    "PYMONGO_RESILIENCE_ATTEMPT_TIMEOUT_MS": range(1, 2_147_483_648),
    "PYMONGO_RESILIENCE_SLOW_MS": range(2_147_483_648),
}
STRATEGIES = {"fast_fail", "best_effort", "mongodb", "driver"}
WORDS = {"1", "true", "yes", "on", "0", "false", "no", "off"}
CHOICES = {
    "PYMONGO_RESILIENCE_CIRCUIT_BREAKER": {"off", "on", "always"},
    "PYMONGO_RESILIENCE_COMMAND_SPANS": {"always", "on_retry", "never"},
    "PYMONGO_RESILIENCE_METRICS": {"all", "by_database", *WORDS},
    "PYMONGO_RESILIENCE_RETRY_BUDGET": {"ratio", "tokens", "off"},
    "PYMONGO_RESILIENCE_STRATEGY": STRATEGIES,
}
ODD = (
    *("", " ", "\t\n", "\0", "5\0", "\ufeff5", "5\r\n", " 5 ", "+5", "-0", "005", "1_000", "1__0"),
    *("\u0663", "\uff15", "\u00b2", "1e3", "inf", "nan", "0x10", "5.0", "9" * 5000, "\udcff", "%s"),
    *("TRUE", "\u212aes", "oN", "ye\u017f", "'true'", '"mongodb"', "mongodb ", "MongoDB", "None"),
)
values = (
    st.sampled_from(ODD)
    | st.text(max_size=6)
    | st.integers(-2, 2**31).map(str)
    | st.sampled_from(sorted(STRATEGIES | WORDS))
)


def outcome(make: Callable[[], Config]) -> Config | ConfigurationError:
    """What ``make`` gives or raises; any other exception fails the test."""
    try:
        return make()
    except ConfigurationError as error:
        return error


def is_legal(variable: str, text: str) -> bool:
    """The table of options in other words."""
    text = text.strip()
    if not text:
        return True  # as if it were unset
    if variable in INTEGERS:
        digits = text.lstrip("+-")
        plausible = len(digits) < 20 and text.count("-") + text.count("+") <= 1
        try:
            return plausible and int(text) in INTEGERS[variable]
        except ValueError:
            return False
    return text.lower() in CHOICES.get(variable, WORDS)


@examples(100)
@given(environ=st.dictionaries(st.sampled_from(VARIABLES), values, max_size=9))
def test_exactly_the_bad_variables_are_named(environ: dict[str, str]) -> None:
    made = outcome(lambda: Config.from_env(environ))
    bad = [name for name, text in environ.items() if not is_legal(name, text)]
    if isinstance(made, Config):
        assert bad == []
        assert problems_in(made) == []
    else:
        assert list(made.problems) == [
            f"{name}={environ[name]!r}: expected {RANGES[name]}" for name in bad
        ]


@examples(50)
@given(
    name=st.text(max_size=30) | st.sampled_from(VARIABLES).map(lambda name: name.lower()),
    text=values,
)
def test_an_unknown_variable_is_never_an_error(name: str, text: str) -> None:
    assume(PREFIX + name not in {*VARIABLES, FILE_VARIABLE})
    assert Config.from_env({PREFIX + name: text}) == Config()


toml_values = st.one_of(
    st.integers().map(str),
    st.sampled_from(
        [
            *("true", "false", "inf", "-inf", "nan", "+nan", "1_000", "1e3", "0x10", "0b11", "0o7"),
            *(
                "{}",
                "1979-05-27",
                "07:32:00",
                "'mongodb'",
                '"""mongodb"""',
                "'\u0663'",
                '"\\u0000"',
            ),
            *("0x" + "f" * 5000, "-1", "[[[[]]]]", "[]", "{a = {b = 0}}", "1.0", "''"),
        ]
    ),
)
lines = st.builds(
    "{} = {}".format,
    st.sampled_from([*(option.name for option in OPTIONS), "policies", "policies.'shop.*'"])
    | st.sampled_from(["idempotent", "data", "policies.shop"])
    | st.sampled_from(["'\u0000'", '""', '"a\\nb"', "a.b.c", "\u0663"]),
    toml_values,
)
sections = st.sampled_from(
    [
        *("[a]", "[[a]]", "[timeout_ms]", "[strategy.driver]", "# comment", ""),
        *("[policies]", "[policies.'shop.*']", "[policies.shop.orders]", "[policies.''.data]"),
    ]
)
contents = st.builds(
    lambda start, texts, newline: (start + newline.join(texts)).encode(errors="replace"),
    st.sampled_from(["", "", "", "\ufeff"]),
    st.lists(lines | sections, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
)


@examples(80)
@given(content=contents | st.binary(max_size=40))
def test_any_file_is_legal_or_one_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "resilience.toml"
    file.write_bytes(content)
    made = outcome(lambda: Config.from_toml(file))
    assert type(outcome(lambda: Config.from_env({FILE_VARIABLE: str(file)}))) is type(made)
    if isinstance(made, Config):
        assert problems_in(made) == []
        assert problems_of(made.policies) == []
    else:
        assert made.problems
        assert all(problem.startswith(f"{file}: ") for problem in made.problems)


class Unprintable:
    def __repr__(self) -> str:
        raise LookupError("a user's class with a mistake")

    __eq__ = __hash__ = __bool__ = __repr__  # type: ignore[assignment]  # on purpose


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
@pytest.mark.parametrize(
    "value", [Unprintable(), 16**5000, [16**5000]], ids=["object", "number", "list"]
)
def test_a_value_that_cannot_be_printed_is_a_bad_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=.*: expected "):
        Config(**{name: value})
