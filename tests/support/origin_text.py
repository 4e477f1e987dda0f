"""What the library adds to the text of an error, taken off to compare it with plain pymongo's."""

from __future__ import annotations

import re

_END = r"(?=$|[\"'])"
"""Of a text, or of one that is quoted in it: of the error inside of a bulk write's."""
_ORIGIN = re.compile(rf" \((?:[^ ()]+:\d+, )?\d+ attempts?(?:; (?:[^()]|\([^()]*\))*)?\){_END}")
_OUTCOME = re.compile(
    rf" \((?:(?:it is unknown )?whether )?the transaction was committed[^()]*\){_END}"
)
"""Of a transaction whose commit has failed."""


def text_without_origin(text: object) -> str:
    return _ORIGIN.sub("", _OUTCOME.sub("", str(text)))
