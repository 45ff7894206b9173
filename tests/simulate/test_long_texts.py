"""A text of megabytes is counted in pieces: the same tokens, and little memory."""

from __future__ import annotations

import random

import pytest

from experiment.model.tokenizer import gpt2_tokenizer
from experiment.simulate import trace
from experiment.simulate.trace import _Counter, _pieces

PARTS = (
    "it's", "a", "word", " ", "  ", "\n", "\n\n\t", "  \n ", "x_y", "_", "，", "_，", "。", "你好",
    "，你", "3", "12", "3，", "!", "!!", "...", "é", "e\u0301，", "🙂", "\u00a0", "\u3000", "²、",
    "'re", "<|endoftext|>", "+", "/", "」", "a'b", ".", "a<", "|", "a|b",
)  # fmt: skip


def test_pieces_have_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, counter, choose = gpt2_tokenizer(), _Counter(), random.Random(0)
    monkeypatch.setattr(trace, "_PIECE", 4)
    cut = 0
    for _ in range(400):
        text = "".join(choose.choices(PARTS, k=choose.randint(0, 40)))
        assert counter(text) == len(whole.encode(text)), repr(text)
        pieces = list(_pieces(text))
        assert "".join(pieces) == text
        cut += len(pieces) - 1
    assert cut > 1000
