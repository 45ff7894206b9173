"""Every reason for which a cell of a sweep has no result is a sentence in both languages."""

from __future__ import annotations

from typing import Any

import pytest

from experiment.text import LANGUAGES, Translator
from experiment.workload.kvsim_errors import cell_message

SETTINGS = {"model": "opt-13b", "trace": "mine.csv", "policy": "max"}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("code", "params", "said"),
    [
        ("pool_too_small", {"budget": 1024, "needed": 2**21}, ("1 KiB", "2 MiB")),
        (
            "pool_too_large",
            {"budget": 2**40, "blocks": 2**25, "most": 2**24},
            ("1,024 GiB", "33,554,432", "16,777,216"),
        ),
        ("livelock", {"steps": 5000, "finished": 0, "waiting": 3, "seconds": 1.5}, ("5,000",)),
        (
            "nothing_fits",
            {"requests": 40, "reason": "blocks", "needed": 9, "available": 4},
            ("40", "9", "4"),
        ),
        ("bad_option", {"option": "policy", "value": "max"}, ("max",)),
        ("bad_option", {"option": "host_blocks", "value": -1}, ("-1",)),
        ("unsupported_geometry", {"reason": "recurrent"}, ("opt-13b",)),
        ("bad_row", {"line": 7, "reason": "time_not_a_number", "value": "x"}, ("mine.csv", "7")),
        ("of_another_version", {}, ("of_another_version",)),
    ],
)
def test_a_reason_names_what_it_is_about(
    lang: str, code: str, params: dict[str, Any], said: tuple[str, ...]
) -> None:
    text = Translator(lang).message(cell_message(code, params, SETTINGS))
    assert all(word in text for word in said), text
    assert not {"{", "}"} & set(text)
