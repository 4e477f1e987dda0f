"""Collections, databases, and cursors that carry a policy: ``bind()`` makes the first two.

Nothing of pymongo is imported: what is bound only needs the methods of pymongo's classes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import ChangeStream, Cursor

T = TypeVar("T")
ATTRIBUTE = "_pymongo_resilience_policy"
BOUND_CLASSES = 64
"""How many are kept: there are four, and those an application derives from them."""


def can_be_bound(target: object) -> bool:
    return callable(getattr(type(target), "with_options", None))


def policy_of(target: object) -> Policy:
    """The policy that ``target`` carries; EMPTY_POLICY where it carries none."""
    if not isinstance(target, Bound):
        return EMPTY_POLICY
    policy: Policy = vars(target)[ATTRIBUTE]
    return policy


def attach_policy(policy: Policy, cursor: Cursor | ChangeStream) -> None:
    """Keep ``policy`` on a cursor or change stream that was created under it."""
    if policy is not EMPTY_POLICY:
        setattr(cursor, ATTRIBUTE, policy)


def policy_of_cursor(cursor: Cursor | ChangeStream) -> Policy:
    """The policy that it carries; EMPTY_POLICY where it carries none."""
    # Not by vars(), which makes attributes slower on CPython 3.11: this runs for each document.
    policy: Policy = getattr(cursor, ATTRIBUTE, EMPTY_POLICY)
    return policy


def carrying(target: T, policy: Policy) -> T:
    """Return a copy of a collection or a database, with ``policy`` over what it carries already."""
    return _with_policy(target, policy.over(policy_of(target)))


def _with_policy(target: T, policy: Policy) -> T:
    cls: Any = type(target)
    # Not copy(): pymongo's classes take an attribute that is not set yet for a collection.
    made: T = cls.__new__(cls if issubclass(cls, Bound) else _bound_class(cls))
    vars(made).update(vars(target))
    vars(made)[ATTRIBUTE] = policy
    return made


@lru_cache(BOUND_CLASSES)
def _bound_class(cls: type) -> type:
    return type(cls.__name__, (Bound, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class Bound:
    """A collection or a database with a policy: what it makes is bound as well."""

    def with_options(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().with_options(*args, **kwargs))  # type: ignore[misc]  # pymongo's

    def __getitem__(self, name: str) -> Any:
        return self._inherit(super().__getitem__(name))  # type: ignore[misc]  # as above

    def get_collection(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().get_collection(*args, **kwargs))  # type: ignore[misc]  # as above

    def create_collection(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_collection(*args, **kwargs)  # type: ignore[misc]  # as above
        return self._inherit_later(made) if hasattr(made, "__await__") else self._inherit(made)

    async def _inherit_later(self, making: Awaitable[Any]) -> Any:
        return self._inherit(await making)

    def _inherit(self, made: T) -> T:
        return _with_policy(made, policy_of(self))
