"""The fixtures of these tests; more of them are in ``tests/support``."""

from support.fixtures import (
    cluster,
    control,
    database,
    instrument,
    proxy,
    quick_monitors,
    replica_set,
    server,
    side,
)
