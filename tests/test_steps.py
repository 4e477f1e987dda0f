"""The runner behind `make test` and `make check`: steps side by side, counts, what failed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.clients import wait_until

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
SUITE = "<testsuites><testsuite>{}</testsuite></testsuites>"
CASE = '<testcase classname="{}" name="{}" time="{}">{}</testcase>'
MEETING = """
import pathlib, time
pathlib.Path({!r}).touch()
while not pathlib.Path({!r}).exists():
    time.sleep(0.01)
"""


HANGING = "sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait"
HANGING_TESTS = """
import time, pytest
@pytest.mark.parametrize("side", ["sync", "async"])
def test_hangs(side):
    time.sleep(600 if side == "sync" else 0)
"""


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(CI)
    steps = importlib.import_module("steps")
    monkeypatch.setattr(importlib.import_module("running"), "GRACE", 0.5)
    monkeypatch.setattr(steps, "REPORTS", tmp_path)
    monkeypatch.setattr(steps, "COUNTS", tmp_path / "counts.toml")
    steps.COUNTS.write_text("[counts]\n")
    for part in ("test", "rest"):
        (tmp_path / part).mkdir()
    return steps


def report(file: Path, *outcomes: tuple[str, float, str]) -> None:
    cases = [CASE.format("tests.test_steps", name, took, what) for name, took, what in outcomes]
    file.write_text(SUITE.format("".join(cases)))


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_steps_wait_for_what_they_need_and_for_nothing_else(ci: Any, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    steps = [
        ci.Step("one", python(MEETING.format(one, other))),
        ci.Step("other", python(MEETING.format(other, one))),
        ci.Step("fails", python("raise SystemExit(3)"), ("one",)),
        ci.Step("lacks", python(""), ("fails",)),
        ci.Step("later", python(""), (), ("fails",)),
    ]
    ended = ci.run_steps(steps, tmp_path)
    assert [each.step.name for each in ended if each.ok] == ["one", "other", "later"]


def gone(pid: int) -> bool:
    """Whether the process has ended, whoever has to wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_takes_too_long_is_stopped_and_named(ci: Any, capsys: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    hangs = ci.Step("hangs", ("sh", "-c", HANGING.format(started)))
    steps = [hangs, ci.Step("later", ("true",), (), ("hangs",)), ci.Step("ends", ("true",))]
    ended = ci.run_steps(steps, tmp_path, 2.0)
    assert [each.step.name for each in ended if each.ok] == ["ends"]
    output = capsys.readouterr().out
    assert "STOPPED: all steps together may take 2 s" in output
    assert "== later: FAILED, 0 s\nnot run: no time was left" in output
    wait_until(lambda: gone(int(started.read_text())))


def test_a_test_that_hangs_is_named_and_the_others_run(ci: Any, tmp_path: Path) -> None:
    """Also with its stack; as our own configuration has it, but sooner."""
    (tmp_path / "test_hanging.py").write_text(HANGING_TESTS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir=."),
            *("-o", "faulthandler_timeout=1", "-p", "no:cacheprovider", "-n", "1"),
            *(f"--junitxml={tmp_path}/test/newest.xml", "test_hanging.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "crashed while running 'test_hanging.py::test_hangs[sync]'" in done.stdout
    assert 'test_hanging.py", line 5 in test_hangs' in done.stderr
    outcomes = {case.id: case.outcome for case in ci.cases_in(tmp_path / "test" / "newest.xml")}
    assert outcomes == {
        "test_hanging::test_hangs[sync]": "failed",
        "test_hanging::test_hangs[async]": "passed",
    }


@pytest.mark.parametrize(
    ("program", "alone"), [("pass", True), ("raise SystemExit(1)", False)], ids=["passes", "fails"]
)
def test_what_failed_beside_others_is_run_once_more_alone(
    program: str, alone: bool, ci: Any, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "test" / "newest.xml"
    report(file, ("test_a", 2, "<failure/>"), ("test_b", 1, ""))
    command = [sys.executable, "-c", program, f"--junitxml={file}", "-n", "4"]
    assert ci.pass_alone(command) is alone
    named = (
        "FAILED BESIDE OTHERS, PASSED ALONE: tests/test_steps.py::test_a" in capsys.readouterr().out
    )
    assert named is alone
    assert [case.outcome for case in ci.cases_in(file)] == [
        "passed" if alone else "failed",
        "passed",
    ]


def test_fewer_tests_than_recorded_fail(ci: Any, capsys: Any, tmp_path: Path) -> None:
    for part, names in (("test", "ab"), ("rest", "bc")):
        report(tmp_path / part / "newest.xml", *((f"test_{name}", 1, "") for name in names))
    for kept, status in ((3, 0), (4, 1)):
        ci.COUNTS.write_text(f'[counts]\n"newest: tests" = {kept}\n')
        assert ci.finish("rest", 1.0) == status
    assert "failed: newest: tests: 3, not 4" in capsys.readouterr().out
    ci.record()
    assert ci.finish("rest", 1.0) == 0
