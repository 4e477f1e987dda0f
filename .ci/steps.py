"""What `make test` and `make check` run.

    python3 .ci/steps.py test     what a change can break, in five minutes
    python3 .ci/steps.py rest     what `make check` adds to it
    python3 .ci/steps.py failed   once more what failed in the last run of both
    python3 .ci/steps.py counts   record how many tests the last run of both had

The last line counts the tests of all environments. Reports and logs are kept in build/reports.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from reports import MONGODBS, cases, cases_in, distinct, mark_passed, slowest, totals
from running import Step, environment, run_steps

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "reports"
COUNTS = ROOT / "tests" / "counts.toml"
FAILED = "failed.json"
PARTS = {"test": "make test", "rest": "what make check adds"}
BARS = {"test": 300, "rest": 600}
"""Seconds that each part takes at most on two cores."""
LIMIT = float(os.environ.get("LIMIT", "3"))
"""Of its bar: how long a part may take before what still runs is stopped."""
MOST_REPEATED = 5
"""Tests of a step that are run once more, alone, where they have failed beside others."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WORKERS = {"newest": 5, "oldest": 2}
"""More than cores: most tests wait."""

OLDEST_TESTS = ("tests/integration", "tests/unit")
"""All that are marked so are there; and the properties."""
CORE = ("--part=core", *OLDEST_TESTS)
QUICK = ("--ignore=tests/chaos", "--ignore=tests/conformance")
"""Not even collected, for they are no part of it."""

MAIN = "environment: newest pymongo"
OLDEST = "environment: oldest pymongo"
WHEEL = "environment: built wheel"
PROPERTIES = "properties with all examples, newest pymongo"


def python(folder: str) -> str:
    return str(ROOT / folder / "bin" / "python")


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(ROOT / ".venv" / "bin" / name), *arguments)


def make(target: str, *variables: str) -> tuple[str, ...]:
    return ("make", "--no-print-directory", target, *variables)


def pytest(folder: Path, report: str, venv: str, *arguments: str) -> tuple[str, ...]:
    return (
        *(python(venv), "-m", "pytest", "-q", "--no-header", f"--junitxml={folder / report}.xml"),
        *arguments,
    )


def parallel(workers: int) -> tuple[str, ...]:
    return ("-n", str(workers), "--dist", "worksteal", "-m", "not wheel and not alone")


def of_test(folder: Path) -> list[Step]:
    wheel = (
        'dir=$(mktemp -d) && trap "rm -rf $dir" EXIT && cp tests/test_wheel.py $dir && cd $dir && '
        f"{python('.venv-wheel')} -I -m pytest -q --no-header -p no:cacheprovider --rootdir=. "
        f"-o markers=wheel --junitxml={folder / 'wheel.xml'} test_wheel.py"
    )
    return [
        Step(MAIN, make(".venv/dev.stamp")),
        # Also keeps the compiled tests, for all that run them afterwards.
        Step("tests can be collected", tool("pytest", "-qqq", "--collect-only"), (MAIN,)),
        Step("ruff check", tool("ruff", "check", "."), (MAIN,)),
        Step("ruff format", tool("ruff", "format", "--check", "."), (MAIN,)),
        Step("mypy --strict", tool("mypy"), (MAIN,)),
        Step("pyright, strict on the engine", tool("basedpyright"), (MAIN,), ("mypy --strict",)),
        Step("import contract", tool("lint-imports"), (MAIN,), ("mypy --strict",)),
        Step(
            "tests, newest pymongo",
            pytest(folder, "newest", ".venv", "--part=quick", *QUICK, *parallel(WORKERS["newest"])),
            ("tests can be collected",),
        ),
        Step(OLDEST, make(".venv-oldest/stamp"), (MAIN,), ("import contract",)),
        Step(
            "core of the tests, oldest pymongo",
            pytest(folder, "oldest", ".venv-oldest", *CORE, *parallel(WORKERS["oldest"])),
            (OLDEST, "tests can be collected"),
        ),
        Step(WHEEL, make(".venv-wheel/stamp"), (OLDEST,)),
        Step("tests, built wheel", ("sh", "-c", wheel), (WHEEL,)),
    ]


