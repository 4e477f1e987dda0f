"""Where an error of the driver came from, and after how many attempts, said by the error itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymongo.errors import PyMongoError


def attempts_text(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def state_origin(error: PyMongoError, *, server: str | None, attempts: int) -> None:
    """Give ``error`` the attributes ``server`` (``"host:port"``, None where none was selected) and
    ``attempts``, and its text the same at its end. Once: an error may be raised again.

    Source: Retryable Reads, "If a retry attempt fails": the server is the one that it came from.
    """
    if "attempts" in vars(error):
        return
    vars(error).update(server=server, attempts=attempts)
    if error.args and isinstance(error.args[0], str):
        facts = [attempts_text(attempts)] if server is None else [server, attempts_text(attempts)]
        error.args = (f"{error.args[0]} ({', '.join(facts)})", *error.args[1:])
