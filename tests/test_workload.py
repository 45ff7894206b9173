"""Prompts become requests; what cannot run is refused with its number and counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiment.config.schema import Config
from experiment.events import WorkloadRequest
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.text.errors import UserError
from experiment.text.messages import Message
from experiment.workload import requests as workload
from experiment.workload.requests import (
    DEFAULT_PROMPTS,
    check_prompts,
    check_stop_tokens,
    choose_prompts,
    make_requests,
    make_workload,
    random_requests,
    read_prompts,
)

SLOT = 73_728  # GPT-2 in fp32
ARMS = ("contiguous.sequential", "contiguous.batch", "paged")


def _words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def _requests(*prompt_tokens: int, new: int = 50) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(id=i, prompt="x", token_ids=[1] * count, max_new_tokens=new)
        for i, count in enumerate(prompt_tokens)
    ]


def _refused(call: Callable[..., object], *given: Any, **named: Any) -> Message:
    """What an error of that call says; its key without what all of them begin with."""
    with pytest.raises(UserError) as caught:
        call(*given, **named)
    text = caught.value.text
    return text.model_copy(update={"key": text.key.removeprefix("error.workload.")})


def test_the_default_prompts_have_the_documented_lengths() -> None:
    tokenizer = gpt2_tokenizer()
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in DEFAULT_PROMPTS]
    assert lengths == [2, 13, 110, 2]


def test_prompts_come_from_file_then_config_then_default(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "from file"}\n', encoding="utf-8")
    assert choose_prompts(Config()) == list(DEFAULT_PROMPTS)
    section: dict[str, Any] = {"prompts": ["given"]}
    assert choose_prompts(Config.model_validate({"workload": section})) == ["given"]
    section["prompts_file"] = str(file)
    assert choose_prompts(Config.model_validate({"workload": section})) == ["from file"]


def test_a_prompts_file_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    texts = ["one", "two\nlines", "你好\u2028separators\u0085stay", "x" * 100_000]
    body = "\r\n".join(json.dumps({"prompt": t, "id": 1}, ensure_ascii=False) for t in texts)
    file.write_bytes(b"\xef\xbb\xbf" + body.encode() + b"\n\n")
    assert read_prompts(file) == texts


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"not json", "line_unlike"),
        (b'{"prompt": "cut', "line_unlike"),
        (b"[" * 100_000, "line_unlike"),
        (b'"text"', "line_unlike"),
        (b'["a"]', "line_unlike"),
        (b'{"text": "a"}', "line_unlike"),
        (b'{"prompt": 5}', "line_unlike"),
        (b'{"prompt": ""}', "line_empty_prompt"),
        (b'{"prompt": " \\n"}', "line_empty_prompt"),
        (b'{"prompt": "\xff"}', "line_not_utf8"),
        (b'{"prompt": "\\ud800"}', "line_not_utf8"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: bytes, key: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    error = _refused(read_prompts, file)
    assert error.key == key
    assert error.params == {"path": str(file), "line": 3}


@pytest.mark.parametrize("body", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_prompts(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(body)
    assert _refused(read_prompts, file).key == "error.empty"


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, key in (
        (tmp_path / "absent", "error.file_missing"),
        (tmp_path, "error.file_unreadable"),
    ):
        assert _refused(read_prompts, path).key == key
    monkeypatch.setattr(workload, "MAX_PROMPTS_BYTES", 10)
    (tmp_path / "large").write_text('{"prompt": "large"}', encoding="utf-8")
    assert _refused(read_prompts, tmp_path / "large").key == "error.file_too_large"


@pytest.mark.parametrize("begin", ["", "["])
def test_a_file_holds_so_many_prompts_and_lines(
    begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "MAX_REQUESTS", 3)
    monkeypatch.setattr(workload, "MAX_LOOKED_AT", 9)
    turn = '{"conversations": [{"value": "hi"}]},'
    row, nothing = (turn, "{},") if begin else ('{"prompt": "hi"}\n', "\n")
    file = tmp_path / "p.jsonl"

    def of(rows: int, blanks: int) -> list[str]:
        text = begin + nothing * blanks + row * rows
        file.write_text(text.rstrip(",") + ("]" if begin else ""), encoding="utf-8")
        return read_prompts(file)

    assert of(3, 6) == ["hi"] * 3
    assert len(of(1000, 0)) == 4  # one more than may be, so that whoever asks is told
    assert _refused(check_prompts, of(4, 5)).key == "too_much"
    assert _refused(of, 1, 9).key == "too_much"


def test_a_line_and_a_prompt_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "hi"}\n{"prompt": "hi there"}\n', encoding="utf-8")
    check_prompts(read_prompts(file))
    monkeypatch.setattr(workload, "MAX_PROMPT_CHARS", 7)
    error = _refused(check_prompts, read_prompts(file))
    assert (error.key, error.params["n"]) == ("long_prompt", 2)
    monkeypatch.setattr(workload, "MAX_PROMPT_LINE", 20)
    error = _refused(read_prompts, file)
    assert (error.key, error.params["line"]) == ("line_too_long", 2)


def test_a_run_holds_so_many_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MAX_REQUESTS", 4)
    monkeypatch.setattr(workload, "MAX_TOKENS", 8)

    def made(*prompts: str, samples: int = 1) -> int:
        return len(make_requests(prompts, _words, 100, 7, 16, samples=samples))

    def drawn(lengths: list[tuple[int, int]], samples: int = 1) -> int:
        sections = {"workload": {"lengths": lengths}, "sampling": {"n": samples, "temperature": 1}}
        return len(random_requests(Config.model_validate(sections), 9, str))

    assert made("a b", "c d", samples=2) == made("a", "b", "c", "d") == 4
    assert drawn([(2, 1), (2, 1)], samples=2) == 4
    for ask in (
        lambda: made("a b", "c d", samples=3),
        lambda: made("a b c d e f g h i"),
        lambda: made("a b c d e", samples=2),
        lambda: drawn([(1, 1)] * 5),
        lambda: drawn([(1, 1)] * 3, samples=2),
        lambda: drawn([(9, 1)]),
        lambda: drawn([(5, 1)], samples=2),
    ):
        assert _refused(ask).key == "too_much"


def test_prompts_become_numbered_requests() -> None:
    made = make_requests(["a bb", "ccc"], _words, 10, max_new_tokens=7, max_length=16)
    assert [(r.id, r.prompt, r.token_ids, r.max_new_tokens) for r in made] == [
        (0, "a bb", [1, 2], 7),
        (1, "ccc", [3], 7),
    ]


def test_each_sample_of_a_prompt_is_a_request_that_follows_the_first() -> None:
    made = make_requests(["a bb", "ccc"], _words, 10, 7, 16, samples=3)
    assert [(r.id, r.prompt, r.sample_of) for r in made] == [
        (0, "a bb", None), (1, "a bb", 0), (2, "a bb", 0),
        (3, "ccc", None), (4, "ccc", 3), (5, "ccc", 3),
    ]  # fmt: skip
    ready = make_workload(Config(), made, SLOT, ARMS)
    assert [[r.id for r in samples] for samples in ready.samples()] == [[0, 1, 2], [3, 4, 5]]
    assert ready.budget_bytes == 6 * 512 * SLOT  # a slab for each sample


def _ready(
    prompts: tuple[int, ...] = (3,), new: int = 50, arms: tuple[str, ...] = ARMS, n: int = 1,
    **cache: Any,
) -> object:  # fmt: skip
    sampling = {"n": n, "temperature": 1.0} if n > 1 else {}
    config = Config.model_validate({"cache": cache, "sampling": sampling})
    return make_workload(config, _requests(*prompts, new=new), SLOT, arms)


def _sampled(blocks: int) -> object:
    made = make_requests(["a", "a b c d e f"], _words, 10, 9, 16, samples=2)
    cache = {"max_length": 16, "block_size": 4, "budget": blocks * 4 * SLOT}
    return make_workload(Config.model_validate({"cache": cache}), made, SLOT, ["paged"])


def _asked(*prompts: str, new: int = 1, most: int = 16, ids: Any = _words) -> object:
    return make_requests(prompts, ids, 10, new, most)


SLAB, BLOCK = 512 * SLOT, 16 * SLOT
GROWING = ("contiguous.growing",)
# The call that is refused, what the refusal names, and the same call by one less.
BEYOND: dict[str, tuple[Callable[[], object], str, dict[str, Any], Callable[[], object]]] = {
    "blocks of the second prompt": (
        lambda: _ready((2, 110, 13), arms=("paged",), budget=10 * BLOCK - 1),
        "no_blocks", {"needed": 10 * BLOCK, "n": 2, "tokens": 159},  # 110 + 50 - 1
        lambda: _ready((2, 110, 13), arms=("paged",), budget=10 * BLOCK),
    ),
    "blocks of a prompt with samples": (
        lambda: _sampled(3), "no_blocks", {"n": 2}, lambda: _sampled(4),
    ),
    "watermark": (
        lambda: _ready(new=5, arms=("paged",), budget=4 * BLOCK, watermark_blocks=4),
        "watermark", {"blocks": 4},
        lambda: _ready(new=5, arms=("paged",), budget=4 * BLOCK, watermark_blocks=3),
    ),
    "stop token": (
        lambda: check_stop_tokens([3, 10], 10), "unknown_stop", {"token": 10},
        lambda: check_stop_tokens([0, 9], 10),
    ),
    "a block longer than a request": (
        lambda: _ready(new=5, max_length=64, block_size=65),
        "error.above_other", {"config_key": "cache.block_size"},
        lambda: _ready(new=5, max_length=64, block_size=64),
    ),
    "no prompts": (lambda: check_prompts([]), "no_prompts", {}, lambda: check_prompts(["a"])),
    "an empty prompt": (
        lambda: _asked("fine", " "), "empty_prompt", {"n": 2}, lambda: _asked("fine", "a")
    ),
    "a prompt without tokens": (
        lambda: _asked("vanishes", ids=lambda _: []), "empty_prompt", {"n": 1},
        lambda: _asked("stays"),
    ),
    "one slot more": (  # the last token needs none
        lambda: _asked("a", "a b c", new=7, most=8),
        "too_long", {"n": 2, "tokens": 3, "new": 7, "needed": 9, "max_length": 8},
        lambda: _asked("a b c", new=6, most=8),
    ),
    "a token of a larger vocabulary": (
        lambda: _asked("x", ids=lambda _: [10]), "unknown_token", {}, lambda: _asked("x" * 9)
    ),
    "a negative token": (
        lambda: _asked("x", ids=lambda _: [-1]), "unknown_token", {},
        lambda: _asked("x", ids=lambda _: [0]),
    ),
    **{
        f"a slab of {arms[0]}": (
            partial(_ready, (2,), arms=arms, budget=SLAB - 1), "no_slab", {"needed": SLAB},
            partial(_ready, (2,), arms=arms, budget=SLAB),
        )
        for arms in (("contiguous.sequential",), ("contiguous.batch", "paged"),
                     ("contiguous.compiled",))
    },
    **{
        f"{n} caches that grow": (
            partial(_ready, (2, *[110] * n, 13), arms=GROWING, n=n, budget=n * 159 * SLOT - 1),
            "no_growth", {"needed": n * 159 * SLOT, "slots": n * 159, "arm": GROWING[0]},
            partial(_ready, (2, *[110] * n, 13), arms=GROWING, n=n, budget=n * 159 * SLOT),
        )
        for n in (1, 2)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_what_just_does_not_fit_is_refused_with_its_counts(name: str) -> None:
    refused, key, params, accepted = BEYOND[name]
    accepted()
    error = _refused(refused)
    assert (error.key, {name: error.params[name] for name in params}) == (key, params)


def test_no_slab_is_needed_where_none_is_used() -> None:
    _ready((2,), arms=("paged", *GROWING), budget=SLAB - 1)


def test_auto_is_one_slab_for_each_request() -> None:
    made = make_workload(Config(), _requests(2, 13, 110, 2), SLOT, ARMS)
    assert made.budget_bytes == 144 * 2**20
    assert (made.max_length, made.block_size, len(made.requests)) == (512, 16, 4)