def of_rest(folder: Path) -> list[Step]:
    newest = (*pytest(folder, "newest", ".venv", "--part=thorough"), *parallel(WORKERS["newest"]))
    oldest = (
        *pytest(folder, "oldest", ".venv-oldest", "--part=beyond-core", *OLDEST_TESTS),
        *parallel(WORKERS["oldest"]),
    )
    properties = (
        *pytest(folder, "newest,properties", ".venv", *OLDEST_TESTS, "-n", "1"),
        *("-m", "hypothesis and not thorough and not alone"),
    )
    others, last = other_pythons(folder)
    return [
        Step(MAIN, make(".venv/dev.stamp")),
        Step(OLDEST, make(".venv-oldest/stamp"), (MAIN,)),
        Step("thorough tests, newest pymongo", newest, (MAIN,)),
        Step("all other tests, oldest pymongo", oldest, (OLDEST,)),
        Step(PROPERTIES, properties, (MAIN,)),
        Step("site", make("check-docs", f"ARGS=--junitxml={folder / 'site.xml'}"), (MAIN,)),
        Step(
            "examples of frameworks",
            make("examples", f"ARGS=--junitxml={folder / 'examples.xml'}"),
            after=("site",),
        ),
        Step(
            "package",
            make("package", f"ARGS=--junitxml={folder / 'sdist.xml'}"),
            (MAIN,),
            after=("examples of frameworks",),
        ),
        *others,
        Step(
            "tests that run alone, newest pymongo",
            pytest(folder, "newest,alone", ".venv", "-m", "alone and not wheel"),
            (MAIN,),
            (
                "thorough tests, newest pymongo",
                "all other tests, oldest pymongo",
                PROPERTIES,
                *last,
            ),
        ),
    ]


def other_pythons(folder: Path) -> tuple[list[Step], tuple[str, ...]]:
    """The core on each other Python that there is, one after the other; the name of the last."""
    steps: list[Step] = []
    last: tuple[str, ...] = ()
    for version in PYTHONS:
        if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        executable = interpreter(version)
        if executable is None:
            skip(folder, f"python{version}", f"there is no python{version}")
            continue
        venv, report = f".venv-{version}", f"python{version}"
        name = f"environment: Python {version}"
        steps += [
            # Made first: else that would be of this Python.
            Step(name, make(f"{venv}/stamp", f"PYTHON={executable}"), (MAIN,), last),
            Step(
                f"core of the tests, Python {version}",
                pytest(folder, report, venv, *CORE, *parallel(WORKERS["oldest"])),
                (name,),
            ),
        ]
        last = (steps[-1].name,)
    return steps, last


