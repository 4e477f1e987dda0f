"""bind(): a collection or a database that carries its policy.

Nothing of the driver is imported: what is bound is asked for what pymongo's classes have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from .policy import NOTHING, Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")
ATTRIBUTE = "_pymongo_resilience_policy"
CLASSES = 64
"""Of bound classes that are kept: there are four, and those an application derives from them."""


def bind(target: T, policy: Policy) -> T:
    """``target``, a collection or a database of pymongo, sync or async, with ``policy``.

    The original is left as it is. What is made from the result inherits the policy: its
    ``with_options``, its collections and sub-collections. Bound again, the newer policy holds where
    it says something, and the older elsewhere. Raises TypeError for anything else.
    Thread- and task-safe, as the original is.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is of type {type(policy).__name__}: expected a Policy")
    if not callable(getattr(type(target), "with_options", None)):
        raise TypeError(f"cannot bind {type(target).__name__}: expected a collection or a database")
    return _carrying(target, policy.over(policy_of(target)))


def policy_of(target: object) -> Policy:
    """The policy that ``target`` carries; NOTHING where it carries none."""
    if not isinstance(target, Bound):
        return NOTHING
    policy: Policy = vars(target)[ATTRIBUTE]
    return policy


def attach_policy(policy: Policy, cursor: object) -> None:
    """Keep ``policy`` on a cursor or change stream that was created under it."""
    if policy is not NOTHING:
        setattr(cursor, ATTRIBUTE, policy)


def policy_of_cursor(cursor: object) -> Policy:
    """The policy that it carries; NOTHING where it carries none.

    Not through ``vars()``, as with a collection, where an attribute that is not set is a collection
    of that name: reading an instance's ``__dict__`` makes its attributes slower (CPython 3.11), and
    this runs for each document.
    """
    policy: Policy = getattr(cursor, ATTRIBUTE, NOTHING)
    return policy


def _carrying(target: T, policy: Policy) -> T:
    cls: Any = type(target)
    # Not copy(): pymongo's classes take an attribute that is not set yet for a collection.
    made: T = object.__new__(cls if issubclass(cls, Bound) else _bound_class(cls))
    vars(made).update(vars(target))
    vars(made)[ATTRIBUTE] = policy
    return made


@lru_cache(CLASSES)
def _bound_class(cls: type) -> type:
    return type(cls.__name__, (Bound, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class Bound:
    """Whatever these give is bound as well."""

    def with_options(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().with_options(*args, **kwargs))  # type: ignore[misc]  # pymongo's

    def __getitem__(self, name: object) -> Any:
        return self._inherit(super().__getitem__(name))  # type: ignore[misc]  # as above

    def get_collection(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().get_collection(*args, **kwargs))  # type: ignore[misc]  # as above

    def create_collection(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_collection(*args, **kwargs)  # type: ignore[misc]  # as above
        return self._inherit_later(made) if hasattr(made, "__await__") else self._inherit(made)

    async def _inherit_later(self, making: Awaitable[Any]) -> Any:
        return self._inherit(await making)

    def _inherit(self, made: object) -> Any:
        return _carrying(made, policy_of(self))
