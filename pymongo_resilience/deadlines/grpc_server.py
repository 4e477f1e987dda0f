"""Request deadlines for gRPC: interceptors for ``grpc.server`` and ``grpc.aio.server``.

gRPC itself reads the caller's deadline and ends the call, including a stream of responses.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from pymongo_resilience.deadlines.limits import EXPIRED_TEXT, RequestLimits, report_expired
from pymongo_resilience.deadlines.request import Request

Behavior = Callable[[Any, Any], Any]
"""The application's method. It is called with the request, or an iterator of requests, and a
context.
"""


def grpc_interceptor(*, max_ms: int | None = None, default_ms: int | None = None) -> Any:
    """Return an interceptor for ``grpc.server(..., interceptors=[grpc_interceptor()])``.

    All operations of a call end at the call's deadline. A call whose time is over when it arrives
    ends with DEADLINE_EXCEEDED. The interceptor is thread-safe. Requires the package grpcio.

    Args:
        max_ms: The maximum for a call, in milliseconds. Without it, the call's deadline alone
            decides.
        default_ms: The timeout of a call without a deadline, in milliseconds. Without it, such a
            call has no deadline.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    limits = RequestLimits(max_ms=max_ms, default_ms=default_ms)
    grpc: Any = import_module("grpc")
    interceptor = _Interceptor(grpc, limits)
    # gRPC requires an instance of its abstract class. Registering a virtual subclass avoids
    # importing gRPC together with this module.
    grpc.ServerInterceptor.register(_Interceptor)
    return interceptor


def grpc_aio_interceptor(*, max_ms: int | None = None, default_ms: int | None = None) -> Any:
    """Return a task-safe interceptor for ``grpc.aio.server``. Otherwise like
    ``grpc_interceptor``.
    """
    limits = RequestLimits(max_ms=max_ms, default_ms=default_ms)
    grpc: Any = import_module("grpc")
    aio: Any = import_module("grpc.aio")
    interceptor = _AsyncInterceptor(grpc, limits)
    aio.ServerInterceptor.register(_AsyncInterceptor)
    return interceptor


class _Interceptor:
    def __init__(self, grpc: Any, limits: RequestLimits) -> None:
        self._grpc = grpc
        self._limits = limits

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of a call, which applies the deadline to the application's method."""
        return self._around(continuation(details))

    def _around(self, handler: Any) -> Any:
        # The server has no such method. gRPC then answers UNIMPLEMENTED.
        if handler is None:
            return None
        # gRPC keeps the method in one of four attributes, and has one constructor for each.
        kind = "stream" if handler.request_streaming else "unary"
        kind += "_stream" if handler.response_streaming else "_unary"
        behavior = self._wrap(getattr(handler, kind), handler.response_streaming)
        return getattr(self._grpc, f"{kind}_rpc_method_handler")(
            behavior, handler.request_deserializer, handler.response_serializer
        )

    def _wrap(self, behavior: Behavior, streams: bool) -> Behavior:
        def call(request: Any, context: Any) -> Any:
            seconds = self._limits.seconds_of(context.time_remaining())
            if seconds is None:
                return behavior(request, context)
            if seconds <= 0:
                report_expired("grpc")
                # ``abort`` always raises.
                return context.abort(self._grpc.StatusCode.DEADLINE_EXCEEDED, EXPIRED_TEXT)
            incoming = Request(seconds)
            with incoming.step():
                result = behavior(request, context)
            # A generator has not run yet, so each of its items is created under the deadline.
            return incoming.steps(iter(result)) if streams else result

        return call


class _AsyncInterceptor(_Interceptor):
    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Return the handler of a call, as in the synchronous interceptor."""
        return self._around(await continuation(details))

    def _wrap(self, behavior: Behavior, streams: bool) -> Behavior:
        if inspect.isasyncgenfunction(behavior):

            async def stream(request: Any, context: Any) -> Any:
                incoming = await self._begin(context)
                items = behavior(request, context)
                async for item in items if incoming is None else incoming.steps_async(items):
                    yield item

            return stream
        if inspect.iscoroutinefunction(behavior):

            async def call(request: Any, context: Any) -> Any:
                incoming = await self._begin(context)
                if incoming is None:
                    return await behavior(request, context)
                with incoming.step():
                    return await behavior(request, context)

            return call
        # gRPC runs a method that is not a coroutine function in a thread, with a context for
        # threads.
        return super()._wrap(behavior, streams)

    async def _begin(self, context: Any) -> Request | None:
        """Return the deadline of a call, or None. End the call if its time is over."""
        seconds = self._limits.seconds_of(context.time_remaining())
        if seconds is not None and seconds <= 0:
            report_expired("grpc")
            await context.abort(self._grpc.StatusCode.DEADLINE_EXCEEDED, EXPIRED_TEXT)
        return None if seconds is None else Request(seconds)
