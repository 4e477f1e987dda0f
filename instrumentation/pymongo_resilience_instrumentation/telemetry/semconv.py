"""Names that several modules share: each name of the telemetry is in its code once."""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.addresses import Address

DB_OPERATION_NAME = "db.operation.name"
DB_COMMAND_NAME = "db.command.name"
SERVER_CONNECTION_ID = "db.mongodb.server_connection_id"
LSID = "db.mongodb.lsid"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"

ATTEMPTS = "pymongo_resilience.attempts"
OUTCOME = "pymongo_resilience.outcome"
REASON = "pymongo_resilience.reason"
SERVER = "pymongo_resilience.server"
DECISION = "pymongo_resilience.decision"
WAITED = "pymongo_resilience.waited"
HEDGE_WINNER = "pymongo_resilience.hedge.winner"
NEITHER = "neither"

EVENT_SCHEDULED = "retry.scheduled"
EVENT_DECLINED = "retry.declined"

DURATION_BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Seconds; the SDK's defaults would put every value under five seconds in one bucket."""
ATTEMPT_BOUNDARIES = (1, 2, 3, 4, 6, 11, 21)
KNOWN_NAMES = 1024
"""Operations on more collections than this are recorded as well, without the cache."""


def namespace_attributes(database: str, collection: str | None) -> dict[str, Any]:
    attributes = {"db.system.name": "mongodb", "db.namespace": database}
    if collection is not None and database != "admin":
        attributes["db.collection.name"] = collection
    return attributes


def address_attributes(address: Address) -> dict[str, Any]:
    host, port = address
    attributes: dict[str, Any] = {"server.address": host}
    if port is not None:
        attributes["server.port"] = port
    return attributes
