"""Deadlines from incoming requests: operations of a request end when its caller stops waiting.

A middleware or an interceptor reads how long the caller waits, and limits every operation of the
request to that time. It does not limit what runs after the response. See docs/request-deadlines.md.
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
