"""What the API reference cannot read from the code as it stands.

mkdocstrings reads the code without running it. ``Config`` keeps the default and the sentence of
each option in a call of ``_option``, for the errors and tables that quote them. This extension
takes both from the call. It also leaves out special methods, which nobody calls by name.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe

DEFAULT, SENTENCE = 0, 2
"""Positions in a call of ``_option``."""


class OptionDocstrings(griffe.Extension):
    """Describe the fields that ``_option`` defines, and leave out undocumented special methods."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any
    ) -> None:
        call, value = getattr(node, "value", None), attr.value
        if (
            isinstance(call, ast.Call)
            and isinstance(value, griffe.ExprCall)
            and str(value.function) == "_option"
        ):
            attr.docstring = griffe.Docstring(ast.literal_eval(call.args[SENTENCE]), parent=attr)
            attr.value = value.arguments[DEFAULT]

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in [*cls.members.items()]:
            if name.startswith("__") and name != "__init__" and member.docstring is None:
                del cls.members[name]
