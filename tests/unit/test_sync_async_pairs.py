"""Functions that are written twice, once for each API: a change in one must be made in the other.

The two are found by their names, and compared without ``async`` and ``await``.
"""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

import pymongo_resilience_instrumentation
import pytest

import pymongo_resilience

ROOTS = tuple(
    Path(str(package.__file__)).parent
    for package in (pymongo_resilience, pymongo_resilience_instrumentation)
)
ASYNC = re.compile(r"(?<=_)async(hronous)?_|_async(hronous)?\b|\basync_|Async")
AWAITING = ("awaited", "_awaited")
"""Functions that await their argument if it is awaitable."""
DIFFERENT = {
    "deadlines.grpc_server._AsyncInterceptor._wrap": "behaviors of grpc.aio have three kinds",
    "deadlines.request.Request.steps_async": "the names of an asynchronous iterator's methods",
    "policies.blocks.override._around_async_generator": (
        "an asynchronous generator returns no value, and its methods have other names"
    ),
    "clients.client_registry.ClientClock.sleep_async": "a task waits for a future, not an event",
    "driver.dialing.wait_async": "pymongo has a function for each API",
    "features.hedged_reads.hedged_methods._observed_async": "the first one is a context manager",
    "features.hedged_reads.race.AsyncRace.run": "a task can always be started, a thread cannot",
    "features.hedged_reads.race.AsyncRace._start": "only a task can be canceled before it begins",
    "features.hedged_reads.race.AsyncRace._try": "only a coroutine can be closed",
    "streams.tokens.AsyncCollectionTokens.__init__": "the text of an error",
}
"""Pairs that differ on purpose, each with the reason."""


def sync_name(name: str) -> str:
    return ASYNC.sub("", name)


class WithoutAwait(ast.NodeTransformer):
    """Turns a function of the async API into one of the sync API."""

    def visit_Await(self, node: ast.Await) -> Any:
        return self.visit(node.value)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        fields = {name: getattr(node, name, None) for name in ast.FunctionDef._fields}
        return self.visit_FunctionDef(ast.FunctionDef(**fields))  # type: ignore[arg-type]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.name, node.returns = sync_name(node.name), None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> Any:
        return self.visit_With(ast.With(items=node.items, body=node.body))

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        match node.body:
            case [ast.With() as inner]:
                return ast.With(items=[*node.items, *inner.items], body=inner.body)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> Any:
        fields = {name: getattr(node, name, None) for name in ast.For._fields}
        return self.generic_visit(ast.For(**fields))  # type: ignore[arg-type]

    def visit_Name(self, node: ast.Name) -> Any:
        # Both modules have ``sleep``.
        node.id = "time" if node.id == "asyncio" else sync_name(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.attr = sync_name(node.attr)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        node.arg, node.annotation = sync_name(node.arg), None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        node.keywords = [each for each in node.keywords if each.arg != "asynchronous"]
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        return node.args[0] if name in AWAITING else node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Turn ``send_async or send`` into ``send``."""
        self.generic_visit(node)
        values = {ast.dump(value): value for value in node.values}
        node.values = [*values.values()]
        return node.values[0] if len(values) == 1 else node


def text_of(function: ast.AST) -> str:
    """The function without what distinguishes the two APIs."""
    return ast.unparse(ast.fix_missing_locations(WithoutAwait().visit(copy.deepcopy(function))))


def pairs() -> dict[str, tuple[ast.AST, ast.AST]]:
    """The functions of the library that are written twice, by the name of the async one."""
    found: dict[str, tuple[ast.AST, ast.AST]] = {}
    files = [(each, path) for each in ROOTS for path in each.rglob("*.py")]
    for root, path in files:
        relative = path.relative_to(root).with_suffix("")
        if relative.parts[0] == "tools":
            continue
        tree = ast.parse(path.read_text())
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        functions = {
            f"{scope}{each.name}": each
            for scope, body in [
                ("", tree.body),
                *((f"{each.name}.", each.body) for each in classes),
            ]
            for each in body
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        for name, function in functions.items():
            twin = functions.get(sync_name(name))
            if twin is not None and twin is not function:
                found[".".join((*relative.parts, name))] = twin, function
    return found


PAIRS = pairs()


def test_the_pairs_are_found() -> None:
    """Those that every operation passes, at least."""
    assert {
        "interceptor._async_wrapper",
        "retries.loop_subclass._async_run",
        "retries.loop_subclass._async_get_server",
        "executor.AsyncExecutor.run",
    } <= PAIRS.keys()
    assert DIFFERENT.keys() <= PAIRS.keys(), "a reason for a function that is not there"


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - DIFFERENT.keys()))
def test_the_two_functions_differ_only_in_what_they_await(name: str) -> None:
    first, second = PAIRS[name]
    assert text_of(second) == text_of(first)


@pytest.mark.parametrize("name", DIFFERENT)
def test_those_that_differ_are_not_equal_meanwhile(name: str) -> None:
    first, second = PAIRS[name]
    assert text_of(second) != text_of(first), "the reason is outdated"


def test_a_statement_that_only_one_of_them_has_is_noticed() -> None:
    first, second = PAIRS["interceptor._async_wrapper"]
    blocks = [
        (node, field)
        for node in ast.walk(second)
        for field in ("body", "orelse", "finalbody")
        if isinstance(getattr(node, field, None), list) and len(getattr(node, field)) > 1
    ]
    assert blocks
    for node, field in blocks:
        removed = getattr(node, field).pop()
        assert text_of(second) != text_of(first)
        getattr(node, field).append(removed)
