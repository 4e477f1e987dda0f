"""The servers that the attempts of the operation in progress have failed on.

pymongo hands them to its first look at the servers, and forgets them once selection has to wait.
Their addresses are kept here for the later looks, in the context of the operation's thread or task.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any

from pymongo.errors import PyMongoError

from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.interceptor import Function

Mark = Token["tuple[Address, ...]"]


class NoOtherServerError(PyMongoError):
    """A hedged read has no server to go to but the one that it was sent to before."""


class Kept(tuple["Address", ...]):
    """Servers that a hedge keeps away from: it goes to another one, or nowhere."""

    __slots__ = ()


_failed: ContextVar[tuple[Address, ...]] = ContextVar(
    "pymongo_resilience_deprioritized", default=()
)


avoided = _failed.get


def begin() -> Mark:
    """An operation begins: it avoids nothing yet, whatever the one around it avoids."""
    return _failed.set(())


def avoid(addresses: tuple[Address, ...], mark: Mark | None) -> Mark:
    """From now on; what ``end()`` needs to go back to how it was when the operation began."""
    changed = _failed.set(addresses)
    return changed if mark is None else mark


def keep_away(loop: Any, server: str) -> None:
    """The loop of a hedge begins: it never goes to this ``"host:port"``."""
    before, known = avoided(), driver.selection.known_addresses(driver.retry_loop.client(loop))
    kept = Kept(each for each in known if address_text(each) == server)
    loop.avoiding = avoid(kept, loop.avoiding)
    if loop.avoided is None:
        loop.avoided = before


def avoid_failed(loop: Any, failure: Failure) -> None:
    """The next attempt goes to none of the servers that failed, where there are others and that
    helps."""
    if (
        driver.retry_loop.is_sharded(loop)
        or failure.elsewhere
        or failure.reason is RetryReason.ATTEMPT_TIMEOUT
        or (failure.overloaded and _avoids_overloaded(loop))
    ):
        before = avoided()
        loop.avoiding = avoid(driver.next_attempt.deprioritize(loop), loop.avoiding)
        if loop.avoided is None:
            loop.avoided = before


def _avoids_overloaded(loop: Any) -> bool:
    """Unless asked to, a read that prefers the primary or secondaries is not moved to the other
    kind of member: it would read older data, or overload the primary."""
    asked = driver.clients.retargets_on_overload(driver.retry_loop.client(loop))
    if asked is None:
        asked = loop.runtime.config.overload_retargeting
    return not driver.retry_loop.prefers_members(loop) if asked is None else asked


def end(mark: Mark | None) -> None:
    """The operation is over; in force is again what the one around it avoids."""
    if mark is not None:
        # Where it ends in another context than it began in, or is over already.
        with suppress(ValueError, RuntimeError):
            _failed.reset(mark)


def select(original: Function, description: Any, args: Any, kwargs: Any) -> Any:
    """In place of the driver's look at the servers: those that failed last, where there are others.

    An application's own selector may want none of the others: then all are shown to it.
    """
    failed = _failed.get()
    if not failed:
        return original(*args, **kwargs)
    return _select_others(original, failed, description, *args, **kwargs)


def _select_others(  # noqa: PLR0917 - as the driver calls it
    original: Function,
    failed: tuple[Address, ...],
    description: Any,
    selector: Any,
    address: Any = None,
    custom_selector: Any = None,
    deprioritized_servers: Any = None,  # noqa: ARG001 - the driver forgets them
) -> Any:
    known = description.server_descriptions()
    avoided = [known[each] for each in failed if each in known]
    measured = driver.selection.measuring_the_whole_set(selector, description)
    found = original(measured, address, custom_selector, avoided)
    if isinstance(failed, Kept) and {each.address for each in found} <= {*failed}:
        # Where nothing else is left, the driver takes what it was to avoid.
        raise NoOtherServerError("no other server is eligible")
    return found or original(selector, address, custom_selector, None)
