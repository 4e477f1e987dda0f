"""Every function of pymongo's modules and classes, compared by identity: a wrapper is equal to what
it wraps."""

from __future__ import annotations

import sys
from typing import Any

Places = dict[str, dict[str, Any]]


def patched_places() -> Places:
    """The functions, methods and properties of each module and of each class there is."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in {"pymongo", "bson", "gridfs"}
    ]
    places = {
        each for module in modules for each in vars(module).values() if isinstance(each, type)
    }
    return {
        str(place): {
            name: value
            for name, value in vars(place).items()
            if callable(value) or hasattr(type(value), "__get__")
        }
        for place in [*modules, *places]
    }


def differences(before: Places, after: Places) -> set[str]:
    return {
        f"{place}.{name}"
        for place in before
        for name in before[place].keys() | after[place].keys()
        if before[place].get(name) is not after[place].get(name)
    }
