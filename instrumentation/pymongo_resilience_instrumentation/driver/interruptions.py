"""Where pymongo handles what ends a connection in use, and what it was sending then."""

from __future__ import annotations

import functools
import inspect
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HANDLED = "handle_error"
"""A topology's, called for every error that leaves a connection in use, just before that is given
back."""
SENDING = "_run_command"
SENDERS = ("pymongo.synchronous.command_runner", "pymongo.asynchronous.command_runner")


def handled_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException:
    """What ``HANDLED`` was called for, given its arguments."""
    context = args[1] if len(args) > 1 else kwargs["err_ctx"]
    error: BaseException = context.error
    return error


def interrupted_commands(error: BaseException) -> Iterator[Callable[[], None]]:
    """For every command that ``error`` interrupted, what reports it as failed: to the client's
    listeners, and in the driver's own log.

    pymongo reports a command that raised an Exception. What is none, a task's cancellation above
    all, passes by its ``except`` (``_run_command``, 4.18 to 4.20): the command started and never
    ends. What a report needs is in a local variable of that function, which the traceback still
    holds; so nothing is noted for commands that are not interrupted. It says as well whether the
    end was reported, so a pymongo that does that itself is left alone.
    """
    name = type(error).__name__
    failure = {"errmsg": f"interrupted by {name}", "errtype": name}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name != SENDING or frame.f_globals.get("__name__") not in SENDERS:
            continue
        sending = frame.f_locals
        telemetry = sending.get("telemetry")
        cls: Any = type(telemetry)
        if telemetry is not None and telemetry._start and not telemetry._duration_s:
            yield functools.partial(
                telemetry.failed,
                failure,
                sending["command_name"],
                error if _takes_the_error(cls) else False,
            )


@functools.lru_cache(maxsize=8)
def _takes_the_error(telemetry: Any) -> bool:
    """As the branch with spans of its own; else ``failed`` takes whether a server sent it."""
    return "exc" in inspect.signature(telemetry.failed).parameters
