"""What of an error may leave at default settings: class, code and code name, never its text."""

from __future__ import annotations

from pymongo_resilience import redaction

from .classify import attribute


def qualified_name(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def code_name(error: BaseException) -> str | None:
    """The server's name of its error code, where it gave one: any other text stays here."""
    details = attribute(error, "details")
    return redaction.code_name(details.get("codeName") if isinstance(details, dict) else None)


def safe_message(error: BaseException) -> str:
    """Class, code and code name: no text of a server or a document."""
    return redaction.error_name(error, attribute(error, "code"), code_name(error))
