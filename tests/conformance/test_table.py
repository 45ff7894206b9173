"""``docs/conformance.md`` names tests that are there, one row for each behaviour."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| (\d+) \| .+? \| (.+) \|$",
    (TESTS.parent / "docs" / "conformance.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_every_behaviour_has_a_row() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 43))


def test_every_row_names_a_test_that_is_there_or_says_why_none_is() -> None:
    for number, held in ROWS:
        named = re.findall(r"`([a-z_/0-9]+\.py)(?:::(\w+))?`", held)
        assert named or held.startswith("Does not apply: "), number
        for path, test in named:
            text = (TESTS / path).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, (number, path, test)


def test_every_test_of_a_behaviour_is_in_its_row() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        for test in re.findall(r"^def (test_(\d\d)_\w+)", path.read_text("utf-8"), re.MULTILINE):
            assert f"{path.name}::{test[0]}`" in dict(ROWS)[str(int(test[1]))], test
