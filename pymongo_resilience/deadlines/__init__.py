"""Deadlines from the incoming request: all operations of a request share the time that its caller
still waits.

A middleware or interceptor reads how long the caller waits, and ends every operation of the request
by then. Whatever runs after the response has none of it. See docs/request-deadlines.md.
"""

from pymongo_resilience.deadlines.asgi import ASGIMiddleware
from pymongo_resilience.deadlines.celery_tasks import connect_celery
from pymongo_resilience.deadlines.grpc_server import grpc_aio_interceptor, grpc_interceptor
from pymongo_resilience.deadlines.request import detached, remaining_ms, request_deadline
from pymongo_resilience.deadlines.wsgi import WSGIMiddleware

__all__ = [
    "ASGIMiddleware",
    "WSGIMiddleware",
    "connect_celery",
    "detached",
    "grpc_aio_interceptor",
    "grpc_interceptor",
    "remaining_ms",
    "request_deadline",
]
