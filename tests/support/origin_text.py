"""What the library adds to the text of an error, taken off to compare it with plain pymongo's."""

from __future__ import annotations

import re

_ORIGIN = re.compile(r" \((?:[^ ()]+:\d+, )?\d+ attempts?(?:; (?:[^()]|\([^()]*\))*)?\)(?=$|[\"'])")
"""At the end of a text, or of one that is quoted in it: of the error inside of a bulk write's."""


def text_without_origin(text: object) -> str:
    return _ORIGIN.sub("", str(text))
