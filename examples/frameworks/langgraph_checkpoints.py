"""LangGraph with its checkpoints in MongoDB: instrument() before the client is created.

MONGODB_URI=mongodb://localhost:27017 python langgraph_checkpoints.py
"""

from __future__ import annotations

import operator
import os
from typing import Annotated, TypedDict

from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.graph import END, START, StateGraph
from pymongo import MongoClient
from telemetry import export_telemetry

from pymongo_resilience import instrument, override

instrument(timeout_ms=20_000)


class State(TypedDict):
    visits: Annotated[int, operator.add]


def visit(state: State) -> State:
    return {"visits": 1}


def main() -> None:
    flush = export_telemetry()
    graph = StateGraph(State)
    graph.add_node("visit", visit)
    graph.add_edge(START, "visit")
    graph.add_edge("visit", END)
    with MongoClient(os.environ["MONGODB_URI"]) as client:
        saver = MongoDBSaver(client, db_name="shop")
        application = graph.compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "customer-1"}}
        print(application.invoke({"visits": 0}, thread), flush=True)
        # It deletes many documents, and deleting them twice does no harm.
        with override(idempotent=True):
            saver.delete_thread("customer-1")
    flush()


if __name__ == "__main__":
    main()
