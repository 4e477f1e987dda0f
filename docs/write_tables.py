"""Write the tables of options and of terminal causes into their documents, from the code.

Run it with the Python of ``.venv``: ``python docs/write_tables.py``. A test fails if a table is not
current.
"""

from __future__ import annotations

from pathlib import Path

from pymongo_resilience_instrumentation.failures.causes import LOGIN_REFUSALS, TERMINAL
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

from pymongo_resilience.config import OPTIONS, Option

DOCS = Path(__file__).parent


def options_table() -> str:
    rows = [
        "| option | default | values | meaning |",
        "|---|---|---|---|",
        *(_option_row(option) for option in OPTIONS if option.has_variable),
        "",
        "You can set these options only in code or in a file:",
        "",
        "| option | default | values | meaning |",
        "|---|---|---|---|",
        *(_option_row(option) for option in OPTIONS if not option.has_variable),
    ]
    return "\n".join(rows) + "\n"


def _option_row(option: Option) -> str:
    return f"| `{option.name}` | {_default(option)} | {_legal(option)} | {option.sentence} |"


def _legal(option: Option) -> str:
    """Return the allowed values as errors state them, shortened for a table."""
    text = option.kind.allowed
    for left_out in (" to 2147483647", "an integer ", "a number ", "one of "):
        text = text.replace(left_out, "")
    return text


def _default(option: Option) -> str:
    if option.default is None or option.default == ():
        return "unset"
    value = option.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def causes_table() -> str:
    rows = [
        "| `terminal_cause` | what is wrong | what to check |",
        "|---|---|---|",
        *(f"| {_attribute(cause)} | {cause.says} | {cause.check} |" for cause in TERMINAL),
    ]
    return "\n".join(rows) + "\n"


def _attribute(cause: Symptom) -> str:
    codes = [str(code) for code, symptom in LOGIN_REFUSALS.items() if symptom is cause]
    return f"none, code {' or '.join(codes)}" if codes else f"`{cause.value}`"


TABLES = {
    "options": (DOCS / "options.md", options_table),
    "causes": (DOCS / "failing-fast.md", causes_table),
}
"""The document and the function of each table, by the name in the marks around it."""


def with_table(name: str) -> str:
    """Return the table's document with the current table."""
    document, table = TABLES[name]
    begin = f"<!-- {name}: begin (written by `python docs/write_tables.py`) -->\n"
    end = f"<!-- {name}: end -->\n"
    before, rest = document.read_text().split(begin)
    _, after = rest.split(end)
    return before + begin + table() + end + after


if __name__ == "__main__":
    for table, (written, _) in TABLES.items():
        written.write_text(with_table(table))
