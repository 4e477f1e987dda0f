"""Files that import each other, type-only imports included: two at most.

Which folder may import which is a contract in pyproject.toml, which ``lint-imports`` checks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import grimp

PACKAGES = ("pymongo_resilience", "pymongo_resilience_instrumentation")
MOST = 2


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of modules, each of which imports every other one of its set, directly or not."""

    @functools.cache
    def reached(start: str) -> frozenset[str]:
        found, left = set[str](), [start]
        while left:
            new = imports[left.pop()] - found
            found |= new
            left += new
        return frozenset(found)

    found: list[set[str]] = []
    for module in imports:
        if not any(module in each for each in found):
            found.append({module} | {each for each in reached(module) if module in reached(each)})
    return found


def test_a_circle_is_found() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert circles(chain) == [{"a", "b", "c"}, {"d"}, {"e"}]


def test_no_more_than_two_files_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    # A package only names the modules that it exports; what is in it is what imports.
    packages = {each for each in graph.modules if graph.find_children(each)}
    assert len(imports) > 200, "the packages were not found"
    large = [each - packages for each in circles(imports) if len(each - packages) > MOST]
    assert large == []
