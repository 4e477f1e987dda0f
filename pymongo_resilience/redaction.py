"""Log records without texts of pymongo's errors and without source lines: both may quote
documents.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import cast

_withheld: frozenset[str] = frozenset()
"""Packages whose error texts are withheld; see ``withhold_texts_of``."""
WITHHELD = "text withheld, it may quote documents"
MAX_CODE_NAME_LENGTH = 100
"""Characters. The longest code name of mongod has about half as many."""
_USER_INFO = re.compile(r"://\S+@")
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;\s]*(?:password|secret|token|key)[^=&;\s]*=)[^&;\s]+", re.IGNORECASE
)


def withhold_texts_of(*packages: str) -> None:
    """Keep the texts of exceptions that these packages define out of the log.

    The texts of a driver's exceptions quote values of documents.
    """
    global _withheld  # noqa: PLW0603 - one for the process
    _withheld |= {*packages}


def code_name(name: object) -> str | None:
    """Return the server's name of an error code, or None for any other text, which may quote
    documents.
    """
    # The server's code names are identifiers. Any other text may come from a document.
    if isinstance(name, str) and len(name) <= MAX_CODE_NAME_LENGTH and name.isidentifier():
        return name
    return None


def error_name(error: BaseException, code: object, name: object) -> str:
    """Return class, code and code name of an error, without any text from a server or a
    document.
    """
    text = type(error).__name__
    if isinstance(code, int):
        text += f", code {code}"
    known = code_name(name)
    return text if known is None else f"{text} ({known})"


def without_secrets(text: str) -> str:
    """Return a local text without the user, password and secret parameters of URIs."""
    # Replace parameters first: one that contains an @ must not be taken for the end of the user.
    return _USER_INFO.sub("://***@", _SECRET_PARAMETER.sub(r"\1***", text))


class RedactionFilter(logging.Filter):
    """Keeps pymongo's error texts and source lines, which quote documents, out of our log records.

    The record gets a copy of the exception without its cause and context, which usually are
    pymongo's, and without its traceback, because every formatter prints the source lines of
    tracebacks. The stack is added as text instead, with file, line and function.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # Log the exception that the foreign code raised, not the ForeignError around it.
        error = getattr(error, "foreign", error)
        if error is not None:
            shown = _redacted(error)
            record.exc_info = type(shown), shown, None
            record.exc_text = "".join(
                [*stack(error), *traceback.format_exception_only(shown)]
            ).rstrip("\n")
        return True


def _redacted(error: BaseException) -> BaseException:
    name = type(error).__qualname__
    try:
        if isinstance(error, BaseExceptionGroup):
            # A member may have one of pymongo's errors as its cause, or be a group itself.
            errors = cast("BaseExceptionGroup[BaseException]", error).exceptions
            members = ", ".join(dict.fromkeys(type(member).__qualname__ for member in errors))
            return Exception(f"{name} of {members}: {WITHHELD}")
        if quotes_documents(error) or any(map(quotes_documents, error.args)):
            return Exception(f"{name}: {WITHHELD}")
        # Copy without calling the constructor, whose parameters are unknown.
        copy = type(error).__new__(type(error), *error.args)
        vars(copy).update(vars(error))
        # The class may set a cause or a traceback in its constructor. Use the copy only if it has
        # none.
        if (copy.__cause__, copy.__context__, copy.__traceback__) == (None, None, None):
            return copy
    except Exception:  # noqa: BLE001, S110 - a class may be made in its own way
        pass
    return Exception(name)


def quotes_documents(value: object) -> bool:
    """Return True if the text of an exception must be withheld (see ``withhold_texts_of``).

    Its arguments count as well: ``RuntimeError(error)`` contains the text of ``error``.
    """
    classes = type(value).__mro__ if isinstance(value, BaseException) else ()
    return any(cls.__module__.partition(".")[0] in _withheld for cls in classes)


def stack(error: BaseException) -> list[str]:
    """Return the lines of a traceback with file, line and function, but without source."""
    # Pass an empty source line, or traceback would read the line from the file.
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name, "")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return [
        "Traceback (most recent call last):\n",
        *traceback.StackSummary.from_list(frames).format(),
    ]
