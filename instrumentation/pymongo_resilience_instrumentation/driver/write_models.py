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


def namespace_of_model(model: Any) -> str | None:
    """``"database.collection"``, where the model names one: a client's bulk write asks for it."""
    namespace: str | None = model._namespace
    return namespace


def for_one_document(model: UpdateMany | DeleteMany, delete_hint: Any) -> Any:
    """The same for a single document; a delete without a hint gets ``delete_hint``."""
    common: dict[str, Any] = {"filter": model._filter, "namespace": model._namespace}
    if isinstance(model, DeleteMany):
        return DeleteOne(**common, hint=model._hint or delete_hint)
    return UpdateOne(
        **common,
        update=model._doc,
        upsert=model._upsert,
        array_filters=model._array_filters,
        hint=model._hint,
    )
