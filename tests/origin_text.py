"""What the library adds to the text of an error, taken off to compare it with plain pymongo's."""

from __future__ import annotations

import re

_ORIGIN = re.compile(r" \((?:[^ ()]+:\d+, )?\d+ attempts?\)$")


def text_without_origin(error: BaseException) -> str:
    return _ORIGIN.sub("", str(error))
