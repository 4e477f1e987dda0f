"""Recognizes MongoDB-compatible engines, and reports what works differently on them.

By host names, or by fields of the replies to ``hello`` and ``buildInfo``. docs/engines.md has the
details and the sources.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from . import Finding, Level

if TYPE_CHECKING:
    from .uri import Target


class Engine(enum.Enum):
    """An engine that is not MongoDB. The value is its name."""

    AMAZON_DOCUMENTDB = "Amazon DocumentDB"
    AZURE_DOCUMENTDB = "Azure DocumentDB"
    COSMOS_DB = "Azure Cosmos DB for MongoDB (RU)"
    DOCUMENTDB = "DocumentDB (open source)"
    FERRETDB = "FerretDB"


_HOSTS: Final = {
    Engine.AMAZON_DOCUMENTDB: re.compile(r"\bdocdb(-elastic)?\.([\w-]+\.)?amazonaws\.com(\.cn)?$"),
    Engine.AZURE_DOCUMENTDB: re.compile(r"\.mongocluster\.cosmos\.azure\.com$"),
    Engine.COSMOS_DB: re.compile(r"\.(mongo\.cosmos|documents)\.azure\.com$"),
}
_WRITES_IF_DECLARED: Final = (
    "reads are retried, and writes if you declare them idempotent with override(idempotent=True)"
)
_DIFFERENT: Final = {
    Engine.AMAZON_DOCUMENTDB: f"it does not support retryable writes: {_WRITES_IF_DECLARED}",
    Engine.AZURE_DOCUMENTDB: f"its connection string has retryWrites=false: {_WRITES_IF_DECLARED}",
    Engine.COSMOS_DB: (
        "retryable writes need the capability EnableMongoRetryableWrites. The server throttles "
        "requests (code 16500). Reads are retried, and writes if you declare them idempotent with "
        "override(idempotent=True)"
    ),
    Engine.DOCUMENTDB: f"it may not support retryable writes: {_WRITES_IF_DECLARED}",
    Engine.FERRETDB: (
        "it has neither retryable writes nor transactions, so override(atomic=True) and "
        f"retry_transaction do not work: {_WRITES_IF_DECLARED}"
    ),
}
NEED_RETRY_WRITES_OFF: Final = frozenset({Engine.AMAZON_DOCUMENTDB, Engine.AZURE_DOCUMENTDB})
"""Engines that refuse writes, or whose own connection string says so, without retryWrites=false."""


def of_hosts(hosts: Iterable[str]) -> Engine | None:
    """Return the engine that a host name belongs to; None if it may be MongoDB."""
    for host in hosts:
        for engine, pattern in _HOSTS.items():
            if pattern.search(host.lower()):
                return engine
    return None


def of_target(target: Target) -> Engine | None:
    """Return the engine that the host names of a URI belong to."""
    return of_hosts([*([target.srv] if target.srv else ()), *(host for host, _ in target.seeds)])


def of_replies(
    hello: Mapping[str, Any] | None, build_info: Mapping[str, Any] | None
) -> Engine | None:
    """Return the engine whose fields are in a server's replies."""
    # FerretDB names itself in buildInfo, the engines based on DocumentDB in hello.
    if "ferretdb" in (build_info or {}):
        return Engine.FERRETDB
    internal = (hello or {}).get("internal")
    if not isinstance(internal, Mapping):
        return None
    if internal.get("kind") == "azuredocumentdb":
        return Engine.AZURE_DOCUMENTDB
    is_documentdb = "documentdb_versions" in internal or "cosmos_versions" in internal
    return Engine.DOCUMENTDB if is_documentdb else None


def findings(engine: Engine | None, target: Target) -> Iterator[Finding]:
    """Yield what to know about an engine, and what to change in the URI."""
    if engine is None:
        return
    text = f"{engine.value}, not MongoDB: {_DIFFERENT[engine]}"
    yield Finding("engine", Level.NOTE, text)
    if engine in NEED_RETRY_WRITES_OFF and target.flag("retrywrites", default=True):
        text = f"{engine.value} may refuse every write, because retryWrites is on"
        yield Finding("engine", Level.WARNING, text, "set retryWrites=false in the URI")
