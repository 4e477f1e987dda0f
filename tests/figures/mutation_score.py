"""Mutation testing: whether a unit test fails for each small change to the code that decides.

    nox -s mutation
    nox -s mutation -- "pymongo_resilience.breakers.*"      # some mutants again, by name

mutmut changes one operator, number or argument at a time (a mutant), and runs the unit tests that
call the changed function until one of them fails. This script prints for each module how many
mutants the tests found, and each one that they did not find. It fails if they found less than 95 %.
survivors.toml explains those that no test should find.

Why mutmut: it starts pytest once, forks for each mutant, and runs only the tests that reach it.
Cosmic Ray starts pytest for each mutant, which takes hours instead of minutes.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path.append(str(TESTS))
from support import marked_tables  # noqa: E402 - found in that folder

FOLDER = ROOT / "build" / "mutation"
EXPLAINED = Path(__file__).with_name("survivors.toml")
GOAL = 95.0
"""Percent."""
PACKAGES = (
    ROOT / "pymongo_resilience",
    ROOT / "instrumentation" / "pymongo_resilience_instrumentation",
)
FOUND = {"killed", "timeout"}
NOT_RUN = "not checked"


class Survivor(NamedTuple):
    """A mutant that no test found."""

    function: str
    """Such as ``"pymongo_resilience.breakers CircuitBreaker.ended"``."""
    line: str
    becomes: str


def main(*names: str) -> int:
    """Return 1 if the tests found too few mutants.

    Args:
        names: Patterns of the names of mutants. Without any, all of them are tested, from scratch.
    """
    prepare(from_scratch=not names)
    workers = os.environ.get("WORKERS", str(os.cpu_count() or 1))
    if mutmut("run", f"--max-children={workers}", *names).returncode:
        return 1
    return report()


def report() -> int:
    """Print the survivors of all runs so far, and write the figures of whole modules."""
    results = re.findall(r"^ +(\S+): (.+)$", mutmut("results", "--all=true").stdout, re.MULTILINE)
    tested = {name: status for name, status in results if status != NOT_RUN}
    survivors = {name: survivor(name) for name, status in tested.items() if status not in FOUND}
    explained = {
        Survivor(each["function"], each["line"], each["becomes"])
        for each in tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    }
    for name, each in survivors.items():
        if each not in explained:
            print(f"{name}: {tested[name]}", *each, sep="\n    ")
    unfinished = {module_of(name) for name, status in results if status == NOT_RUN}
    whole = {name: each for name, each in tested.items() if module_of(name) not in unfinished}
    for each in explained - set(survivors.values()):
        if each.function.partition(" ")[0] not in unfinished:
            print(f"no longer a survivor, so remove it from {EXPLAINED.name}:", *each, sep="\n    ")
    rows = table(whole)
    print("\n".join(rows))
    marked_tables.write(TESTS / "README.md", "mutation", "make mutation", rows)
    return int(percent(tested.values()) < GOAL)


def prepare(*, from_scratch: bool) -> None:
    """Copy the packages to where mutmut expects them, and link what else it reads."""
    if from_scratch:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        target = FOLDER / package.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in configuration["tool"]["mutmut"]["only_mutate"]:
        for path in FOLDER.glob(pattern):
            path.write_text(with_plain_methods(path.read_text()))
    for name in ("tests", "pyproject.toml", *configuration["tool"]["mutmut"]["also_copy"]):
        link = FOLDER / name
        if not link.exists():
            link.symlink_to(ROOT / name)


def with_plain_methods(source: str) -> str:
    """Return the same module with each property written as ``name = property(_get_name)``.

    mutmut does not change functions that have a decorator.
    """
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or len(node.decorator_list) != 1:
            continue
        (decorator,) = node.decorator_list
        if isinstance(decorator, ast.Name) and decorator.id == "property":
            getter = f"_get_{node.name}"
            lines[decorator.lineno - 1] = ""
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(node.name, getter, 1)
            # On the last line, so that no line moves while later functions are rewritten.
            indent = " " * node.col_offset
            lines[(node.end_lineno or 0) - 1] += f"\n{indent}{node.name} = property({getter})"
    return "\n".join(lines) + "\n"


def mutmut(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mutmut; ``run`` shows its progress."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    output = None if arguments[0] == "run" else subprocess.PIPE
    return subprocess.run(command, cwd=FOLDER, stdout=output, text=True, check=False)


def survivor(name: str) -> Survivor:
    """Return what a mutant changes."""
    changed: dict[str, list[str]] = {"-": [], "+": []}
    for line in mutmut("show", name).stdout.splitlines():
        if line[:1] in changed and line[:3] not in {"---", "+++"}:
            changed[line[0]].append(line[1:].strip())
    return Survivor(function_of(name), " ".join(changed["-"]), " ".join(changed["+"]))


def function_of(name: str) -> str:
    """Return module and function of a mutant, from its name in mutmut.

    ``a.b.x_f__mutmut_1`` is a function, and ``a.b.xǁCǁf__mutmut_1`` is a method.
    """
    module, _, mangled = name.rpartition("__mutmut_")[0].rpartition(".")
    function = mangled[2:] if mangled.startswith("x_") else mangled[2:].replace("ǁ", ".")
    return f"{module} {function.replace('_get_', '')}"


def module_of(name: str) -> str:
    return function_of(name).partition(" ")[0]


def table(tested: dict[str, str]) -> list[str]:
    """Return the rows for tests/README.md."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name, status in tested.items():
        modules[module_of(name)].append(status)
    rows = ["| module | mutants | found |", "|---|---|---|"]
    named = [
        (f"`{module.replace('.', '/')}.py`", statuses)
        for module, statuses in sorted(modules.items())
    ]
    for module, statuses in [*named, ("together", list(tested.values()))]:
        rows.append(f"| {module} | {len(statuses)} | {percent(statuses):.1f} % |")
    return rows


def percent(statuses: Collection[str]) -> float:
    found = sum(status in FOUND for status in statuses)
    return 100 * found / len(statuses) if statuses else 0.0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
