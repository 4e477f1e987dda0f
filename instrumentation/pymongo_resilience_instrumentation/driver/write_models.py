"""The models of a bulk write: what they were made with, which pymongo keeps to itself."""

from __future__ import annotations

from typing import Any

from pymongo import DeleteMany, DeleteOne, UpdateMany, UpdateOne

OF_DELETES = ("_filter", "_collation", "_hint", "_namespace")
OF_UPDATES = (*OF_DELETES, "_doc", "_upsert", "_array_filters")


def filter_of(model: Any) -> Any:
    return model._filter


def has_collation(model: Any) -> bool:
    return model._collation is not None


def namespace_of_model(model: Any) -> str:
    """``"database.collection"``, which a client's bulk write asks for; empty without one."""
    return model._namespace or ""


def for_one_document(model: UpdateMany | DeleteMany) -> Any:
    """The same for a single document."""
    common: dict[str, Any] = {
        "filter": model._filter,
        "namespace": model._namespace,
        "hint": model._hint,
    }
    if isinstance(model, DeleteMany):
        return DeleteOne(**common)
    return UpdateOne(
        **common,
        update=model._doc,
        upsert=model._upsert,
        array_filters=model._array_filters,
    )
