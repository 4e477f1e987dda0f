"""Rules for timeouts without a client: a call, and what is around it, at a time that stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import _csot
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.limits import Limits
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules
from support.engine.fake_clock import FakeClock

from pymongo_resilience import Config, Policy
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import Block
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import EMPTY_POLICY
from pymongo_resilience.rules.strategy import BestEffort
from pymongo_resilience.timeout_source import TimeoutSource

NOW = 1_000.0


Around = Callable[[], contextlib.AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replace pymongo's clock. The engine's, on which an incoming request ends, shows another
    time.
    """
    standing = FakeClock(NOW)
    module = SimpleNamespace(monotonic=standing.now)
    monkeypatch.setattr(driver.csot, "time", module)
    monkeypatch.setattr(_csot, "time", module)
    monkeypatch.setattr(precedence, "CLOCK", FakeClock())
    return standing


def rules(
    *,
    rule: int | Policy | None = None,
    default: int | None = None,
    attempt: int | None = None,
    mode: str | None = None,
    csot: bool = True,
    observes: bool = False,
) -> TimeoutRules:
    policy = rule if isinstance(rule, Policy) else Policy(timeout_ms=rule)
    namespaces = NamespaceRules(BestEffort(), {} if rule is None else {"shop.orders": policy})
    config = Config(timeout_ms=default, attempt_timeout_ms=attempt, timeout_mode=mode)
    return TimeoutRules(namespaces, config, csot_available=csot, observes=observes)


def call_of(
    *,
    client: float | None = None,
    bound: int | Policy | None = None,
    session: Any = None,
    is_public: bool = True,
) -> Call:
    """A find, called where the caller is."""
    its_client: Any = SimpleNamespace(options=SimpleNamespace(timeout=client))
    return Call(
        its_client,
        "find",
        ("shop", "orders"),
        session=session,
        block_policy=blocks.current(),
        bound_policy=bound if isinstance(bound, Policy) else Policy(timeout_ms=bound),
        is_public=is_public,
    )


def limits_of(rules: TimeoutRules, **made: Any) -> Limits:
    """What ``call_of`` has under these rules."""
    limits = Limits()
    rules.set_timeout(call_of(**made), limits)
    return limits


def activated(limits: Limits) -> tuple[float | None, float, TimeoutSource]:
    """What pymongo finds while the operation runs: seconds, end, and who set it."""
    with limits.deadline:
        return *Timeout.active(), driver.csot.active_source()


@contextlib.contextmanager
def nested(*around: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in around:
            stack.enter_context(each)
        yield


def request(seconds: float) -> Block:
    """The block of an incoming request that has this much time left."""
    return Block(EMPTY_POLICY, expires_at=precedence.CLOCK.now() + seconds)
