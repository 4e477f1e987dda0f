"""One table: what is called, how its attempts fail, and what the engine makes of it.

A row reads: the call, the faults of its attempts in order (it succeeds after the last), the end,
how many attempts were made, the waits between them, and whatever the policy has of its own. The
randomness is fixed: an overload waits 50, 100, 200 ..., another failure 0, 0.75, 1.5 ... ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.engine.failing_work import Call, Fault
from support.engine.retry_strategies import (
    AT_ONCE,
    BEST_EFFORT,
    FAST_FAIL,
    MONGODB,
    RAISES,
    REFUSES,
    TALKS_NONSENSE,
    quarter,
    waiting,
)

from pymongo_resilience.rules.budget import UNLIMITED, RetryBudget, TokenBucket
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    RETRYABLE_WRITE,
    SYSTEM_OVERLOADED,
    TRANSIENT_TRANSACTION,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind

if TYPE_CHECKING:
    from pymongo_resilience.rules.strategy import RetryStrategy


@dataclass(frozen=True)
class Scenario:
    name: str
    call: Call
    faults: list[Fault]
    end: Rule | None
    """The rule that gave up; None for a success."""
    attempts: int
    waits: list[float]
    timeout: float | None = field(default=None, kw_only=True)
    window: float | None = field(default=None, kw_only=True)
    strategy: RetryStrategy = field(default=FAST_FAIL, kw_only=True)
    max_retries: int = field(default=5, kw_only=True)
    base_backoff: float = field(default=0.1, kw_only=True)
    max_backoff: float = field(default=10.0, kw_only=True)
    own_max_retries: int | None = field(default=None, kw_only=True)
    tokens: tuple[float, float] | None = field(default=None, kw_only=True)
    """In the client's retry budget, of a capacity of 1000, before and after."""

    def budget(self) -> RetryBudget:
        if self.tokens is None:
            return UNLIMITED
        bucket = TokenBucket()
        assert bucket.consume(bucket.tokens - self.tokens[0])
        return bucket

    def retry_rules(self) -> RetryRules:
        return RetryRules(self.max_retries, self.base_backoff, self.max_backoff, quarter)


# What is called.
READ = Call(kind=Kind.READ)
INSERT_ONE = Call(kind=Kind.WRITE, txn_number=True)
UPDATE_MANY = Call(kind=Kind.WRITE)
IDEMPOTENT = UPDATE_MANY(idempotent=True)
UNACKNOWLEDGED = UPDATE_MANY(acknowledged=False)
COMMAND = Call(kind=Kind.COMMAND)
GET_MORE = Call(kind=Kind.GET_MORE)
CLEANUP = Call(kind=Kind.CLEANUP)
OUT = Call(kind=Kind.AGGREGATE_WRITE)
COMMIT = Call(kind=Kind.TRANSACTION_END, in_transaction=True)
ABORT = COMMIT(once=True)
READ_IN_TXN = READ(in_transaction=True)
WRITE_IN_TXN = UPDATE_MANY(in_transaction=True)

# How attempts fail.
_R = RetryReason
BOTH = frozenset({SYSTEM_OVERLOADED, RETRYABLE})
CUT = Fault(reason=_R.SOCKET_CLOSED_WHILE_IN_FLIGHT, stage=Stage.IN_FLIGHT)
DEAD_PEER = CUT(reason=_R.DEAD_PEER)
HURRIED = CUT(pymongo_retries_after=0.5)
"""The driver alone would have waited for up to half a second."""
NO_REPLY = CUT(reason=_R.NO_REPLY)
SILENT = NO_REPLY(server="host:27017")
SLOW = SILENT(server_answered=True)
INTERRUPTED = CUT(reason=_R.INTERRUPTED)
UNANSWERED = CUT(reason=_R.ATTEMPT_TIMEOUT)
CURSOR_LOST = Fault(reason=_R.CURSOR_LOST)
UNCONNECTED = Fault(reason=_R.SOCKET_NOT_AVAILABLE, stage=Stage.NOT_SENT)
UNSENT_TXN = Fault(reason=_R.TEMPORARILY_UNAVAILABLE, stage=Stage.NOT_SENT)
NOT_PRIMARY = Fault(reason=_R.NOT_PRIMARY)
UNAVAILABLE = Fault(reason=_R.TEMPORARILY_UNAVAILABLE)
CONFLICT = Fault(reason=_R.WRITE_CONFLICT, listed_retryable=False)
LOCKED = Fault(reason=_R.LOCK_TIMEOUT, listed_retryable=False)
BAD_PASSWORD = Fault(reason=_R.AUTHENTICATION_ERROR, listed_retryable=False)
FORBIDDEN = Fault(reason=_R.ACCESS_ERROR)
UNTRUSTED = Fault(reason=_R.TLS_ERROR, stage=Stage.NOT_SENT)
BREAKER_OPEN = Fault(reason=_R.CIRCUIT_BREAKER_OPEN, stage=Stage.NOT_SENT)
REFUSED = BREAKER_OPEN(next_probe_in=2.0, listed_retryable=False)
REFUSED_HERE = REFUSED(elsewhere=True)
UNKNOWN = Fault(reason=_R.UNKNOWN)
NO_SERVER = Fault(
    reason=_R.NODE_NOT_AVAILABLE, stage=Stage.NOT_SENT, selection=True, timed_out=True
)
LABEL = frozenset({RETRYABLE_WRITE})
LABELLED = UNAVAILABLE(labels=LABEL)
TRANSIENT = frozenset({TRANSIENT_TRANSACTION})
OVERLOAD = Fault(reason=_R.OVERLOADED, labels=BOTH)
THROTTLED = Fault(reason=_R.THROTTLED, listed_retryable=False)
REFUSED_NUMBER = Fault(reason=_R.NO_RETRYABLE_WRITES)
BUSY = UNAVAILABLE(labels=frozenset({SYSTEM_OVERLOADED}))
OUT_OF_TIME = CUT(timed_out=True)
CONNECTED_LATE = UNCONNECTED(timed_out=True)
STOPPED = Fault(reason=_R.UNKNOWN, timed_out=True)
OWN_LIMIT = STOPPED(application_limit_ms=700)
POOL_FULL = Fault(reason=_R.POOL_EXHAUSTED, stage=Stage.NOT_SENT, timed_out=True)

