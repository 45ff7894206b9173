"""Load the prepared model and tokenizer; all arms use these functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiment.text.errors import UserError, one_line, user_error

if TYPE_CHECKING:
    import torch

    from experiment.events import ModelPrepared


def load_model(directory: str, dtype: str, device: str, attention: str) -> torch.nn.Module:
    """Load the prepared weights for inference: no gradients, no dropout, no network.

    Args:
        directory: path of :class:`experiment.events.ModelDirectory`.
        dtype: name of a torch dtype, such as ``float16``.
        device: ``cpu`` or ``cuda``.
        attention: a name registered in Transformers' attention interface.

    Raises:
        UserError: weights are unreadable, missing or of another shape.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, GenerationConfig

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
        raise _unreadable(directory, error) from error  # another shape
    # Transformers initialises missing weights randomly, differently in every arm.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise user_error(
            "error.model.weights_missing", path=directory, n=len(missing), first=missing[0]
        )
    # A model's generation_config.json may change the choice of tokens in the arms that read it.
    model.generation_config = GenerationConfig()
    model.requires_grad_(False)
    loaded: torch.nn.Module = model.eval().to(device)
    return loaded


# The attention of models that keep their own: sdpa drops arguments such as sinks.
EAGER = "eager"


def transformers_attention(model: ModelPrepared) -> str:
    """Which of Transformers' attention functions the arms of Transformers use."""
    return EAGER if model.own_attention else "sdpa"


def set_gpu_kernels() -> None:
    """Select the GPU kernels of this process, the same for every arm.

    float32 products keep full precision (no TF32). Attention uses torch's kernels, not cuDNN's,
    which torch prefers on Hopper and newer without a mask. cuDNN spends tens of milliseconds on
    every new shape, and a growing cache has a new shape in every step.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_tokenizer(directory: str) -> Any:
    """Load the prepared Transformers tokenizer.

    Raises:
        UserError: missing or unreadable.
    """
    from transformers import AutoTokenizer

    silence_libraries()
    with reading_tokenizer(directory):
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        # Transformers may build a tokenizer of special tokens only if its files are missing.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("the vocabulary is empty")
    return tokenizer


def optional_tokenizer(directory: str) -> Any | None:
    """The prepared tokenizer; None if there is no usable one."""
    try:
        return load_tokenizer(directory)
    except UserError:
        return None


def as_text(tokenizer: Any | None, token_ids: Sequence[int]) -> str:
    """Decode tokens to text; without a tokenizer, list their ids.

    Raises:
        UserError: the tokenizer does not work.
    """
    if tokenizer is None:
        return " ".join(map(str, token_ids))
    with reading_tokenizer(tokenizer.name_or_path):
        return str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


@contextmanager
def reading_tokenizer(directory: str) -> Iterator[None]:
    """Report any error of the tokenizer libraries as a user error.

    Raises:
        UserError: the tokenizer does not work.
    """
    try:
        yield
    except Exception as error:  # the Rust core has no error class of its own
        raise _no_tokenizer(directory, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # from the Rust core; not exported
            raise
        raise _no_tokenizer(directory, error) from error


def silence_libraries() -> None:
    """Suppress Transformers' advice and progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _no_tokenizer(directory: str, error: BaseException) -> UserError:
    return user_error("error.model.no_tokenizer", path=directory, detail=one_line(error))


def _unreadable(directory: str, error: BaseException) -> Exception:
    return user_error("error.model.unreadable", path=directory, detail=one_line(error))
