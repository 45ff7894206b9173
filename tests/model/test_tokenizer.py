"""Offline, texts count as GPT-2 counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.model import tokenizer
from experiment.model.load import load_tokenizer
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.text.errors import UserError

# Ids as published for GPT-2.
KNOWN = {
    "Hello!": [15496, 0],
    "Hello world": [15496, 995],
    " Hello world": [18435, 995],
    "<|endoftext|>": [50256],
}


@pytest.mark.parametrize("text", KNOWN)
def test_ids_are_gpt2s(text: str) -> None:
    assert gpt2_tokenizer()(text)["input_ids"] == KNOWN[text]


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    made = gpt2_tokenizer()
    made.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = "It's 12 o'clock — naïve café; 你好，世界 🙂\n\n  tabs\tand   spaces"
    assert loaded(text)["input_ids"] == made(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token_id, loaded.bos_token_id, len(loaded)) == (50256, 50256, 50257)


def test_without_the_package_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_PACKAGE", "no_such_package_here")
    with pytest.raises(UserError) as caught:
        gpt2_tokenizer()
    assert caught.value.text.key == "error.model.no_vocabulary"


def test_a_directory_without_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.text.key == "error.model.no_tokenizer"
