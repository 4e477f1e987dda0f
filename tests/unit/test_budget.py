"""The token bucket as a state machine, beside exact arithmetic, and under many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pymongo_resilience.rules.budget import CAPACITY, RETURN_RATE, TokenBucket

TENTH = Fraction(1, 10)


def test_the_numbers_of_the_text() -> None:
    assert (CAPACITY, RETURN_RATE, TokenBucket().tokens) == (1000, 0.1, 1000)


def test_ten_successes_are_one_retry() -> None:
    bucket = TokenBucket(1)
    assert bucket.consume()
    for _ in range(10):
        assert not bucket.consume()
        bucket.succeeded(retried=False)
    assert bucket.consume()
    assert bucket.tokens == 0


def test_a_retry_that_succeeds_gives_back_its_token_and_a_tenth() -> None:
    bucket = TokenBucket(10)
    assert bucket.consume(5)
    bucket.succeeded(retried=True)
    assert bucket.tokens == 6.1


class Buckets(RuleBasedStateMachine):
    """Any order of retries, successes and failures."""

    @initialize(capacity=st.integers(1, 50))
    def begin(self, capacity: int) -> None:
        self.bucket = TokenBucket(capacity)
        self.capacity = self.model = Fraction(capacity)

    @rule()
    def retry(self) -> None:
        granted = self.bucket.consume()
        assert granted == (self.model >= 1)
        self.model -= granted

    @rule(times=st.integers(1, 40))
    def first_attempts_succeed(self, times: int) -> None:
        for _ in range(times):
            self.bucket.succeeded(retried=False)
        self.model = min(self.capacity, self.model + times * TENTH)

    @rule()
    def retry_succeeds(self) -> None:
        self.bucket.succeeded(retried=True)
        self.model = min(self.capacity, self.model + 1 + TENTH)

    @rule()
    def retry_fails_otherwise(self) -> None:
        self.bucket.deposit(1)
        self.model = min(self.capacity, self.model + 1)

    @invariant()
    def never_more_than_the_capacity_nor_less_than_nothing(self) -> None:
        assert 0 <= self.bucket.tokens <= self.capacity
        assert self.bucket.tokens == float(self.model)


TestBuckets = Buckets.TestCase


@pytest.mark.parametrize("threads", [2, 16])
def test_many_threads_take_what_is_there_and_no_more(threads: int) -> None:
    bucket = TokenBucket(500)
    with ThreadPoolExecutor(threads) as pool:
        granted = list(pool.map(lambda _: bucket.consume(), range(2000)))
    assert granted.count(True) == 500
    assert bucket.tokens == 0
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: bucket.succeeded(retried=False), range(2000)))
    assert bucket.tokens == 200
