"""The sentences that describe options, as docstrings of the API reference.

``Config`` keeps the sentence of each option in code, for the errors and tables that quote it.
mkdocstrings reads the code without running it, so this extension gives it those sentences.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe

SENTENCE = 2
"""Position of the sentence in a call of ``_option``."""


class OptionDocstrings(griffe.Extension):
    """Take the docstring of a field that ``_option`` defines from the call."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any
    ) -> None:
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "_option":
            attr.docstring = griffe.Docstring(ast.literal_eval(call.args[SENTENCE]), parent=attr)
