"""Errors without the driver's texts and without lines of source: both may quote documents."""

from __future__ import annotations

import logging
import re
import traceback
from typing import cast

_withheld: frozenset[str] = frozenset()
"""See ``withhold_texts_of``."""
WITHHELD = "text withheld, it may quote documents"
MAX_CODE_NAME_LENGTH = 100
"""Characters; the longest of mongod's own has about half as many."""
_USER_INFO = re.compile(r"://\S+@")
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;\s]*(?:password|secret|token|key)[^=&;\s]*=)[^&;\s]+", re.IGNORECASE
)


def withhold_texts_of(*packages: str) -> None:
    """Keep the texts of exceptions that these packages define out of the log: those of a driver
    quote values of documents."""
    global _withheld  # noqa: PLW0603 - one for the process
    _withheld |= {*packages}


def code_name(name: object) -> str | None:
    """A server's name of its error code; None for any other text, which may quote documents."""
    if isinstance(name, str) and len(name) <= MAX_CODE_NAME_LENGTH and name.isidentifier():
        return name
    return None


def error_name(error: BaseException, code: object, name: object) -> str:
    """Class, code and code name: no text of a server or a document."""
    text = type(error).__name__
    if isinstance(code, int):
        text += f", code {code}"
    known = code_name(name)
    return text if known is None else f"{text} ({known})"


def without_secrets(text: str) -> str:
    """Return a text of the local machine without user, password, and secret parameters of URIs."""
    # Parameters first: one that has an @ in it is no host.
    return _USER_INFO.sub("://***@", _SECRET_PARAMETER.sub(r"\1***", text))


class RedactionFilter(logging.Filter):
    """Keeps texts of the driver and lines of source out of our log lines: they quote documents.

    A stand-in is logged for an exception: without what it was raised from, or during, since mostly
    that is the driver's, and without a traceback, which every formatter prints with its source.
    The stack is there as text, with file, line and function.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A ForeignError is logged as what the foreign code has raised.
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
            # A member may have been raised from an error of the driver's, or be a group itself.
            errors = cast("BaseExceptionGroup[BaseException]", error).exceptions
            members = ", ".join(dict.fromkeys(type(each).__qualname__ for each in errors))
            return Exception(f"{name} of {members}: {WITHHELD}")
        if quotes_documents(error) or any(map(quotes_documents, error.args)):
            return Exception(f"{name}: {WITHHELD}")
        alone = type(error).__new__(type(error), *error.args)
        vars(alone).update(vars(error))
        # A class may put a cause or a traceback on whatever is made of it.
        if (alone.__cause__, alone.__context__, alone.__traceback__) == (None, None, None):
            return alone
    except Exception:  # noqa: BLE001, S110 - a class may be made in its own way
        pass
    return Exception(name)


def quotes_documents(value: object) -> bool:
    """Return True if the text of an exception is to be withheld, as ``withhold_texts_of`` has it.

    An exception's arguments count, too: ``RuntimeError(error)`` has the text of ``error``.
    """
    classes = type(value).__mro__ if isinstance(value, BaseException) else ()
    return any(cls.__module__.partition(".")[0] in _withheld for cls in classes)


def stack(error: BaseException) -> list[str]:
    """The lines of a traceback with file, line and function, without source."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name, "")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return [
        "Traceback (most recent call last):\n",
        *traceback.StackSummary.from_list(frames).format(),
    ]
