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
NO_VALUE = (
    *(
        "\0",
        "5\0",
        "\ufeff5",
        "1__0",
        "_1",
        "1_",
        "\u00b2",
        "1e3x",
        "inf",
        "nan",
        "0x10",
        "1" * 5000,
    ),
    *("\udcff", "%s", "\u212aes", "ye\u017f", "'true'", '"mongodb"', "None", "2 5", "-", "+"),
)
"""None is the text of a value, of whatever option; a superscript is no digit."""
SPACES = ("", " ", "\t\n", "\r\n")


def outcome(make: Callable[[], Config]) -> Config | ConfigurationError:
    """What ``make`` gives or raises; any other exception fails the test."""
    try:
        return make()
    except ConfigurationError as error:
        return error


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS if each.has_variable], ids=lambda each: each.name
)
def test_an_odd_text_is_one_error_and_white_space_is_nothing(option: Any) -> None:
    name = option.variable
    for text in NO_VALUE:
        made = outcome(lambda text=text: Config.from_env({name: text}))
        assert isinstance(made, ConfigurationError), text
        assert made.problems == (f"{name}={text!r}: expected {option.kind.allowed}",)
    for text in SPACES:
        assert Config.from_env({name: text}) == Config()


def test_exactly_the_bad_variables_are_named() -> None:
    made = outcome(lambda: Config.from_env(dict.fromkeys(VARIABLES, "%s") | {VARIABLES[1]: " "}))
    assert isinstance(made, ConfigurationError)
    named = [problem.partition("=")[0] for problem in made.problems]
    assert sorted(named) == sorted({*VARIABLES} - {VARIABLES[1]})


@examples(50)
@given(
    name=st.text(max_size=30) | st.sampled_from(VARIABLES).map(lambda name: name.lower()),
    text=st.sampled_from(NO_VALUE) | st.text(max_size=6),
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
