"""The demonstration, run as a user runs it: real processes, a real server, a real collector."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.demo.fault_script import TIMELINE
from pymongo_resilience_instrumentation.tools.demo.result import Outcome, Record, Result, Side
from pymongo_resilience_instrumentation.tools.demo.workload import Balance
from support.clients import wait_until
from support.otlp_collector import collecting

from pymongo_resilience.config import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path


REPORT_LINES = 20
PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from pymongo_resilience_instrumentation.tools.cli import main; sys.exit(main())",
]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.thorough("runs four workloads through all faults")
def test_the_whole_demonstration(tmp_path: Path) -> None:
    file, drawn = tmp_path / "demo.json", tmp_path / "demo.svg"
    with collecting() as collector:
        done = subprocess.run(
            [
                *(*PROGRAM, "demo", "--seconds", "1", "--seed", "7"),
                *("--otlp", collector.endpoint, "--json", str(file), "--svg", str(drawn)),
            ],
            capture_output=True,
            text=True,
            timeout=120.0,
            env=ENVIRONMENT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    sides = json.loads(file.read_text(encoding="utf-8"))["sides"]
    plain, timeout, naive, ours = (sides[each] for each in ("plain", "timeout", "naive", "ours"))

    # Ours loses, doubles and shows nothing; the same faults break the others.
    assert (ours["errors"], ours["duplicated"], ours["lost"]) == (0, 0, 0)
    refusals = {"NotWritablePrimary", "IngressRequestRateLimitExceeded"}
    assert ours["retries"].keys() >= {"AutoReconnect", *refusals}
    assert plain["errors"] > 0
    assert plain["duplicated"] == 0
    assert naive["duplicated"] > 0
    assert plain["lost"] > 0, "pymongo 4.20 loses writes of a mixed bulk"
    # With its own timeout, pymongo retries until that expires, and still loses writes of the bulk.
    assert timeout["duplicated"] == 0
    assert timeout["lost"] > 0
    assert 0 < timeout["errors"] < plain["errors"]
    (operations,) = {side["operations"] for side in sides.values()}
    assert operations >= sum(phase.shortest for phase in TIMELINE)
    assert all(0 < side["p50"] <= side["p99"] for side in sides.values())

    spans, orders = collector.spans(), "demo_ours.orders"
    names = {f"{name} {orders}" for name in ("find", "insert", "update", "bulkWrite")}
    assert (f"insert {orders}", "insert") in spans
    assert {name for _, name in spans} == names | {"find", "insert", "update"}
    assert sum(name in names for _, name in spans) == operations
    assert "db.client.operation.duration" in collector.metrics

    # A pipe gets a line a phase, a verdict and a table.
    assert "\x1b" not in done.stdout
    for phase in TIMELINE:
        assert f"\n{phase.name:<14} errors: plain pymongo " in f"\n{done.stdout}"
    _, _, report = done.stdout.partition("pymongo-resilience lost nothing")
    assert 10 < len(report.splitlines()) <= REPORT_LINES
    for side in sides.values():
        for name in [*side["errors_by_class"], *side["retries"]]:
            assert f"  {name} " in report
    assert "<svg" in drawn.read_text(encoding="utf-8")


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.thorough("starts the demo once more")
def test_ctrl_c_ends_everything_quietly(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [*PROGRAM, "demo", "--seconds", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
        # Whoever was started in the background ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one thread
    )
    assert program.stdout is not None
    assert "healthy" in program.stdout.readline()
    assert list(tmp_path.glob("pymongo-resilience-*"))
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (cli.INTERRUPTED, "")
    wait_until(lambda: not group_exists(program.pid))
    assert not list(tmp_path.glob("pymongo-resilience-*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("demo", "--seconds", "0"), "'0' is not a number from 1 to 3,600"),
        (("demo", "--otlp", "localhost"), "'localhost' is not a URL"),
        (("demo", "--otlp", "user:password@host"), "this value is not a URL"),
        (("demo", "--json", "/nowhere/at/all"), "is not a file in an existing directory"),
    ],
)
def test_a_wrong_usage_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == cli.USAGE
    assert sentence in capsys.readouterr().err


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of options."""
    file = tmp_path / "resilience.toml"
    monkeypatch.setenv("PYMONGO_RESILIENCE_CONFIG", str(file))
    return file


def test_config_shows_every_option_its_value_and_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text('strategy = "mongodb"\ntimeout_ms = 1\n')
    monkeypatch.setenv("PYMONGO_RESILIENCE_TIMEOUT_MS", "750")
    assert cli.main(["config"]) == 0
    output = capsys.readouterr().out
    for option in OPTIONS:
        assert option.name in output
        assert (option.variable in output) is option.has_variable
        assert option.sentence in output
        assert option.kind.allowed in output
    blocks = output.split("\n\n")
    lines = {block.splitlines()[0]: block.splitlines()[2].strip() for block in blocks if block}
    assert lines.pop("PYMONGO_RESILIENCE_STRATEGY = mongodb") == f"from: the file {file}"
    assert lines.pop("PYMONGO_RESILIENCE_TIMEOUT_MS = 750") == "from: the variable"
    assert len(lines) == len(OPTIONS) - 2
    assert set(lines.values()) == {"from: the default"}
    assert cli.main(["config", "--changed"]) == 0
    changed = capsys.readouterr().out.split("\n\n")
    assert changed == [each for each in blocks if "from: the default" not in each]
    assert len(changed) == 2 + 1, "and the end of the text"
    monkeypatch.setenv("PYMONGO_RESILIENCE_TIMEOUT_MS", "soon")
    assert cli.main(["config"]) == cli.USAGE
    assert "PYMONGO_RESILIENCE_TIMEOUT_MS" in capsys.readouterr().err


def test_config_shows_the_rules_of_the_file_without_their_data(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(
        '[policies."shop.*"]\nstrategy = "best_effort"\nidempotent = false\n'
        '[policies."*.audit".data]\nkey = "secret"\n'
    )
    assert cli.main(["config"]) == 0
    output = capsys.readouterr().out
    assert output.endswith(
        "[policies.'shop.*']\n    idempotent = false\n    strategy = best_effort\n\n"
        "[policies.'*.audit']\n    data = not shown\n\n"
    )


@pytest.mark.parametrize("phase", TIMELINE, ids=lambda phase: str(phase.name))
def test_the_script_is_the_same_for_the_same_seed(phase: Any) -> None:
    first, again, other = (
        list(itertools.islice(phase.scenes(seed), 3 * phase.shortest)) for seed in (1, 1, 2)
    )
    assert first == again
    assert set(phase.trouble) <= set(first[: phase.shortest])
    assert [scene.kind for scene in first] != [scene.kind for scene in other]


@pytest.mark.parametrize(
    ("error", "balance", "problems"),
    [
        (None, Balance(0, 0), []),
        (None, Balance(0, 1), ["lost 1 write"]),
        (None, Balance(2, 0), ["duplicated 2 writes"]),
        ("AutoReconnect", Balance(0, 0), ["showed 1 error (AutoReconnect)"]),
    ],
)
def test_any_failure_of_our_side_is_a_problem(
    error: str | None, balance: Balance, problems: list[str]
) -> None:
    record = Record(duplicated=balance.duplicated, lost=balance.lost)
    record.add(Outcome(0.001, error, Counter()))
    result = Result("SecantusDB", 1, 1.0, 1.0, dict.fromkeys(Side, record))
    assert result.problems() == problems
    assert ("FAILED" in result.verdict()[0]) == bool(problems)
