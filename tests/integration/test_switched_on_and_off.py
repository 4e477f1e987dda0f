"""One line of the log when the library is switched on, and one when it stays off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor

import pymongo_resilience
from pymongo_resilience import Config, ConfigurationError, __version__
from pymongo_resilience.strategies import BestEffort
from pymongo_resilience.testing import is_active

pytestmark = pytest.mark.oldest
Lines = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    """Level and text of what was logged of the switch since the last time."""

    def told() -> list[tuple[str, str]]:
        found = [
            (each.levelname, each.getMessage())
            for each in caplog.records
            if "created before instrument()" not in each.getMessage()
            and "lacks" not in each.getMessage()
        ]
        caplog.clear()
        return found

    with caplog.at_level(logging.INFO, "pymongo_resilience"):
        yield told
    if is_active():
        pymongo_resilience.uninstrument()


def _on(strategy: str, timeout: str, source: str) -> tuple[str, str]:
    return (
        "INFO",
        (
            f"pymongo-resilience {__version__} is on: pymongo {pymongo.version}, "
            f"strategy {strategy}, timeout {timeout}, configuration from {source}"
        ),
    )


def _load() -> None:
    """As OpenTelemetry's loader does it."""
    PymongoResilienceInstrumentor().instrument(skip_dep_check=True)


@pytest.mark.parametrize("switch_on", [pymongo_resilience.instrument, _load])
def test_it_says_what_holds_and_where_that_comes_from(
    switch_on: Callable[[], None], lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch_on()
    assert lines() == [_on("fast_fail", "none", "defaults")]
    pymongo_resilience.uninstrument()

    monkeypatch.setenv("PYMONGO_RESILIENCE_TIMEOUT_MS", "750")
    switch_on()
    named = "variable PYMONGO_RESILIENCE_TIMEOUT_MS"
    assert lines() == [_on("fast_fail", "750 ms", named)]
    pymongo_resilience.uninstrument()

    file = tmp_path / "resilience.toml"
    file.write_text('strategy = "mongodb"\n')
    monkeypatch.setenv("PYMONGO_RESILIENCE_CONFIG", str(file))
    switch_on()
    assert lines() == [_on("mongodb", "750 ms", f"{named}, file {file}")]


def test_it_says_so_of_code_and_of_what_replaces_it(lines: Lines) -> None:
    pymongo_resilience.instrument(Config(timeout_ms=5))
    assert lines() == [_on("fast_fail", "5 ms", "code")]
    pymongo_resilience.instrument(Config(timeout_ms=5))
    assert lines() == []
    pymongo_resilience.instrument(Config(timeout_ms=6), strategy=BestEffort(), replace=True)
    assert lines() == [_on("BestEffort", "6 ms", "code")]


@pytest.mark.parametrize("switch_on", [pymongo_resilience.instrument, _load])
def test_it_says_that_it_stays_off(
    switch_on: Callable[[], None], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMONGO_RESILIENCE_ENABLED", "no")
    switch_on()
    assert lines() == [
        (
            "INFO",
            (
                f"pymongo-resilience {__version__} stays off, because enabled=False (configuration "
                "from variable PYMONGO_RESILIENCE_ENABLED)"
            ),
        )
    ]
    assert not is_active()


WRONG_OF_TELEMETRY = {"TRACES": "2", "METRICS": "often", "SLOW_MS": "soon"}


@pytest.mark.parametrize("option", WRONG_OF_TELEMETRY)
def test_for_the_loader_a_wrong_value_of_telemetry_is_the_default(
    option: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WRONG_OF_TELEMETRY[option]
    monkeypatch.setenv(f"PYMONGO_RESILIENCE_{option}", text)
    monkeypatch.setenv("PYMONGO_RESILIENCE_MAX_RETRIES", "3")
    _load()
    (level, complaint), (_, on) = lines()
    assert level == "ERROR"
    assert f"PYMONGO_RESILIENCE_{option}={text!r}: expected" in complaint
    assert "the defaults of these options are used" in complaint
    assert "is on" in on
    config = pymongo_resilience.status(pymongo.MongoClient(connect=False)).config
    assert config == Config(max_retries=3)


def test_for_the_loader_wrong_values_switch_all_off(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMONGO_RESILIENCE_STRATEGY", "wrong")
    monkeypatch.setenv("PYMONGO_RESILIENCE_TRACES", "2")
    _load()
    ((level, complaint),) = lines()
    assert level == "ERROR"
    assert complaint.count(": expected") == 2
    assert "stays off" in complaint
    assert not is_active()


def test_for_the_application_a_wrong_value_is_an_error(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMONGO_RESILIENCE_TRACES", "wrong")
    with pytest.raises(ConfigurationError, match="TRACES"):
        pymongo_resilience.instrument()
    assert lines() == []
    assert not is_active()


@pytest.mark.parametrize(("option", "text"), [("ENABLED", "false"), ("STRATEGY", "driver")])
def test_the_emergency_switches_win_over_code(
    option: str, text: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PYMONGO_RESILIENCE_{option}", text)
    monkeypatch.setenv("PYMONGO_RESILIENCE_TIMEOUT_MS", "5")
    pymongo_resilience.instrument(Config(timeout_ms=20_000), strategy=BestEffort())
    said = "\n".join(text for _, text in lines())
    assert f"configuration from code, variable PYMONGO_RESILIENCE_{option}" in said
    assert "precedence over PYMONGO_RESILIENCE_TIMEOUT_MS" in said
    assert is_active() == (option == "STRATEGY")
    if option == "STRATEGY":
        assert "strategy driver, timeout 20000 ms" in said
