"""Collections, databases and cursors that carry a policy. ``bind()`` creates the first two.

Imports nothing from pymongo, because it only needs the methods of pymongo's classes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import ChangeStream, Cursor

T = TypeVar("T")
ATTRIBUTE = "_pymongo_resilience_policy"
BOUND_CLASSES = 64
"""Size of the cache. There are four classes, and those that an application derives from them."""


def can_be_bound(target: object) -> bool:
    return callable(getattr(type(target), "with_options", None))


def policy_of(target: object) -> Policy:
    """Return the policy that ``target`` carries, or EMPTY_POLICY."""
    # Not getattr(): for an attribute that a collection does not have, pymongo returns a
    # sub-collection of that name.
    if not isinstance(target, Bound):
        return EMPTY_POLICY
    policy: Policy = vars(target)[ATTRIBUTE]
    return policy


def attach_policy(policy: Policy, cursor: Cursor | ChangeStream) -> None:
    """Attach ``policy`` to a cursor or change stream that was created under it."""
    if policy is not EMPTY_POLICY:
        setattr(cursor, ATTRIBUTE, policy)


def policy_of_cursor(cursor: Cursor | ChangeStream) -> Policy:
    """Return the policy that a cursor carries, or EMPTY_POLICY."""
    # Do not use vars(), which makes all later attribute accesses slower on CPython 3.11. This runs
    # for each document.
    policy: Policy = getattr(cursor, ATTRIBUTE, EMPTY_POLICY)
    return policy


def carrying(target: T, policy: Policy) -> T:
    """Return a copy of a collection or a database, with ``policy`` over the policy that it carries
    already.
    """
    return _with_policy(target, policy.over(policy_of(target)))


def _with_policy(target: T, policy: Policy) -> T:
    blocks.policies_used.note()
    cls: Any = type(target)
    # Do not use copy(): pymongo's classes treat an attribute that is not set yet as a collection.
    bound: T = cls.__new__(cls if issubclass(cls, Bound) else _bound_class(cls))
    vars(bound).update(vars(target))
    vars(bound)[ATTRIBUTE] = policy
    return bound


@lru_cache(BOUND_CLASSES)
def _bound_class(cls: type) -> type:
    # A subclass, so that isinstance() still holds, with the original name, which reprs and errors
    # show.
    return type(cls.__name__, (Bound, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class Bound:
    """A collection or a database with a policy. Everything made from it is bound as well."""

    def with_options(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().with_options(*args, **kwargs))  # type: ignore[misc]  # pymongo's

    def __getitem__(self, name: str) -> Any:
        return self._inherit(super().__getitem__(name))  # type: ignore[misc]  # as above

    def get_collection(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().get_collection(*args, **kwargs))  # type: ignore[misc]  # as above

    def create_collection(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_collection(*args, **kwargs)  # type: ignore[misc]  # as above
        # In an async database, pymongo's method is a coroutine function.
        return self._inherit_later(made) if hasattr(made, "__await__") else self._inherit(made)

    async def _inherit_later(self, making: Awaitable[Any]) -> Any:
        return self._inherit(await making)

    def _inherit(self, made: T) -> T:
        return _with_policy(made, policy_of(self))
