"""Blocks of code that a policy holds for, and which of them the caller is in.

A block is a node that knows the block around it and whether it has ended; a context variable has
the innermost. Ended blocks are skipped, so they may be left in any order, in another context or by
another thread, and a task that was started inside keeps a block no longer than it lives. A block
that a generator holds open holds only while that runs; see ``generators``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from .generators import frame_at, generator_around, is_running
from .policy import NOTHING, Policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Block:
    """Ended by one thread, read by any."""

    __slots__ = ("_merged", "ended", "generator", "outer", "policy")

    def __init__(self, policy: Policy, outer: Block | None, generator: FrameType | None) -> None:
        self.policy = policy
        """What the block itself names."""
        self.outer = outer
        self.generator = generator
        """The frame of the generator that holds it open."""
        self.ended = False
        self._merged: tuple[Policy, Policy] | None = None

    def end(self) -> None:
        self.ended = True
        self.generator = None

    def holds(self) -> bool:
        """Whether the caller is inside."""
        generator = self.generator
        return not self.ended and (generator is None or is_running(generator))

    def within(self, around: Policy) -> Policy:
        """Its policy, where ``around`` holds outside; the same object for the same ``around``."""
        merged = self._merged
        if merged is None or merged[0] is not around:
            merged = self._merged = around, self.policy.within(around)
        return merged[1]


_innermost: ContextVar[Block | None] = ContextVar("pymongo_resilience_policy", default=None)


innermost: Callable[[], Block | None] = _innermost.get
"""The block entered last in the caller's context, whether or not it holds; None where nothing can
hold. On the way of every operation."""


def current() -> Policy:
    """What the blocks around the caller say together."""
    block = _innermost.get()
    if block is None:
        return NOTHING
    if block.ended:
        block = _living(block)
        _innermost.set(block)
    return _policy_of(block)


def timed() -> Block | None:
    """The innermost block around the caller that names a timeout itself."""
    block = _innermost.get()
    while block is not None and not (block.policy.timeout_ms is not None and block.holds()):
        block = block.outer
    return block


def enter(policy: Policy) -> tuple[Block, Policy]:
    """A new block around what the caller's caller runs, and all that holds in it."""
    block = Block(policy, _living(_innermost.get()), generator_around(frame_at(2)))
    return block, _policy_of(block)


make_innermost: Callable[[Block], object] = _innermost.set


def leave(block: Block, *, finalized: bool) -> None:
    """End it. ``finalized``: perhaps by the garbage collector.

    CPython 3.11 collects inside of ``ContextVar.set`` as well, where setting one is not safe
    (CPython issue 148891): the next caller skips the block.
    """
    block.end()
    if not finalized and _innermost.get() is block:
        _innermost.set(_living(block.outer))


def entered_here(blocks: list[Block]) -> Block:
    """Which of several that one object has entered its caller's caller is leaving.

    The one of the same generator, then the innermost of the same context, then the newest.
    """
    generator = generator_around(frame_at(2))
    around = []
    block = _innermost.get()
    while block is not None:
        if block in blocks:
            around.append(block)
        block = block.outer
    for one in (*around, *reversed(blocks)):
        if one.generator is generator:
            return one
    return around[0] if around else blocks[-1]


def _living(block: Block | None) -> Block | None:
    """The first that has not ended, from this one outward; those around it without ended ones."""
    while block is not None and block.ended:
        block = block.outer
    inner = block
    while inner is not None:
        while inner.outer is not None and inner.outer.ended:
            inner.outer = inner.outer.outer
        inner = inner.outer
    return block


def _policy_of(block: Block | None) -> Policy:
    holding = []
    while block is not None:
        if block.holds():
            holding.append(block)
        block = block.outer
    policy = NOTHING
    for each in reversed(holding):
        policy = each.within(policy)
    return policy
