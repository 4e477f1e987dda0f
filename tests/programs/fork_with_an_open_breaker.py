"""Forks while a server's circuit breaker is open. Arguments: URI, database."""

from __future__ import annotations

import sys
from typing import Any

from common import Child, client, fail, say
from pymongo.errors import PyMongoError

import pymongo_resilience
from pymongo_resilience import Config


def read(ours: Any, database: str) -> str:
    try:
        ours[database].coll.find_one()
    except PyMongoError as error:
        return type(error).__name__
    return "ok"


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument(
        Config(circuit_breaker="always", circuit_breaker_minimum_calls=1, circuit_breaker_open_s=60)
    )
    ours = client(uri)
    fail(ours, "update", times=2)
    for _ in range(2):
        try:
            ours[database].coll.update_many({}, {"$set": {"n": 1}})
        except PyMongoError:
            continue
    before = read(ours, database)
    forking = Child("fork", read, ours, database)
    say({"child": forking.answer(), "parent": [before, read(ours, database)]})
    ours.close()


main(*sys.argv[1:])
