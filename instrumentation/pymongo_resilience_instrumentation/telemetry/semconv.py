"""The names of attributes and events, each once; metrics are named where they are made."""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.clients import client_registry

DB_SYSTEM_NAME = "db.system.name"
MONGODB = "mongodb"
DB_NAMESPACE = "db.namespace"
DB_COLLECTION_NAME = "db.collection.name"
DB_OPERATION_NAME = "db.operation.name"
DB_OPERATION_SUMMARY = "db.operation.summary"
DB_COMMAND_NAME = "db.command.name"
DB_QUERY_SUMMARY = "db.query.summary"
DB_QUERY_TEXT = "db.query.text"
DB_RESPONSE_STATUS_CODE = "db.response.status_code"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
NETWORK_TRANSPORT = "network.transport"
SERVER_CONNECTION_ID = "db.mongodb.server_connection_id"
DRIVER_CONNECTION_ID = "db.mongodb.driver_connection_id"
CURSOR_ID = "db.mongodb.cursor_id"
LSID = "db.mongodb.lsid"
TXN_NUMBER = "db.mongodb.txn_number"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
POOL_NAME = client_registry.POOL_NAME
CONNECTION_STATE = "db.client.connection.state"

OURS = "pymongo_resilience."
ATTEMPTS = OURS + "attempts"
RETRY_REASONS = OURS + "retry.reasons"
BACKOFF_TOTAL = OURS + "backoff.total"
DEADLINE = OURS + "deadline"
OUTCOME = OURS + "outcome"
REASON = OURS + "reason"
SERVER = OURS + "server"
DECISION = OURS + "decision"
DELAY = OURS + "delay"
RULE = OURS + "rule"
SERVER_TYPE = OURS + "server.type"
TOPOLOGY_TYPE = OURS + "topology.type"
WAITED = OURS + "waited"
CONNECTING = OURS + "connecting"
CLIENT = OURS + "client"
STATE = OURS + "state"
AWAITED = OURS + "awaited"
HEDGE_SERVER = OURS + "hedge.server"
HEDGE_WINNER = OURS + "hedge.winner"
NEITHER = "neither"

EVENT_SELECTION_WAITED = "server_selection.waited"
EVENT_CONNECTION_WAITED = "connection.waited"
EVENT_SCHEDULED = "retry.scheduled"
EVENT_DECLINED = "retry.declined"
EVENT_HEDGED = "read.hedged"

EVENT_TIMELINE = "operation.timeline"
PHASES = OURS + "timeline.phases"
MILLISECONDS = OURS + "timeline.milliseconds"

DURATION_BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Seconds; the SDK's defaults would put every value under five seconds in one bucket."""
ATTEMPT_BOUNDARIES = (1, 2, 3, 4, 6, 11, 21)
KNOWN_NAMES = 1024
"""Operations on more collections than this are recorded as well, without the cache."""


def address_attributes(address: Address) -> dict[str, Any]:
    host, port = address
    attributes: dict[str, Any] = {SERVER_ADDRESS: host}
    if port is not None:
        attributes[SERVER_PORT] = port
    return attributes
