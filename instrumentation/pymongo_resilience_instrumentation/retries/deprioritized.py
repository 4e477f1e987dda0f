"""The servers that the attempts of the operation in progress have failed on.

pymongo hands them to its first look at the servers, and forgets them once selection has to wait.
Their addresses are kept here for the later looks, in the context of the operation's thread or task.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.interception.methods import Function


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
    before, known = avoided(), driver.selection.known_addresses(loop.call.client)
    kept = Kept(each for each in known if address_text(each) == server)
    loop.avoiding = avoid(kept, loop.avoiding)
    if loop.avoided is None:
        loop.avoided = before


def end(mark: Mark | None, before: tuple[Address, ...] = ()) -> None:
    """The operation is over; in force is again what the one around it avoids.

    ``mark``: None where an exception of a signal handler struck before anybody had it.
    """
    if mark is None:
        _failed.set(before)
        return
    try:
        _failed.reset(mark)
    except (ValueError, RuntimeError):
        # It ends in another context than it began in; or it is over already.
        return


def _select(original: Function) -> Function:
    def method(
        description: Any,
        selector: Any,
        address: Any = None,
        custom_selector: Any = None,
        deprioritized_servers: Any = None,
    ) -> Any:
        failed = _failed.get()
        if not failed:
            return original(description, selector, address, custom_selector, deprioritized_servers)
        known = description.server_descriptions()
        avoided = [known[address] for address in failed if address in known]
        measured = driver.selection.measuring_the_whole_set(selector, description)
        found = original(description, measured, address, custom_selector, avoided)
        if isinstance(failed, Kept) and {each.address for each in found} <= {*failed}:
            # Where nothing else is left, the driver takes what it was to avoid.
            raise NoOtherServerError("no other server is eligible")
        return found or original(description, selector, address, custom_selector, None)

    return method


select = Method(_select)
"""In place of the driver's look at the servers: those that failed last, where there are others.

An application's own selector may want none of the others: then all are shown to it.
"""
