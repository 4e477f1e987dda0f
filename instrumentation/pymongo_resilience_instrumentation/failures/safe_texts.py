"""What of an error may leave at default settings: class, code and code name, never its text."""

from __future__ import annotations

from .classify import attribute

LONGEST_CODE_NAME = 100
"""Characters; the longest of mongod's own has about half as many."""


def qualified_name(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def code_name(error: BaseException) -> str | None:
    """The server's name of its error code, where it gave one: any other text stays here."""
    details = attribute(error, "details")
    name = details.get("codeName") if isinstance(details, dict) else None
    if isinstance(name, str) and len(name) <= LONGEST_CODE_NAME and name.isidentifier():
        return name
    return None


def safe_message(error: BaseException) -> str:
    """Class, code and code name: no text of a server or a document."""
    code = attribute(error, "code")
    name = code_name(error)
    text = type(error).__name__
    if isinstance(code, int):
        text += f", code {code}"
    if name is not None:
        text += f" ({name})"
    return text
