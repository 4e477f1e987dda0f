"""Reads errors of MongoDB-compatible engines: throttling, and refused transaction numbers.

docs/engines.md quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pymongo_resilience.rules.failure import RetryReason

from .reasons import CODES

# Compared with the beginning of a text. The rest may quote a document of the application.
_REFUSED_NUMBERS: Final = re.compile(
    # Amazon DocumentDB with code 301, and Azure Cosmos DB.
    r"retryable writes are not supported"
    # A standalone MongoDB server, and engines that imitate it, with code 20.
    r"|transaction numbers are only allowed on a replica set",
    re.IGNORECASE,
)
_RETRY_AFTER: Final = re.compile(r"\bRetryAfterMs=(\d{1,9})\b")
"""In errors of Azure Cosmos DB with code 16500."""


def refuses_txn_numbers(document: Mapping[str, Any], *, carried: bool) -> bool:
    """Return True if the server refused a command because it carried a transaction number.

    Args:
        document: The server's error.
        carried: Whether the command carried a transaction number.
    """
    return carried and _REFUSED_NUMBERS.match(_text(document)) is not None


def is_throttled(error: Mapping[str, Any]) -> bool:
    """Return True if the error of a command or of a statement means that the server throttles.

    MongoDB 2.4 used the same code for an assertion, which newer servers would name Location16500.
    """
    is_assertion = str(error.get("codeName")).startswith("Location")
    return error.get("code") in CODES[RetryReason.THROTTLED] and not is_assertion


def retry_after(document: Mapping[str, Any]) -> float | None:
    """Return how many seconds to wait according to a server that throttles, or None.

    Azure Cosmos DB puts the number into the error's text, because the protocol has no field for it.
    Some of its errors do not contain it.
    """
    found = _RETRY_AFTER.search(_text(document))
    return None if found is None else int(found[1]) / 1000


def _text(document: Mapping[str, Any]) -> str:
    text = document.get("errmsg")
    return text if isinstance(text, str) else ""
