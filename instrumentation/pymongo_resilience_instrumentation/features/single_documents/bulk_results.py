"""The result of a bulk write that was sent in two parts, a collection's or a client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo.results import BulkWriteResult, ClientBulkWriteResult

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

OF_MODELS = ("insertResults", "updateResults", "deleteResults")
ERRORS, CONCERNS, UPSERTED = "writeErrors", "writeConcernErrors", "upserted"
Details = dict[str, Any]


def _index_in(document: Any) -> str:
    """A client's bulk write has another name for it."""
    return "idx" if "idx" in document else "index"


def failed(details: Details) -> Iterator[tuple[int, int]]:
    """The models that failed, by index, each with its error's code."""
    for error in details.get(ERRORS, ()):
        yield error[_index_in(error)], error.get("code", 0)


def show_as_many(error: Any, many: Collection[int]) -> None:
    """An error shows what the application asked for, not what was sent in its stead."""
    text = error.args[0]
    for each in error.details.get(ERRORS, ()):
        sent = each.get("op")
        if each[_index_in(each)] in many and isinstance(sent, dict):
            each["op"] = dict(sent) | ({"limit": 0} if "limit" in sent else {"multi": True})
            text = text.replace(str(sent), str(each["op"]))
    error.args = (text, *error.args[1:])


def without_errors(details: Details, indexes: Sequence[int]) -> Details:
    """A copy, to be added to, without the errors of these models."""
    copied = {
        name: value.copy() if isinstance(value, (list, dict)) else value
        for name, value in details.items()
    }
    copied[ERRORS] = [each for each in copied[ERRORS] if each[_index_in(each)] not in indexes]
    return copied


def whole(before: Details, second: Any, indexes: Sequence[int]) -> Any:
    """The result of both parts; raises the error of both.

    ``second`` is the second part's result or error, ``indexes`` what it was sent, by their indexes
    in the whole.
    """
    failed_too = isinstance(second, BaseException)
    details = second.details if failed_too else second.bulk_api_result
    for name, value in details.items():
        if isinstance(value, int) and not isinstance(value, bool):
            before[name] = before.get(name, 0) + value
        elif name in OF_MODELS:
            before[name].update({indexes[index]: each for index, each in value.items()})
        elif name in {ERRORS, UPSERTED}:
            for each in value:
                index = _index_in(each)
                before[name].append({**each, index: indexes[each[index]]})
        elif name == CONCERNS:
            before[name] += value
        else:
            before[name] = before.get(name) or value
    before[ERRORS].sort(key=lambda each: each[_index_in(each)])
    is_error = bool(before[ERRORS] or before[CONCERNS] or before.get("error"))
    of_client = isinstance(second, (ClientBulkWriteResult, ClientBulkWriteException))
    if not of_client:
        if is_error:
            raise BulkWriteError(before)
        return BulkWriteResult(before, acknowledged=True)
    verbose = bool(second.verbose if failed_too else second.has_verbose_results)
    if is_error:
        raise ClientBulkWriteException(before, verbose)
    return ClientBulkWriteResult(before, acknowledged=True, has_verbose_results=verbose)
