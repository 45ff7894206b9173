"""Prompts become requests; what cannot run is refused with its number and counts."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def _config(**cache: Any) -> Config:
    return Config.model_validate({"cache": cache})


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
        (b"not json", "line_not_json"),
        (b'{"prompt": "cut', "line_not_json"),
        (b"[" * 100_000, "line_not_json"),
        (b'"text"', "line_not_object"),
        (b'["a"]', "line_not_object"),
        (b'{"text": "a"}', "line_no_prompt"),
        (b'{"prompt": 5}', "line_no_prompt"),
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
    assert _refused(read_prompts, file).key == "no_prompts_in_file"


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
    ready = make_workload(_config(), made, SLOT, ARMS)
    assert [[r.id for r in samples] for samples in ready.samples()] == [[0, 1, 2], [3, 4, 5]]
    assert ready.budget_bytes == 6 * 512 * SLOT  # a slab for each sample


def test_a_request_that_fits_in_no_block_is_named_by_its_prompt() -> None:
    made = make_requests(["a", "a b c d e f"], _words, 10, 9, 16, samples=2)
    config = _config(max_length=16, block_size=4, budget=3 * 4 * SLOT)
    error = _refused(make_workload, config, made, SLOT, ["paged"])
    assert (error.key, error.params["n"]) == ("no_blocks", 2)


def test_a_watermark_leaves_some_of_the_pool() -> None:
    made = make_requests(["a b"], _words, 10, 9, 16)
    held = _config(max_length=16, block_size=4, budget=4 * 4 * SLOT, watermark_blocks=3)
    make_workload(held, made, SLOT, ["paged"])
    all_held = _config(max_length=16, block_size=4, budget=4 * 4 * SLOT, watermark_blocks=4)
    error = _refused(make_workload, all_held, made, SLOT, ["paged"])
    assert (error.key, error.params["blocks"]) == ("watermark", 4)


def test_a_stop_token_must_be_one_of_the_vocabulary() -> None:
    check_stop_tokens([0, 9], 10)
    error = _refused(check_stop_tokens, [3, 10], 10)
    assert (error.key, error.params["token"]) == ("unknown_stop", 10)


def test_a_block_may_not_be_longer_than_a_request() -> None:
    make_workload(_config(max_length=64, block_size=64), _requests(3, new=5), SLOT, ARMS)
    error = _refused(
        make_workload, _config(max_length=64, block_size=65), _requests(3, new=5), SLOT, ARMS
    )
    assert (error.key, error.params["config_key"]) == ("error.above_other", "cache.block_size")


def test_no_prompts_and_empty_prompts_are_refused() -> None:
    assert _refused(check_prompts, []).key == "no_prompts"
    error = _refused(make_requests, ["fine", " "], _words, 10, 1, 16)
    assert (error.key, error.params) == ("empty_prompt", {"n": 2})
    assert _refused(make_requests, ["vanishes"], lambda text: [], 10, 1, 16).key == "empty_prompt"


def test_the_last_token_needs_no_slot() -> None:
    make_requests(["a b c"], _words, 10, max_new_tokens=6, max_length=8)
    error = _refused(make_requests, ["a", "a b c"], _words, 10, max_new_tokens=7, max_length=8)
    assert error.key == "too_long"
    expected = {"n": 2, "tokens": 3, "new": 7, "needed": 9, "max_length": 8}
    assert error.params == expected


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    make_requests(["x"], lambda text: [9], 10, 1, 16)
    for token in (10, -1):
        error = _refused(make_requests, ["x"], lambda text, token=token: [token], 10, 1, 16)
        assert error.key == "unknown_token"


def test_auto_is_one_slab_for_each_request() -> None:
    made = make_workload(_config(), _requests(2, 13, 110, 2), SLOT, ARMS)
    assert made.budget_bytes == 144 * 2**20
    assert (made.max_length, made.block_size, len(made.requests)) == (512, 16, 4)


def test_a_slab_must_fit_where_slabs_are_used() -> None:
    slab = 512 * SLOT
    make_workload(_config(budget=slab), _requests(2), SLOT, ARMS)
    for arms in (
        ("contiguous.sequential",), ("contiguous.batch", "paged"), ("contiguous.compiled",),
    ):  # fmt: skip
        error = _refused(make_workload, _config(budget=slab - 1), _requests(2), SLOT, arms)
        assert error.key == "no_slab"
        assert error.params["needed"] == slab
    make_workload(_config(budget=slab - 1), _requests(2), SLOT, ("paged", "contiguous.growing"))


def test_all_samples_of_the_longest_prompt_must_fit_into_a_cache_that_grows() -> None:
    arms = ("contiguous.growing",)
    for samples in (1, 2):
        asked = _requests(2, *[110] * samples, 13)  # 110 + 50 - 1 = 159 slots each
        slots = samples * 159
        enough, less = (
            Config.model_validate(
                {"cache": {"budget": size}, "sampling": {"n": samples, "temperature": 1.0}}
            )
            for size in (slots * SLOT, slots * SLOT - 1)
        )
        make_workload(enough, asked, SLOT, arms)
        error = _refused(make_workload, less, asked, SLOT, arms)
        assert error.key == "no_growth"
        params = error.params
        assert (params["needed"], params["slots"], params["arm"]) == (slots * SLOT, slots, arms[0])


def test_the_largest_request_must_fit_in_blocks() -> None:
    requests = _requests(2, 110, 13)  # 110 + 50 - 1 = 159 tokens: ten blocks of 16
    needed = 10 * 16 * SLOT
    make_workload(_config(budget=needed), requests, SLOT, ("paged",))
    error = _refused(make_workload, _config(budget=needed - 1), requests, SLOT, ("paged",))
    assert error.key == "no_blocks"
    params = error.params
    assert (params["needed"], params["n"], params["tokens"]) == (needed, 2, 159)
