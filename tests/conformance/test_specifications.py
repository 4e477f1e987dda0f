"""Where the specifications are looked for, and what is said where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.conformance.specifications import VARIABLE, folder, parameters

INSIDE_A_CHECKOUT = Path("source", "some-suite", "tests", "unified")
COPIED = Path("some-suite", "unified")


@pytest.mark.parametrize("place", [INSIDE_A_CHECKOUT, COPIED])
def test_both_layouts_are_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / place).mkdir(parents=True)
    for name in ("b.json", "a.json", "a.yml"):
        (tmp_path / place / name).touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    found = parameters(lambda path: [path.stem], "some-suite", "unified")
    assert [parameter.values for parameter in found] == [("a",), ("b",)]


def test_a_checkout_without_the_tests_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=VARIABLE):
        folder(tmp_path, "some-suite")
    (tmp_path / "some-suite").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no tests"):
        parameters(lambda path: [path], "some-suite")
