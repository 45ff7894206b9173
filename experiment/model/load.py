"""Loading what was prepared. Every arm loads the same files through these two functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiment.text.errors import UserError, cut, user_error

if TYPE_CHECKING:
    import torch


def load_model(directory: str, dtype: str, device: str, attention: str) -> torch.nn.Module:
    """Load the prepared weights for inference: no gradients, no dropout, nothing from the network.

    Args:
        directory: what :class:`experiment.events.ModelDirectory` names.
        dtype: a torch dtype by name, such as ``float16``.
        device: ``cpu`` or ``cuda``.
        attention: a name that Transformers' attention interface knows when this is called.

    Raises:
        UserError: the weights cannot be read, or some are missing or of another shape.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    silence_libraries()
    set_gpu_kernels()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, SafetensorError) as error:
        raise _unreadable(directory, error) from error
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise _unreadable(directory, error) from error  # of another shape
    # Transformers fills what is missing with fresh random numbers, other ones in every arm.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise user_error(
            "error.model.weights_missing", path=directory, n=len(missing), first=missing[0]
        )
    model.requires_grad_(False)
    loaded: torch.nn.Module = model.eval().to(device)
    return loaded


def set_gpu_kernels() -> None:
    """Say which of a GPU's kernels this process uses: the same ones for every arm.

    Products of float32 keep their precision (no TF32). Attention is torch's own, not cuDNN's, which
    torch prefers on Hopper and newer where there is no mask: cuDNN spends tens of milliseconds on
    every new shape, and a cache that grows has a new shape in every step.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_tokenizer(directory: str) -> Any:
    """Load the prepared tokenizer, a Transformers tokenizer.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    silence_libraries()
    with reading_tokenizer(directory):
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        # Without its files Transformers makes some tokenizers with special tokens alone.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("the vocabulary is empty")
    return tokenizer


def optional_tokenizer(directory: str) -> Any | None:
    """The prepared tokenizer; None where there is no usable one."""
    try:
        return load_tokenizer(directory)
    except UserError:
        return None


def as_text(tokenizer: Any | None, token_ids: Sequence[int]) -> str:
    """Decode tokens for people to read; without a tokenizer these are the ids.

    Raises:
        UserError: the tokenizer is of no use.
    """
    if tokenizer is None:
        return " ".join(map(str, token_ids))
    with reading_tokenizer(tokenizer.name_or_path):
        return str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


@contextmanager
def reading_tokenizer(directory: str) -> Iterator[None]:
    """Whatever its libraries make of files that are cut short or hold something else: one line.

    Raises:
        UserError: the tokenizer is of no use.
    """
    try:
        yield
    except Exception as error:  # its core, which is no Python, has no error of its own
        raise _no_tokenizer(directory, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the core again; it is not exported
            raise
        raise _no_tokenizer(directory, error) from error


def silence_libraries() -> None:
    """Keep Transformers from printing advice and progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def one_line(error: BaseException, limit: int = 200) -> str:
    """Shorten a library's error to one line that can stand inside our own sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return cut(text, limit)


def _no_tokenizer(directory: str, error: BaseException) -> UserError:
    return user_error("error.model.no_tokenizer", path=directory, detail=one_line(error))


def _unreadable(directory: str, error: BaseException) -> Exception:
    return user_error("error.model.unreadable", path=directory, detail=one_line(error))
