"""Outputs in README and docs are the program's own of today; ``make plan-page`` renews them."""

from __future__ import annotations

import pytest
from plan_page import PAGES, ROOT, page_text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_the_program_answers(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "$ python run_experiment.py plan" in text
    assert page_text(ROOT / page) == text
