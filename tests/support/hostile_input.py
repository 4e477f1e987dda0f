"""Hypothesis strategies for hostile input: what a server, a network or a user may send us.

How many examples a run takes: see support/examples.py. ``CHAOS_SEED`` repeats a run; a failure
prints how to repeat its example alone.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
from support.examples import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = os.environ.get("CHAOS_SEED")

LABELS = (
    "SystemOverloadedError",
    "RetryableError",
    "RetryableWriteError",
    "NoWritesPerformed",
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
)
BOTH_OVERLOAD_LABELS = frozenset({"SystemOverloadedError", "RetryableError"})
CODES = (
    *(6, 7, 13, 18, 20, 24, 26, 43, 46, 50, 64, 79, 89, 91, 112, 125, 134, 189, 225, 251, 262, 391),
    *(9001, 10058, 10107, 11000, 11600, 11602, 13435, 13436),
)
"""Codes that the driver or this library knows by heart."""
INT64 = st.integers(-(2**63), 2**63 - 1)
strange_floats = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1e308])


def examples(number: int) -> Callable[[Any], Any]:
    """Settings for a test with ``number`` examples, or what this run takes of them.

    Fixtures serve all examples of a test: what the tests need of them, they bring back themselves.
    """
    chosen = settings(
        max_examples=scaled(number),
        deadline=None,
        database=None,
        print_blob=True,
        # Explaining takes hundreds of further runs, each of them against a server.
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )
    return chosen if SEED is None else lambda test: seed(int(SEED))(chosen(test))


texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "\0", "a\0b", "0", "1", "true", "NaN", "\u202e", "a\nb", "%s %d {0}"]
)
megabyte = st.just(1_000_000).map("x".__mul__)
long_texts = (
    texts
    | st.sampled_from(["not master", "node is recovering", "operation would exceed time limit"])
    | megabyte
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | INT64.map(Int64)
    | st.integers(-2, 300)
    | st.floats()
    | strange_floats
    | texts
    | st.binary(max_size=12)
    | st.sampled_from(
        [
            Binary(b"0123456789abcdef", 4),
            Code("function () { return 1 }"),
            Decimal128("NaN"),
            Decimal128("1E+6000"),
            MaxKey(),
            MinKey(),
            ObjectId("0" * 24),
            Regex("(", "i"),
            Timestamp(2**32 - 1, 2**32 - 1),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, tzinfo=UTC),
        ]
    )
)
bson_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
"""Anything that BSON can say."""

codes = (
    st.sampled_from(CODES)
    | st.sampled_from(CODES).map(float)
    | st.sampled_from(CODES).map(str)
    | bson_values
)
good_labels = st.lists(st.sampled_from(LABELS), max_size=4, unique=True)
overload_labels = st.sampled_from([["SystemOverloadedError", "RetryableError"]])
labels = (
    good_labels
    | overload_labels
    | st.sampled_from(LABELS)
    | st.dictionaries(st.sampled_from(LABELS), st.booleans(), max_size=3)
    | st.lists(st.sampled_from(LABELS) | scalars, max_size=4)
    | st.lists(good_labels, max_size=2)
    | st.just([f"label {number}" for number in range(1000)])
    | bson_values
)
topology_versions = (
    st.fixed_dictionaries({}, optional={"processId": bson_values, "counter": bson_values})
    | bson_values
)
cluster_times = (
    st.fixed_dictionaries({}, optional={"clusterTime": bson_values, "signature": bson_values})
    | bson_values
)
backoffs = st.floats() | INT64.map(Int64) | strange_floats | st.integers(-1, 20) | bson_values
error_texts = long_texts | bson_values
infos = st.fixed_dictionaries({}, optional={"wtimeout": bson_values}) | bson_values
inner_errors = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 1) | bson_values,
        "code": codes,
        "codeName": long_texts | bson_values,
        "errmsg": error_texts,
        "errInfo": infos,
        "errorLabels": labels,
        "baseBackoffMS": backoffs,
    },
)
write_errors = st.lists(inner_errors, max_size=3) | inner_errors | bson_values
_ERROR_FIELDS: dict[Any, Any] = {
    "errmsg": error_texts,
    "code": codes,
    "codeName": long_texts | bson_values,
    "errorLabels": labels,
    "baseBackoffMS": backoffs,
    "retryAfterMS": backoffs,
    "errInfo": infos,
    "topologyVersion": topology_versions,
    "writeErrors": write_errors,
    "writeConcernError": inner_errors | write_errors,
    "writeConcernErrors": write_errors,
}
NOT_OK = (0, 0.0, False, None, "x", float("nan"), -1, {}, [], Decimal128("0"))
error_documents = st.fixed_dictionaries(
    {"ok": st.sampled_from(NOT_OK)}, optional=_ERROR_FIELDS
) | st.fixed_dictionaries({}, optional={"ok": bson_values, **_ERROR_FIELDS})
"""What a server may answer instead of a result."""
likely_errors = st.fixed_dictionaries(
    {
        "ok": st.just(0.0),
        "errmsg": st.just("hostile"),
        "code": st.sampled_from(CODES) | st.sampled_from(CODES).map(float),
    },
    optional={name: _ERROR_FIELDS[name] for name in ("codeName", "errorLabels", "baseBackoffMS")},
)
"""Errors that the retry rules have something to say about, wrong in one or two places."""