def interpreter(version: str) -> str | None:
    """On the path, or among those of pyenv, whose commands on the path may refuse to run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    others = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    return next((each for each in (f"python{version}", *map(str, others)) if starts(each)), None)


def starts(command: str) -> bool:
    try:
        return subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def skip(folder: Path, report: str, why: str) -> None:
    print(f"SKIPPED: {why}", flush=True)
    case = f'<testcase classname="nothing" name="ran"><skipped message="{why}"/></testcase>'
    (folder / f"{report}.xml").write_text(f"<testsuite>{case}</testsuite>")


def run(part: str) -> int:
    # MongoDB's own tests, where they lie beside the clone; without them theirs are skipped.
    beside = ROOT.parent / "shared" / "spec-tests"
    if not os.environ.get("MONGODB_SPECIFICATIONS") and beside.is_dir():
        os.environ["MONGODB_SPECIFICATIONS"] = str(beside)
    began = time.monotonic()
    folder = REPORTS / part
    shutil.rmtree(REPORTS if part == "test" else folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps = {"test": of_test, "rest": of_rest}[part](folder)
    ended = run_steps(steps, folder, LIMIT * BARS[part])
    failed = [
        (each.step.name, each.step.command)
        for each in ended
        if not (each.ok or pass_alone(list(each.step.command)))
    ]
    (folder / FAILED).write_text(json.dumps(failed, indent=1))
    return finish(part, time.monotonic() - began)


def pass_alone(command: list[str]) -> bool:
    """Whether the few tests that failed beside others pass once more, in one process.

    A fault fails again; a machine that stood still for a moment does not. The output names them.
    """
    report, failed = failed_tests(command)
    if report is None or not 0 < len(failed) <= MOST_REPEATED:
        return False
    again = [*command[:3], "-q", "--no-header", *failed]
    print(f"== once more, alone: {shlex.join(again)}", flush=True)
    if subprocess.run(again, env=environment(), check=False).returncode != 0:
        return False
    mark_passed(report, failed)
    print("\n".join(f"FAILED BESIDE OTHERS, PASSED ALONE: {each}" for each in failed), flush=True)
    return True


def finish(part: str, seconds: float) -> int:
    tests = cases(REPORTS)
    over = f", over its bar of {BARS[part]} s" if seconds > BARS[part] else ""
    print(f"== {PARTS[part]}: {seconds:.0f} s{over}; the slowest tests of it")
    print("\n".join(slowest(case for case in tests if case.part == part)))
    fewer = []
    if part == "rest":
        counted = distinct(tests)
        fewer = shrunk(counted, recorded())
        print("\n".join(["== different tests and cases"] + [f"{n}: {counted[n]}" for n in counted]))
    failed = failed_steps()
    if failed or fewer:
        print("failed: " + ", ".join([*(name for name, _ in failed), *fewer]))
    if failed:
        print("once more what failed: make failed")
    count = totals(tests)
    text = ", ".join(f"{count[kind]} {kind}" for kind in count)
    print(f"{text} in {seconds:.0f} s")
    return int(bool(failed or fewer or count["failed"] or not count["passed"]))


def failed_steps() -> list[tuple[str, list[str]]]:
    """Of the last run of both parts."""
    return [
        (name, command)
        for file in sorted(REPORTS.glob(f"*/{FAILED}"), reverse=True)  # test, rest
        for name, command in json.loads(file.read_text())
    ]


def repeat() -> int:
    """The failed steps, one after the other; of tests, those that failed."""
    status = 0
    for name, command in failed_steps():
        again = repeating(command)
        print(f"== {name}\n{shlex.join(again)}", flush=True)
        status |= subprocess.run(again, env=environment(), check=False).returncode
    return int(status != 0)


def repeating(command: list[str]) -> list[str]:
    """The command itself, or of a run of tests what failed in it."""
    _, failed = failed_tests(command)
    return [*command[:3], *failed] if failed else command


def failed_tests(command: list[str]) -> tuple[Path | None, list[str]]:
    """The report of a run of tests, and what failed in it."""
    reports = [each.partition("=")[2] for each in command if each.startswith("--junitxml=")]
    if not reports:
        return None, []
    report = Path(reports[0])
    return report, [case.id for case in cases_in(report) if case.outcome == "failed"]


def recorded() -> dict[str, int]:
    counts: dict[str, int] = tomllib.loads(COUNTS.read_text())["counts"]
    return counts


def shrunk(counted: dict[str, int], before: dict[str, int]) -> list[str]:
    """What ran fewer than are recorded, of all that this machine has."""
    there = {name.partition(":")[0] for name in counted}
    has_mongodbs = bool(os.environ.get("MONGODB_SPECIFICATIONS"))
    return [
        f"{name}: {counted.get(name, 0)}, not {count}"
        for name, count in before.items()
        if counted.get(name, 0) < count
        and name.partition(":")[0] in there
        and (has_mongodbs or not name.endswith(MONGODBS))
    ]


def record() -> int:
    head, _, _ = COUNTS.read_text().partition("[counts]")
    counted = distinct(cases(REPORTS))
    lines = [f"{json.dumps(name)} = {count}" for name, count in counted.items()]
    COUNTS.write_text("\n".join([f"{head}[counts]", *lines]) + "\n")
    return 0


def main(command: str) -> int:
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the steps as well
    if command in PARTS:
        return run(command)
    return {"failed": repeat, "counts": record}[command]()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