# How it ends.
OK = None
SELECTION = Rule.SELECTION
NEVER = Rule.NEVER_RETRIED
OVER = Rule.TRANSACTION_OVER
LIMIT = Rule.TIME_LIMIT
NO_REASON = Rule.UNKNOWN_REASON
TERMINAL = Rule.TERMINAL
NOT_SAFE = Rule.NOT_SAFE
OFF = Rule.SWITCHED_OFF
ATTEMPTS = Rule.ATTEMPTS
STRATEGY = Rule.STRATEGY
DEADLINE = Rule.DEADLINE
TOO_LONG = Rule.OVERLOAD_WAIT
BREAKER = Rule.BREAKER
BUDGET = Rule.BUDGET

# How long it waits.
AFTER_OVERLOAD = [0.05, 0.1, 0.2, 0.4, 0.8]
AFTER_OTHERS = [0.0, 0.00075, 0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.096, 0.192, 0.375, 0.375]
CONTROLLED = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 1.0]

S = Scenario

# A table reads by its columns.
# fmt: off
WITHOUT_FAULT = [
    S("a read that works", READ, [], OK, 1, []),
    S("a success whose deadline is long over", READ, [], OK, 1, [], timeout=0.0),
]
RULE_SELECTION = [
    S("no server for a read", READ, [NO_SERVER], SELECTION, 1, []),
    S("no server for a commit", COMMIT, [NO_SERVER], SELECTION, 1, []),
    S("no server on the retry", READ, [CUT, NO_SERVER], SELECTION, 2, [0]),
    S("no server as MongoDB specifies", READ, [NO_SERVER], SELECTION, 1, [], strategy=MONGODB),
]
RULE_0 = [
    S("a getMore", GET_MORE, [CUT], NEVER, 1, []),
    S("a getMore, overload", GET_MORE, [OVERLOAD], OK, 2, [0.05]),
    S("a getMore that was not sent", GET_MORE, [UNCONNECTED], OK, 2, [0]),
    S("a getMore that was not sent, then cut", GET_MORE, [UNCONNECTED, CUT], NEVER, 2, [0]),
    S("a getMore that was not sent, as MongoDB specifies", GET_MORE, [UNCONNECTED], NEVER, 1, [],
      strategy=MONGODB),
    S("a killCursors", CLEANUP, [CUT], NEVER, 1, []),
    S("a killCursors that was not sent", CLEANUP, [UNCONNECTED], NEVER, 1, []),
    S("a killCursors, overload", CLEANUP, [OVERLOAD], OK, 2, [0.05]),
    S("a command", COMMAND, [CUT], NEVER, 1, []),
    S("a command that was not sent", COMMAND, [UNCONNECTED], OK, 2, [0]),
    S("a command, overload", COMMAND, [OVERLOAD], OK, 2, [0.05]),
    S("a declared command", COMMAND(idempotent=True), [CUT], OK, 2, [0]),
    S("a declared command, until the deadline", COMMAND(idempotent=True),
      [CUT(takes=0.5)] * 9, DEADLINE, 2, [0], timeout=1),
    S("a declared command, as MongoDB specifies a read", COMMAND(idempotent=True), [CUT], OK, 2,
      [0], strategy=MONGODB),
    S("a declared command, unacknowledged writes", COMMAND(idempotent=True, acknowledged=False),
      [CUT], OK, 2, [0]),
    S("a declared command, not primary", COMMAND(idempotent=True), [NOT_PRIMARY], OK, 2, [0.001]),
    S("a declared command, reason unknown", COMMAND(idempotent=True), [UNKNOWN], NO_REASON, 1, []),
    S("a declared command, switched off", COMMAND(idempotent=True, retries_enabled=False), [CUT],
      OFF, 1, []),
    S("a declared command in a transaction", COMMAND(idempotent=True, in_transaction=True), [CUT],
      NEVER, 1, []),
    S("a declared getMore", GET_MORE(idempotent=True), [CUT], NEVER, 1, []),
    S("a declared killCursors", CLEANUP(idempotent=True), [CUT], NEVER, 1, []),
    S("a declared aggregate with $out", OUT(idempotent=True), [CUT], OK, 2, [0]),
    S("a declared unacknowledged write", UNACKNOWLEDGED(idempotent=True), [CUT], NOT_SAFE, 1, []),
    S("an aggregate with $out", OUT, [CUT], NEVER, 1, []),
    S("an aggregate with $out that was not sent", OUT, [UNCONNECTED], OK, 2, [0]),
    S("an aggregate with $out, overload", OUT, [OVERLOAD] * 2, OK, 3, [0.05, 0.1]),
    S("a read in a transaction", READ_IN_TXN, [CUT], NEVER, 1, []),
    S("a write in a transaction", WRITE_IN_TXN, [NOT_PRIMARY], NEVER, 1, []),
    S("a read in a transaction that was not sent", READ_IN_TXN, [UNCONNECTED], OK, 2, [0]),
    S("a write in a transaction that was not sent", WRITE_IN_TXN, [UNCONNECTED], OK, 2, [0]),
    S("a write in a transaction whose router is lost", WRITE_IN_TXN,
      [UNCONNECTED, NO_SERVER(router_lost=True)], NEVER, 2, [0], timeout=10),
    S("a write in a transaction, overload", WRITE_IN_TXN, [OVERLOAD], OK, 2, [0.05]),
    S("an unacknowledged write", UNACKNOWLEDGED, [CUT], NOT_SAFE, 1, []),
    S("an unacknowledged write that was not sent", UNACKNOWLEDGED, [UNCONNECTED], OK, 2, [0]),
    S("an unacknowledged write, overload", UNACKNOWLEDGED, [OVERLOAD], OK, 2, [0.05]),
    S("a commit is a rule of its own", COMMIT, [CUT], OK, 2, [0]),
    S("a commit, twice", COMMIT, [CUT] * 2, ATTEMPTS, 2, [0]),
    S("a commit, overload", COMMIT, [OVERLOAD], OK, 2, [0.05]),
    S("a commit, aborted by a lock timeout", COMMIT, [LOCKED(labels=TRANSIENT)], OVER, 1, []),
    S("a commit, aborted on the retry", COMMIT, [CUT, LOCKED(labels=TRANSIENT)], OVER, 2, [0]),
    S("a commit, aborted, retryable as well", COMMIT, [LABELLED(labels=LABEL | TRANSIENT)], OVER,
      1, []),
    S("a commit, aborted, as MongoDB specifies", COMMIT, [LABELLED(labels=LABEL | TRANSIENT)],
      OVER, 1, [], strategy=MONGODB),
    S("an abort, with time left", ABORT, [NOT_PRIMARY] * 2, ATTEMPTS, 2, [0.001], timeout=10),
    S("an abort, with a window", ABORT, [CUT] * 2, ATTEMPTS, 2, [0], window=10),
    S("an abort, overload", ABORT, [OVERLOAD] * 2, OK, 3, [0.05, 0.1], timeout=10),
    S("rule 0 before rule 1", GET_MORE, [UNKNOWN], NEVER, 1, []),
    S("rule 0 before rule 3", COMMAND(retries_enabled=False), [CUT], NEVER, 1, []),
]
RULE_1 = [
    S("a refused transaction number", INSERT_ONE, [REFUSED_NUMBER], NO_REASON, 1, []),
    S("a refused transaction number, declared", INSERT_ONE(idempotent=True), [REFUSED_NUMBER],
      NO_REASON, 1, [], strategy=BEST_EFFORT),
    S("a read, reason unknown", READ, [UNKNOWN], NO_REASON, 1, []),
    S("a commit, reason unknown", COMMIT, [UNKNOWN], NO_REASON, 1, []),
    S("reason unknown, both labels", READ, [UNKNOWN(labels=BOTH)], OK, 2, [0.05]),
    S("fast_fail, wrong password", READ, [BAD_PASSWORD], TERMINAL, 1, []),
    S("best_effort, wrong password", READ, [BAD_PASSWORD], OK, 2, [0], strategy=BEST_EFFORT),
    S("best_effort, not authorized until the deadline", READ, [FORBIDDEN(takes=0.5)] * 9,
      DEADLINE, 2, [0], strategy=BEST_EFFORT, timeout=1),
    S("fast_fail, an untrusted certificate", UPDATE_MANY, [UNTRUSTED], TERMINAL, 1, []),
    S("fast_fail, an untrusted certificate, as pymongo", READ, [UNTRUSTED] * 9, TERMINAL, 2, [0]),
    S("fast_fail, an untrusted certificate, with time left", READ, [UNTRUSTED] * 9, TERMINAL, 2,
      [0], timeout=10),
    S("a full pool, a read", READ, [POOL_FULL], OK, 2, [0]),
    S("a full pool twice, a read", READ, [POOL_FULL] * 9, NO_REASON, 2, [0]),
    S("a full pool, within a deadline", READ, [POOL_FULL] * 9, NO_REASON, 2, [0], timeout=1),
    S("a full pool, a write", UPDATE_MANY, [POOL_FULL], NO_REASON, 1, []),
    S("a full pool, a read in a transaction", READ_IN_TXN, [POOL_FULL], NO_REASON, 1, []),
    S("best_effort, an untrusted certificate", UPDATE_MANY, [UNTRUSTED], OK, 2, [0],
      strategy=BEST_EFFORT),
    S("mongodb, wrong password", READ, [BAD_PASSWORD], TERMINAL, 1, [], strategy=MONGODB),
    S("rule 1 before rule 3", READ(retries_enabled=False), [UNKNOWN], NO_REASON, 1, []),
]
RULE_2 = [
    S("a read cut in flight", READ, [CUT], OK, 2, [0]),
    S("a read, interrupted", READ, [INTERRUPTED], OK, 2, [0]),
    S("another write, no reply", UPDATE_MANY, [NO_REPLY], NOT_SAFE, 1, []),
    S("another write, a dead peer", UPDATE_MANY, [DEAD_PEER], NOT_SAFE, 1, []),
    S("a read, its attempt's time is up", READ, [UNANSWERED], OK, 2, [0]),
    S("a resumable find, its cursor is gone", READ, [CURSOR_LOST], OK, 2, [0]),
    S("an unacknowledged read is a read", READ(acknowledged=False), [CUT], OK, 2, [0]),
    S("a retryable write cut in flight", INSERT_ONE, [CUT], OK, 2, [0]),
    S("a retryable write, write conflict", INSERT_ONE, [CONFLICT], OK, 2, [0]),
    S("another write cut in flight", UPDATE_MANY, [CUT], NOT_SAFE, 1, []),
    S("another write, not primary: half of it may be done", UPDATE_MANY, [NOT_PRIMARY],
      NOT_SAFE, 1, []),
    S("another write, write conflict: half of it may be done", UPDATE_MANY, [CONFLICT],
      NOT_SAFE, 1, []),
    S("another write, nothing written says the server", UPDATE_MANY,
      [UNAVAILABLE(labels=frozenset({"NoWritesPerformed"}))], NOT_SAFE, 1, []),
    S("another write, only the retryable label", UPDATE_MANY,
      [UNAVAILABLE(labels=frozenset({RETRYABLE}))], NOT_SAFE, 1, []),
    S("another write that was not sent", UPDATE_MANY, [UNCONNECTED], OK, 2, [0]),
    S("another write, not sent for another reason", UPDATE_MANY, [UNSENT_TXN], OK, 2, [0]),
    S("another write, no connection says the cause, but it was sent", UPDATE_MANY,
      [UNCONNECTED(stage=Stage.IN_FLIGHT)], NOT_SAFE, 1, []),
    S("another write, overloaded says the cause, without its labels", UPDATE_MANY,
      [OVERLOAD(labels=frozenset())], NOT_SAFE, 1, []),
    S("another write, overload", UPDATE_MANY, [OVERLOAD], OK, 2, [0.05]),
    S("another write, overload, then cut", UPDATE_MANY, [OVERLOAD, CUT], NOT_SAFE, 2, [0.05]),
    S("another write, a circuit breaker was open", UPDATE_MANY, [BREAKER_OPEN], OK, 2, [0]),
    S("another write, the breaker says the cause, but it was sent", UPDATE_MANY,
      [BREAKER_OPEN(stage=Stage.IN_FLIGHT)], NOT_SAFE, 1, []),
    S("a declared write, lock timeout", IDEMPOTENT, [LOCKED], OK, 2, [0]),
    S("another write, throttled", UPDATE_MANY, [THROTTLED], NOT_SAFE, 1, []),
    S("a write with a number, throttled", INSERT_ONE, [THROTTLED], OK, 2, [0.05]),
    S("rule 2 before rule 3", UPDATE_MANY(retries_enabled=False), [CUT], NOT_SAFE, 1, []),
    S("rule 2 before rule 4", UPDATE_MANY, [UNCONNECTED, CUT], NOT_SAFE, 2, [0]),
]
RULE_3 = [
    S("retryReads off", READ(retries_enabled=False), [CUT], OFF, 1, []),
    S("retryWrites off, nothing sent", UPDATE_MANY(retries_enabled=False), [UNCONNECTED],
      OFF, 1, []),
    S("one of both off, a command, overload", COMMAND(retries_enabled=False), [OVERLOAD],
      OFF, 1, []),
    S("rule 3 before rule 5", READ(retries_enabled=False), [CUT], OFF, 1, [], strategy=REFUSES),
]
RULE_4 = [
    S("no deadline: one retry", READ, [CUT] * 2, ATTEMPTS, 2, [0]),
    S("no deadline: one retry whatever the strategy says", READ, [CUT] * 2, ATTEMPTS, 2, [0],
      strategy=AT_ONCE),
    S("no deadline: retries that pymongo would have made later do not count", READ, [HURRIED] * 5,
      OK, 6, AFTER_OTHERS[:5]),
    S("no deadline: these are spread over their time", READ, [HURRIED] * 20, ATTEMPTS, 12,
      AFTER_OTHERS[:11]),
    S("no deadline: and whatever the strategy says", READ, [HURRIED] * 4, OK, 5,
      [0, 0.000625, 0.00125, 0.0025], strategy=AT_ONCE),
    S("no deadline: one that takes longer than their time is the last", READ,
      [HURRIED, HURRIED, HURRIED(takes=0.6)], ATTEMPTS, 3, [0, 0.00075]),
    S("no deadline: their time begins anew with the first retry", READ,
      [HURRIED, HURRIED(takes=60)], OK, 3, [0, 0.00075]),
    S("no deadline: only the first retry's failure gives them time", READ,
      [HURRIED] * 2 + [HURRIED(takes=0.3)] * 9, ATTEMPTS, 4, [0, 0.00075, 0.0015]),
    S("no deadline: none as MongoDB specifies", READ, [HURRIED] * 2, ATTEMPTS, 2, [0],
      strategy=MONGODB),
    S("an abort has none, which is sent again later", ABORT, [HURRIED] * 2, ATTEMPTS, 2, [0]),
    S("a deadline: as many as fit", READ, [CUT] * 12, OK, 13, AFTER_OTHERS, timeout=100),
    S("a deadline: as many as fit, not primary", READ, [NOT_PRIMARY] * 7, OK, 8, CONTROLLED,
      timeout=100),
    S("overload: five retries", READ, [OVERLOAD] * 6, ATTEMPTS, 6, AFTER_OVERLOAD),
    S("overload first: others share its five", READ, [OVERLOAD] + [CUT] * 5, ATTEMPTS, 6,
      [0.05, 0.00075, 0.0015, 0.003, 0.006]),
    S("overload between others", READ, [CUT, OVERLOAD, CUT, NOT_PRIMARY, OVERLOAD, CUT],
      ATTEMPTS, 6, [0, 0.1, 0.0015, 0.1, 0.8]),
    S("overload on the only retry raises the cap", READ, [CUT] + [OVERLOAD] * 4, OK, 6,
      [0, *AFTER_OVERLOAD[1:]]),
    S("overload last: earlier ones count", READ, [CUT] * 3 + [OVERLOAD] * 3, ATTEMPTS, 6,
      [0, 0.00075, 0.0015, 0.4, 0.8], timeout=1000),
    S("overload after more than five: no more", READ, [CUT] * 7 + [OVERLOAD], ATTEMPTS, 8,
      AFTER_OTHERS[:7], timeout=1000),
    S("one overload label caps a read as well", READ, [BUSY] * 6, ATTEMPTS, 6, AFTER_OVERLOAD),
    S("throttled: the usual delay is added to what the server says", IDEMPOTENT,
      [THROTTLED(retry_after=1.0), THROTTLED(retry_after=60.0), THROTTLED], OK, 4,
      [1.05, 10.1, 0.2]),
    S("throttled: five retries", READ, [THROTTLED] * 6, ATTEMPTS, 6, AFTER_OVERLOAD, timeout=100),
    S("throttled: no time for what the server says", READ, [THROTTLED(retry_after=2.0)], TOO_LONG,
      1, [], timeout=2),
    S("throttled: not known to MongoDB", READ, [THROTTLED], STRATEGY, 1, [], strategy=MONGODB),
    S("overload: no retry is an option", READ, [OVERLOAD], ATTEMPTS, 1, [], max_retries=0),
    S("overload: two retries are an option", READ, [OVERLOAD] * 3, ATTEMPTS, 3, [0.05, 0.1],
      max_retries=2),
    S("overload: two retries are the client's own", READ, [OVERLOAD] * 3, ATTEMPTS, 3, [0.05, 0.1],
      own_max_retries=2),
    S("overload: the client's own number may be larger", READ, [OVERLOAD] * 2, OK, 3, [0.05, 0.1],
      own_max_retries=2, max_retries=1),
    S("overload: none is the client's own", READ, [OVERLOAD], ATTEMPTS, 1, [], own_max_retries=0),
    S("the cap of overload is no cap of others", READ, [CUT] * 3, OK, 4, [0, 0.00075, 0.0015],
      max_retries=0, timeout=10),
    S("a bulk's next command has its own retry", INSERT_ONE, [CUT, CUT(next_command=True)], OK, 3,
      [0, 0]),
    S("a bulk's next command has no more than that", INSERT_ONE,
      [CUT, CUT(next_command=True), CUT], ATTEMPTS, 3, [0, 0]),
    S("a bulk's next command forgets the overload", INSERT_ONE,
      [OVERLOAD, CUT(next_command=True), CUT], ATTEMPTS, 3, [0.05, 0]),
    S("without end: until the window closes", READ, [CUT(takes=0.5)] * 9, ATTEMPTS, 3, [0, 0.00075],
      window=0.75),
    S("without end: until the instant it closes", READ, [CUT(takes=0.5)] * 9, ATTEMPTS, 2, [0],
      window=0.5),
    S("without end: the window starts at the first failure", READ, [CUT(takes=60)], OK, 2, [0],
      window=30),
    S("without end: a window that closes at once", READ, [CUT], ATTEMPTS, 1, [], window=0.0),
    S("without end: an overload delay past the window", READ, [OVERLOAD] * 3, ATTEMPTS, 2, [0.05],
      window=0.12),
    S("without end: another delay ends with the window", READ, [CUT] * 9, ATTEMPTS, 3,
      [0.25, 0.145], window=0.4, strategy=waiting(0.25)),
    S("rule 4 before rule 5", READ, [CUT] * 2, ATTEMPTS, 2, [0.25], strategy=waiting(0.25)),
]
RULE_5 = [
    S("a strategy that refuses", READ, [CUT], STRATEGY, 1, [], strategy=REFUSES),
    S("a strategy that refuses, with time left", READ, [CUT], STRATEGY, 1, [], strategy=REFUSES,
      timeout=10),
    S("a strategy that refuses an overload", READ, [OVERLOAD], STRATEGY, 1, [], strategy=REFUSES),
    S("a strategy that delays", READ, [CUT], OK, 2, [0.25], strategy=waiting(0.25)),
    S("a strategy that delays, each time", READ, [CUT] * 3, OK, 4, [0.25] * 3,
      strategy=waiting(0.25), timeout=10),
    S("a strategy's time machine", READ, [CUT], OK, 2, [0], strategy=waiting(-1)),
    S("a strategy cannot shorten an overload", READ, [OVERLOAD], OK, 2, [0.05], strategy=AT_ONCE),
    S("a strategy's longer delay holds after an overload", READ, [OVERLOAD] * 3, OK, 4,
      [0.15, 0.15, 0.2], strategy=waiting(0.15)),
    S("a strategy's longer delay is cut after an overload", READ, [OVERLOAD], OK, 2, [0.195],
      strategy=waiting(60), timeout=0.2),
    S("a strategy's longer delay is cut to the overload's", READ, [OVERLOAD], OK, 2, [0.05],
      strategy=waiting(60), timeout=0.052),
    S("a strategy that raises", READ, [CUT], STRATEGY, 1, [], strategy=RAISES),
    S("a strategy that talks nonsense", READ, [CUT], STRATEGY, 1, [], strategy=TALKS_NONSENSE),
    S("a strategy that never comes back", READ, [CUT], STRATEGY, 1, [],
      strategy=waiting(float("inf"))),
    S("a strategy whose delay is not a number", READ, [CUT], STRATEGY, 1, [],
      strategy=waiting(float("nan"))),
    S("a strategy cannot permit a half-done write", UPDATE_MANY, [CUT], NOT_SAFE, 1, [],
      strategy=AT_ONCE),
    S("not primary: without asking", READ, [NOT_PRIMARY], OK, 2, [0.001], strategy=REFUSES),
    S("not primary: controlled back-off, best_effort", READ, [NOT_PRIMARY] * 7, OK, 8, CONTROLLED,
      strategy=BEST_EFFORT, timeout=100),
    S("not primary among others", READ, [CUT, NOT_PRIMARY, CUT, NOT_PRIMARY], OK, 5,
      [0, 0.01, 0.0015, 0.1], timeout=100),
    S("not primary and overloaded waits as an overload", READ,
      [NOT_PRIMARY(labels=frozenset({SYSTEM_OVERLOADED}))], OK, 2, [0.05]),
    S("not primary and overloaded, both labels", READ, [NOT_PRIMARY(labels=BOTH)], OK, 2, [0.05]),
    S("mongodb: no back-off but for overload", READ, [CUT] * 6, OK, 7, [0] * 6, strategy=MONGODB,
      timeout=100),
    S("mongodb: no controlled back-off", READ, [NOT_PRIMARY] * 6, OK, 7, [0] * 6, strategy=MONGODB,
      timeout=100),
    S("mongodb: overload waits", READ, [CUT, OVERLOAD, NOT_PRIMARY], OK, 4, [0, 0.1, 0],
      strategy=MONGODB),
    S("mongodb: a write conflict is not specified", READ, [CONFLICT], STRATEGY, 1, [],
      strategy=MONGODB),
    S("mongodb: a retryable write is told by its label", INSERT_ONE, [UNAVAILABLE], STRATEGY, 1,
      [], strategy=MONGODB),
    S("mongodb: a retryable write with the label", INSERT_ONE, [LABELLED, NOT_PRIMARY], STRATEGY,
      2, [0], strategy=MONGODB, timeout=10),
    S("mongodb: a commit is told by its label", COMMIT, [UNAVAILABLE], STRATEGY, 1, [],
      strategy=MONGODB),
    S("mongodb: another write that was not sent", UPDATE_MANY, [UNCONNECTED], STRATEGY, 1, [],
      strategy=MONGODB),
    S("mongodb: a declared write is told as a read is", IDEMPOTENT, [CUT, CONFLICT], STRATEGY, 2,
      [0], strategy=MONGODB, timeout=10),
    S("mongodb: an untrusted certificate is a network error", READ, [UNTRUSTED], OK, 2, [0],
      strategy=MONGODB),
    S("mongodb: an overloaded write conflict is", READ, [CONFLICT(labels=BOTH)], OK, 2, [0.05],
      strategy=MONGODB),
    S("the error's own base", READ, [OVERLOAD(base_backoff=0.02)] * 3, OK, 4, [0.01, 0.02, 0.04]),
    S("the error's own base, once", READ, [OVERLOAD(base_backoff=4.0), OVERLOAD], OK, 3, [2, 0.1]),
    S("the error's own base is held by the limit", READ, [OVERLOAD(base_backoff=1000.0)], OK, 2,
      [2.5]),
    S("the option's base", READ, [OVERLOAD] * 2, OK, 3, [0.5, 1], base_backoff=1.0),
    S("the option's limit", READ, [OVERLOAD] * 3, OK, 4, [0.05, 0.075, 0.075], max_backoff=0.3),
    S("the error's base and its count", READ, [CUT, CUT, OVERLOAD(base_backoff=0.02)], OK, 4,
      [0, 0.00075, 0.04], timeout=10),
]
RULE_6 = [
    S("the deadline passes during an attempt", READ, [CUT(takes=2)], DEADLINE, 1, [], timeout=1),
    S("the deadline passes during a retry", READ, [CUT(takes=0.75)] * 9, DEADLINE, 2, [0],
      timeout=1),
    S("a deadline that is over to the instant", READ, [CUT(takes=1)], DEADLINE, 1, [], timeout=1),
    S("the last attempt fits", READ, [CUT(takes=0.5, min_rtt=0.25)], OK, 2, [0], timeout=1),
    S("the last attempt does not fit", READ, [CUT(takes=0.75, min_rtt=0.5)], DEADLINE, 1, [],
      timeout=1),
    S("the last attempt fits to the instant: too late", READ, [CUT(takes=0.75, min_rtt=0.25)],
      DEADLINE, 1, [], timeout=1),
    S("a retry at once fits into a moment", READ, [CUT(takes=0.997)], OK, 2, [0], timeout=1),
    S("a delay is shortened", READ, [CUT(takes=0.5, min_rtt=0.125)], OK, 2, [0.37], timeout=1,
      strategy=waiting(60)),
    S("a delay is shortened, and that is the end", READ, [CUT(takes=0.5, min_rtt=0.125)] * 9,
      DEADLINE, 2, [0.37], timeout=1, strategy=waiting(60)),
    S("after a shortened delay there is one attempt", READ, [CUT(takes=0.5)] + [CUT] * 9, DEADLINE,
      2, [0.495], timeout=1, strategy=waiting(60)),
    S("a controlled delay is shortened", READ, [NOT_PRIMARY] * 5 + [NOT_PRIMARY(takes=0.25)],
      OK, 7, [*CONTROLLED[:5], 0.084], timeout=1),
    S("an overload delay that does not fit", READ, [OVERLOAD], TOO_LONG, 1, [], base_backoff=0.5,
      timeout=0.125),
    S("an overload delay that fits to the instant: too late", READ, [OVERLOAD], TOO_LONG, 1, [],
      base_backoff=0.5, timeout=0.25),
    S("an overload delay that fits no more", READ, [OVERLOAD] * 9, TOO_LONG, 3, [0.05, 0.1],
      timeout=0.25),
    S("an overload delay of the error that does not fit", READ, [OVERLOAD(base_backoff=20.0)],
      TOO_LONG, 1, [], timeout=1),
    S("the attempt used up the time", READ, [OUT_OF_TIME(takes=10)], DEADLINE, 1, [], timeout=10),
    S("no reply in the socket's own time, time left", READ, [OUT_OF_TIME], OK, 2, [0], timeout=10),
    S("no reply in the socket's own time, little time left", READ, [OUT_OF_TIME(takes=9.5)], OK, 2,
      [0], timeout=10),
    S("no reply in the socket's own time, another write", UPDATE_MANY, [OUT_OF_TIME], NOT_SAFE, 1,
      [], timeout=10),
    S("stopped by a server that counts a little faster", READ, [STOPPED(takes=9.9)], DEADLINE, 1,
      [], timeout=10),
    S("a limit of the server, time left", READ, [STOPPED(takes=9)], LIMIT, 1, [], timeout=10),
    S("a limit of the server, without a deadline", READ, [STOPPED], LIMIT, 1, []),
    S("a limit of the server, a command", COMMAND, [STOPPED], LIMIT, 1, [], timeout=10),
    S("a limit of the server, labelled", INSERT_ONE, [LABELLED(timed_out=True)], OK, 2, [0],
      timeout=10),
    S("a limit of the application, no time left", READ, [OWN_LIMIT(takes=10)], LIMIT, 1, [],
      timeout=10),
    S("a limit of the socket, on a server that lives", READ, [SILENT, SLOW], LIMIT, 2, [0],
      timeout=10),
    S("a limit of the socket, a numbered write", INSERT_ONE, [SLOW] * 2, LIMIT, 2, [0], timeout=10),
    S("a limit of the socket, an unsafe write", UPDATE_MANY, [SLOW] * 2, NOT_SAFE, 1, [],
      timeout=10),
    S("a limit of the socket, after a lost connection", READ, [CUT, SLOW, SLOW], LIMIT, 3,
      [0, 0.00075], timeout=10),
    S("a limit of the socket, on a server that does not live", READ, [SILENT] * 4, OK, 5,
      [0, 0.00075, 0.0015, 0.003], timeout=10),
    S("a limit of the socket, a commit", COMMIT, [SLOW] * 3, OK, 4, [0, 0.00075, 0.0015],
      timeout=10),
    S("a limit of the socket, without a deadline", READ, [SILENT, SLOW], LIMIT, 2, [0]),
    S("a limit of the socket, on another server before", READ, [NO_REPLY, SLOW], OK, 3,
      [0, 0.00075], timeout=10),
    S("no server, and the time is up", READ, [NO_SERVER], DEADLINE, 1, [], timeout=0.0),
    S("no server on the retry, and no answer would be in time", READ,
      [CUT(takes=0.25, min_rtt=0.5), NO_SERVER(min_rtt=0.51)], DEADLINE, 2, [0.245], timeout=1,
      strategy=waiting(0.25)),
    S("no connection in its own time, time left", READ, [CONNECTED_LATE] * 2, OK, 3, [0, 0.00075],
      timeout=10),
    S("no connection in its own time, another write", UPDATE_MANY, [CONNECTED_LATE], OK, 2, [0],
      timeout=10),
    S("no connection in its own time, taken for overload", COMMAND, [CONNECTED_LATE(labels=BOTH)],
      OK, 2, [0.05], timeout=10),
    S("no connection, and the time is up", READ, [CONNECTED_LATE], DEADLINE, 1, [], timeout=0.0),
    S("no connection, and no answer would be in time", READ, [CONNECTED_LATE(min_rtt=0.5)],
      DEADLINE, 1, [], timeout=0.5),
    S("no place in the pool, time left", READ, [POOL_FULL], OK, 2, [0], timeout=10),
    S("no place in the pool, and the time is up", READ, [POOL_FULL], DEADLINE, 1, [], timeout=0.0),
    S("an attempt's own limit, without a deadline", READ, [OUT_OF_TIME], OK, 2, [0]),
    S("mongodb: a storm until the deadline", READ, [CUT(takes=0.125)] * 9, DEADLINE, 8, [0] * 7,
      strategy=MONGODB, timeout=1),
    S("rule 4 before rule 6", READ, [OVERLOAD(takes=9)], ATTEMPTS, 1, [], max_retries=0, timeout=1),
    S("rule 5 before rule 6", READ, [CUT(takes=2)], STRATEGY, 1, [], strategy=REFUSES, timeout=1),
]
RULE_7 = [
    S("no deadline: the probe is not waited for", READ, [REFUSED], BREAKER, 1, []),
    S("no deadline: nor is one that comes soon", READ, [REFUSED(next_probe_in=0.5)], BREAKER, 1,
      []),
    S("no deadline: another server is there", READ, [REFUSED_HERE], OK, 2, [0]),
    S("no deadline: another server is there, but one retry", READ, [REFUSED_HERE] * 2, ATTEMPTS, 2,
      [0]),
    S("no deadline: the time of the probe has come", READ, [REFUSED(next_probe_in=0.0)], OK, 2,
      [0]),
    S("no deadline: rule 4 before rule 7", READ, [CUT, REFUSED], ATTEMPTS, 2, [0]),
    S("a deadline: the probe is waited for", READ, [REFUSED], OK, 2, [2], timeout=10),
    S("a deadline: by another write, nothing was sent", UPDATE_MANY, [REFUSED], OK, 2, [2],
      timeout=10),
    S("a deadline: another server is there", READ, [REFUSED_HERE] * 3, OK, 4, AFTER_OTHERS[:3],
      timeout=10),
    S("a deadline: the probes are others' for a while", READ,
      [REFUSED, *[REFUSED(next_probe_in=0.125)] * 3], OK, 5, [2, 0.125, 0.125, 0.125], timeout=10),
    S("a deadline: the strategy waits longer", READ, [REFUSED], OK, 2, [3], timeout=10,
      strategy=waiting(3)),
    S("a deadline: the strategy's wait is shortened", READ, [REFUSED(min_rtt=0.125)], OK, 2,
      [2.87], timeout=3, strategy=waiting(60)),
    S("a deadline: the probe is past it", READ, [REFUSED], BREAKER, 1, [], timeout=1),
    S("a deadline: the wait is not shortened", READ, [REFUSED(min_rtt=0.5)], BREAKER, 1, [],
      timeout=2.25),
    S("a deadline: the last attempt fits", READ, [REFUSED(takes=0.5, min_rtt=0.25)], OK, 2, [2],
      timeout=2.75),
    S("without end: the probe is within the window", READ, [REFUSED], OK, 2, [2], window=30),
    S("it costs no token", READ, [REFUSED], OK, 2, [2], timeout=10, tokens=(0, 1.1)),
    S("a deadline: a command, nothing was sent", COMMAND, [REFUSED], OK, 2, [2], timeout=10),
    S("a deadline: an unacknowledged write, nothing was sent", UNACKNOWLEDGED, [REFUSED], OK, 2,
      [2], timeout=10),
    S("rule 0 before rule 7", CLEANUP, [REFUSED], NEVER, 1, [], timeout=10),
    S("rule 3 before rule 7", READ(retries_enabled=False), [REFUSED], OFF, 1, [], timeout=10),
    S("rule 5 before rule 7", READ, [REFUSED], STRATEGY, 1, [], timeout=10, strategy=REFUSES),
    S("rule 6 before rule 7", READ, [REFUSED(takes=2)], DEADLINE, 1, [], timeout=1),
]
RULE_8 = [
    S("a first success returns a tenth", READ, [], OK, 1, [], tokens=(10, 10.1)),
    S("an overload retry costs one, its success returns it", READ, [OVERLOAD], OK, 2, [0.05],
      tokens=(10, 10.1)),
    S("every overload retry costs one", READ, [OVERLOAD] * 6, ATTEMPTS, 6, AFTER_OVERLOAD,
      tokens=(10, 5)),
    S("the last token", READ, [OVERLOAD] * 2, BUDGET, 2, [0.05], tokens=(1, 0)),
    S("no token", READ, [OVERLOAD], BUDGET, 1, [], tokens=(0, 0)),
    S("one overload label costs a token too", READ, [BUSY], BUDGET, 1, [], tokens=(0, 0)),
    S("other retries cost none", READ, [CUT], OK, 2, [0], tokens=(0, 1.1)),
    S("a retry that fails otherwise returns one", READ, [OVERLOAD, UNKNOWN], NO_REASON, 2, [0.05],
      tokens=(5, 5)),
    S("a retry that fails otherwise returns one, whatever is decided", READ, [CUT, CUT], ATTEMPTS,
      2, [0], tokens=(5, 6)),
    S("a retry that fails otherwise pays for the next", READ, [OVERLOAD, CUT, OVERLOAD], OK, 4,
      [0.05, 0.00075, 0.2], tokens=(1, 1.1)),
    S("a retry that fails by overload returns none", READ, [CUT, OVERLOAD], BUDGET, 2, [0],
      tokens=(0, 0)),
    S("a bulk's next command: the last retry has succeeded", INSERT_ONE,
      [OVERLOAD, OVERLOAD(next_command=True)], OK, 3, [0.05, 0.05], tokens=(5, 5.2)),
    S("rule 3 before rule 8: no token is taken", READ(retries_enabled=False), [OVERLOAD], OFF, 1,
      [], tokens=(5, 5)),
    S("rule 4 before rule 8: no token is taken", READ, [OVERLOAD], ATTEMPTS, 1, [], tokens=(5, 5),
      max_retries=0),
    S("rule 5 before rule 8: no token is taken", READ, [OVERLOAD], STRATEGY, 1, [], tokens=(5, 5),
      strategy=REFUSES),
    S("rule 6 before rule 8: no token is taken", READ, [OVERLOAD], TOO_LONG, 1, [], tokens=(5, 5),
      timeout=0.03),
]
# fmt: on

SECTIONS = {
    "no fault": WITHOUT_FAULT,
    "selection": RULE_SELECTION,
    "rule 0": RULE_0,
    "rule 1": RULE_1,
    "rule 2": RULE_2,
    "rule 3": RULE_3,
    "rule 4": RULE_4,
    "rule 5": RULE_5,
    "rule 6": RULE_6,
    "rule 7": RULE_7,
    "rule 8": RULE_8,
}
SCENARIOS: list[tuple[str, Scenario]] = [
    (f"{section}: {row.name}", row) for section, rows in SECTIONS.items() for row in rows
]
