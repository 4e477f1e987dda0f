"""How much code and how many tests there are, and how often a test sleeps."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = {
    "engine": "pymongo_resilience",
    "instrumentation": "instrumentation",
    "tests": "tests",
}


def main() -> int:
    """Print lines of each part, and the sleeps of the tests."""
    print("| part | lines | functions | sleeps |", "|---|---|---|---|", sep="\n")
    for part, folder in PARTS.items():
        lines = [
            line for file in (ROOT / folder).rglob("*.py") for line in file.read_text().splitlines()
        ]
        words = [line.lstrip() for line in lines]
        functions = sum(word.startswith(("def ", "async def ")) for word in words)
        sleeps = sum("sleep(" in word for word in words)
        print(f"| {part} | {len(lines)} | {functions} | {sleeps} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
