"""The warning for a public name that was renamed. Such names end with the next minor version."""

from __future__ import annotations

import warnings


def warn_former(former: str, name: str) -> None:
    """A DeprecationWarning for the line that calls the caller, whose ``former`` is ``name`` now."""
    text = f"{former} is called {name} now; the former name ends with the next minor version"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
