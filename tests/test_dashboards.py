"""The files for Grafana and Prometheus: current, well-formed, and written out with care."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.dashboards import DASHBOARD, FILES, RULES, content
from pymongo_resilience_instrumentation.tools.dashboards.panels import ROWS
from support.telemetry_names import NAMES

PROMTOOL = shutil.which("promtool")
RULE_TESTS = Path(__file__).parent / "prometheus" / "rules_test.yml"
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="needs promtool: install Prometheus (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [str(PROMTOOL), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough("needs Prometheus")
@needs_promtool
def test_the_rules_are_well_formed(tmp_path: Path) -> None:
    (tmp_path / RULES).write_text(content(RULES))
    assert "SUCCESS" in promtool("check", "rules", tmp_path / RULES)


@pytest.mark.thorough("needs Prometheus")
@needs_promtool
def test_each_alert_fires_for_what_it_is_for_and_for_nothing_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULE_TESTS)


def test_each_alert_has_a_test_a_severity_and_a_runbook() -> None:
    _, *alerts = re.split(r"^      - alert: ", content(RULES), flags=re.MULTILINE)
    names = [alert.partition("\n")[0] for alert in alerts]
    assert sorted(names) == [
        "PymongoCircuitBreakerOpen",
        "PymongoDeadlineMisses",
        "PymongoFailureBudgetBurns",
        "PymongoFailureBudgetBurnsFast",
        "PymongoLatencyBudgetBurns",
        "PymongoLatencyBudgetBurnsFast",
        "PymongoNoPrimary",
        "PymongoPoolExhausted",
        "PymongoRetryBudgetExhausted",
        "PymongoRetryStorm",
    ]
    tests = RULE_TESTS.read_text()
    for name, alert in zip(names, alerts, strict=True):
        assert f'alertname="{name}"' in tests
        for part in ("severity: ", "summary: ", "description: ", "runbook: "):
            assert alert.count(part) == 1, (name, part)


def test_each_alert_leads_to_a_panel_of_the_dashboard() -> None:
    drawn: dict[str, Any] = json.loads(content(DASHBOARD))
    panels = {panel["id"] for panel in drawn["panels"] if panel["type"] != "row"}
    variables = {f"var-{variable['name']}" for variable in drawn["templating"]["list"]}
    links = re.findall(r'dashboard: "(.+)"', content(RULES))
    assert len(links) == content(RULES).count("- alert: ")
    for link in links:
        path, _, query = link.partition("?")
        (view, *chosen) = [each.split("=", 1) for each in query.split("&")]
        assert path == f"/d/{drawn['uid']}"
        assert view[0] == "viewPanel"
        assert int(view[1]) in panels
        assert {name for name, _ in chosen} <= variables


def test_the_dashboard_has_its_variables_and_queries() -> None:
    drawn: dict[str, Any] = json.loads(content(DASHBOARD))
    variables = [variable["name"] for variable in drawn["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "client", "server", "namespace"]
    expressions = [
        target["expr"] for panel in drawn["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) == sum(len(p.queries) for panels in ROWS.values() for p in panels)
    used = {name for each in expressions for name in re.findall(r"\$([a-z]\w*)", each)}
    assert used == {"job", "instance", "client", "server", "namespace"}


def test_every_series_is_one_of_the_chosen_processes() -> None:
    """In the queries, and where a variable lists its values: those of the chosen processes."""
    drawn: dict[str, Any] = json.loads(content(DASHBOARD))
    expressions = [
        target["expr"] for panel in drawn["panels"] for target in panel.get("targets", ())
    ]
    variables = {
        each["name"]: each["definition"]
        for each in drawn["templating"]["list"]
        if each["type"] == "query"
    }
    assert "$" not in variables.pop("job")
    assert variables.pop("instance").count('{job=~"$job"}') == 1
    listed = [each.rpartition(",")[0] for each in variables.values()]
    for expression in [*expressions, *listed]:
        # Without labels to sum by, only metrics are left that are named like this.
        series = re.sub(r" by \([^)]*\)", "", expression)
        chosen = re.sub(r'\{job=~"\$job", instance=~"\$instance"[^}]*\}', "<chosen>", series)
        named = re.findall(r"(?:db_client|pymongo_resilience)_\w+(<chosen>)?", chosen)
        assert named, expression
        assert set(named) == {"<chosen>"}, expression


@pytest.mark.parametrize("name", FILES)
def test_every_metric_and_attribute_that_is_named_exists(name: str) -> None:
    """As exporters to Prometheus name it: with underscores, a unit and a kind."""
    words = {each.replace(".", "_") for each in NAMES}
    ending = re.compile(r"(_seconds)?(_bucket|_count|_sum|_total)?$")
    named = set(re.findall(r"\b(?:db|pymongo_resilience|server|error)_\w+", content(name)))
    named -= {"server_address", "server_port"}
    unknown = {each for each in named if not {each, ending.sub("", each)} & words}
    assert unknown == set()
    assert len(named) > 10


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = cli.main(["dashboards", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_command_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "new"
    for _ in range(2):  # the same again is nothing to complain of
        status, told, errors = run(capsys, directory)
        assert (status, errors) == (0, "")
        assert told.splitlines() == [str(directory / name) for name in FILES]
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        name: content(name) for name in FILES
    }


def test_the_command_overwrites_nothing_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RULES).write_text("mine\n")
    status, told, errors = run(capsys, tmp_path)
    assert (status, told) == (1, "")
    assert str(tmp_path / RULES) in errors
    assert "--force" in errors
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {RULES: "mine\n"}
    assert run(capsys, tmp_path, "--force")[0] == 0
    assert (tmp_path / RULES).read_text() == content(RULES)
