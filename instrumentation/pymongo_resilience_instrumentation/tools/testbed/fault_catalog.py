"""The faults that random scenarios choose from. Each recipe creates one fault.

Every fault ends within two seconds, whether it has acted or not, so an operation with a deadline of
twenty seconds can outlast several of them. No fault cuts more than three handshakes in a row,
because drivers treat these as overload, which they retry at most five times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from .command_faults import (
    CutAfter,
    CutBefore,
    Fail,
    FailWriteConcern,
    NotPrimary,
    Overload,
    RateLimit,
)
from .deployment import Target
from .fault import Fault
from .member_faults import (
    BlackHole,
    CutAtHandshake,
    Election,
    PoolClearingStorm,
    Refuse,
    Reset,
    Restart,
    SilentPrimary,
)
from .scenario import Strike, strike

Recipe = Callable[[random.Random], Strike]

WRITES: Final = ("insert", "update", "findAndModify", "commitTransaction")
COMMANDS: Final = (*WRITES, "find", None)
"""Commands to which a fault may apply; None means any command."""
WITHIN: Final = 2.0
"""Seconds after which a fault no longer waits for a command."""
TRANSIENT_CODES: Final = (6, 7, 89, 91, 189, 262, 9001, 11600, 11602)
"""Codes with which mongod answers a retryable write that it did not execute and that may be sent
again.
"""


def cut_before(rng: random.Random) -> Strike:
    """Up to four commands in a row never reach the server."""
    return _command(CutBefore, rng, COMMANDS, times=rng.randint(1, 4))


def cut_after(rng: random.Random) -> Strike:
    """Up to four replies in a row are lost."""
    return _command(CutAfter, rng, COMMANDS, times=rng.randint(1, 4))


def cut_at_handshake(rng: random.Random) -> Strike:
    """A few new connections break at their first message."""
    return strike(CutAtHandshake, times=rng.randint(1, 3), on="primary", within=WITHIN)


def reset(rng: random.Random) -> Strike:
    """All connections of one member, or of all members, are reset."""
    return strike(Reset, on=_anyone(rng))


def refuse(rng: random.Random) -> Strike:
    """A member cannot be reached for a moment."""
    return strike(Refuse, _tenths(rng, 2, 8), on=_anyone(rng))


def black_hole(rng: random.Random) -> Strike:
    """A member accepts connections and never responds."""
    return strike(BlackHole, _tenths(rng, 3, 12), on=_anyone(rng))


def pool_clearing_storm(rng: random.Random) -> Strike:
    """All connections of the primary are reset, two or three times within a second."""
    return strike(PoolClearingStorm, times=rng.randint(2, 3), every=0.25, on="primary")


def election(rng: random.Random) -> Strike:
    """There is no primary for one or two seconds."""
    return strike(Election, gap=_tenths(rng, 3, 20))


def restart(rng: random.Random) -> Strike:
    """A member, possibly the primary, stops and comes back."""
    return strike(Restart, downtime=_tenths(rng, 3, 15), gap=_tenths(rng, 1, 8), on=_anyone(rng))


def silent_primary(rng: random.Random) -> Strike:
    """The primary does not respond for one or two seconds, and another one is elected."""
    return strike(SilentPrimary, _tenths(rng, 8, 20), gap=_tenths(rng, 1, 5))


def not_primary(rng: random.Random) -> Strike:
    """Commands reach a member that is no longer primary but still says in its hello that it is."""
    return _command(NotPrimary, rng, WRITES, times=rng.randint(1, 3))


def overload(rng: random.Random) -> Strike:
    """Some commands are rejected, sometimes with a hint how long to wait."""
    hint = rng.choice((None, None, 0.05))
    return _command(Overload, rng, COMMANDS, times=rng.randint(1, 12), base_backoff=hint)


def rate_limit(rng: random.Random) -> Strike:
    """For a while, the primary admits fewer commands than it gets."""
    return strike(RateLimit, rng.randint(50, 200), seconds=_tenths(rng, 5, 20), on="primary")


def server_error(rng: random.Random) -> Strike:
    """Commands are refused with an error after which a retry may succeed."""
    return _command(Fail, rng, WRITES, times=rng.randint(1, 4), **_transient(rng))


def write_concern_error(rng: random.Random) -> Strike:
    """Writes are executed but answered with an error after which a retry may succeed."""
    return _command(FailWriteConcern, rng, WRITES, times=rng.randint(1, 3), **_transient(rng))


NETWORK: Final[Sequence[Recipe]] = (
    cut_before,
    cut_after,
    cut_after,
    cut_at_handshake,
    reset,
    refuse,
    black_hole,
    pool_clearing_storm,
)
"""Faults of the network alone. The fault that shows whether writes are lost or applied twice is
listed twice.
"""
FAILOVER: Final[Sequence[Recipe]] = (election, restart, silent_primary, not_primary)
"""Elections, restarts, and members that notice a change late."""
SERVER: Final[Sequence[Recipe]] = (overload, rate_limit, server_error, write_concern_error)
"""Overload, and errors of the server itself."""


def _command(
    kind: Callable[..., Fault],
    rng: random.Random,
    commands: Sequence[str | None],
    **options: object,
) -> Strike:
    return strike(kind, rng.choice(commands), on="primary", within=WITHIN, **options)


def _transient(rng: random.Random) -> dict[str, object]:
    return {"code": rng.choice(TRANSIENT_CODES), "labels": ["RetryableWriteError"]}


def _anyone(rng: random.Random) -> Target:
    return rng.choice(("primary", "secondary", 0, 1, 2))


def _tenths(rng: random.Random, low: int, high: int) -> float:
    """Return a random number of seconds between two numbers of tenths."""
    return rng.randint(low, high) / 10
