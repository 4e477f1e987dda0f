"""Where a play takes place: one of pymongo's two APIs, with a server and clients."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pymongo
from pymongo import monitoring
from support.clients import POLLING, Side


@dataclass
class Scene(Side):
    """A side with a server behind a proxy; all that it does shares one context."""

    uri: str = ""
    database: str = ""
    control: Any = None
    proxy: Any = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    heard: list[str] = field(default_factory=list)
    """Names of the decisions, not the events: these would count as left behind."""

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.runner is None:
            return self.context.run(function, *args, **kwargs)

        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        return self.runner.run(call(), context=self.context)

    @property
    def is_async(self) -> bool:
        return self.runner is not None

    def pause(self, seconds: float) -> None:
        self.do(asyncio.sleep if self.is_async else time.sleep, seconds)

    def new_client(self, **options: Any) -> Any:
        cls = pymongo.AsyncMongoClient if self.is_async else pymongo.MongoClient
        return self.do(cls, self.uri, **{**POLLING, **options})

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Any]:
        client = self.new_client(**options)
        try:
            yield client
        finally:
            self.do(client.close)

    @contextlib.contextmanager
    def documents(self, **options: Any) -> Iterator[Any]:
        """A collection with ten documents, and its client for the block."""
        with self.client(**options) as client:
            collection = client[self.database].coll
            self.do(collection.insert_many, [{"_id": i} for i in range(10)])
            yield collection

    def on_event(self, event: Any) -> None:
        self.heard.append(type(event).__name__)


class AuditLog(monitoring.CommandListener):
    """Writes down every insert through another client; an async one, in a task of its own."""

    def __init__(self) -> None:
        self.coll: Any = None
        self.tasks: list[asyncio.Task[Any]] = []

    def started(self, event: Any) -> None:
        if event.command_name != "insert" or self.coll is None:
            return
        written = self.coll.insert_one({})
        if asyncio.iscoroutine(written):
            self.tasks.append(asyncio.ensure_future(written))

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...
