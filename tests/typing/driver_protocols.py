"""pymongo's own classes fit the protocols of ``driver/protocols.py``: mypy finds a name that is
gone or has another type. Nothing here ever runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymongo.asynchronous import (
        change_stream as async_change_stream,
        client_session as async_client_session,
        command_cursor as async_command_cursor,
        cursor as async_cursor,
        monitor as async_monitor,
        pool as async_pool,
        server as async_server,
        topology as async_topology,
    )
    from pymongo.message import _BulkWriteContext, _OpMsg
    from pymongo.network_layer import AsyncNetworkingInterface, NetworkingInterface
    from pymongo.response import Response
    from pymongo.synchronous import (
        change_stream,
        client_session,
        command_cursor,
        cursor,
        monitor,
        pool,
        server,
        topology,
    )
    from pymongo.typings import _AgnosticBulk, _AgnosticClientBulk, _AgnosticMongoClient
    from pymongo_resilience_instrumentation.driver import protocols


def _client(it: _AgnosticMongoClient) -> protocols.Client:
    return it


def _session(
    it: client_session.ClientSession | async_client_session.AsyncClientSession,
) -> protocols.Session:
    return it


def _topology(it: topology.Topology | async_topology.Topology) -> protocols.Topology:
    return it


def _server(it: server.Server | async_server.Server) -> protocols.Server:
    return it


def _monitor(it: monitor.Monitor | async_monitor.Monitor) -> protocols.Monitor:
    return it


def _pool(it: pool.Pool | async_pool.Pool) -> protocols.Pool:
    return it


def _connection(it: pool.Connection | async_pool.AsyncConnection) -> protocols.Connection:
    return it


def _interface(it: NetworkingInterface | AsyncNetworkingInterface) -> protocols.NetworkInterface:
    return it


def _find_cursor(
    it: cursor.Cursor[Any] | async_cursor.AsyncCursor[Any],
) -> protocols.FindCursor:
    return it


def _cursor(
    it: command_cursor.CommandCursor[Any] | async_command_cursor.AsyncCommandCursor[Any],
) -> protocols.Cursor:
    return it


def _change_stream(
    it: change_stream.ChangeStream[Any] | async_change_stream.AsyncChangeStream[Any],
) -> protocols.ChangeStream:
    return it


def _bulk(it: _AgnosticBulk | _AgnosticClientBulk) -> protocols.Bulk:
    return it


def _bulk_context(it: _BulkWriteContext) -> protocols.BulkContext:
    return it


def _response(it: Response) -> protocols.Response:
    return it


def _raw_reply(it: _OpMsg) -> protocols.RawReply:
    return it
