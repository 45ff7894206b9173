"""Decode steps of Transformers: with a static cache, and with continuous batching."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from transformers import StaticCache

from experiment.arms.contiguous import CACHE_ARGUMENT
from experiment.gpucheck.decode_steps import STEPS, WARM_UP, Setting, timed

# Token budget of a step of continuous batching during prefill.
_BATCH_TOKENS = 8192
_PAGE_SIZE = 16


def static_step_s(model: Any, setting: Setting, *, compiled: bool = False) -> float:
    """Seconds of a decode step with a static cache; eager, or compiled and replayed from graphs.

    The cache holds zeros for the context: no prefill.
    """
    forward = torch.compile(model.forward, mode="reduce-overhead") if compiled else model
    model.set_attn_implementation("sdpa")
    config = model.config
    cache = StaticCache(config=config, max_cache_len=setting.context + WARM_UP + STEPS)
    cache.early_initialization(
        setting.batch, config.num_key_value_heads, config.head_dim, model.dtype, model.device
    )
    for layer in cache.layers:
        layer.cumulative_length.fill_(setting.context)
    token = torch.zeros((setting.batch, 1), dtype=torch.long, device=model.device)
    given = {CACHE_ARGUMENT: cache}
    return timed(lambda: forward(token, **given).logits[:, -1].argmax(-1).tolist())


def continuous_step_s(model: Any, setting: Setting) -> float:
    """Seconds of a step of continuous batching in which every request decodes.

    Configured as the arm ``transformers_paged``: torch's attention, no graphs. The safety margin is
    off: with less than 15 % free blocks it prefills nothing while requests decode, so the last
    requests would wait for others to end.

    Raises:
        RuntimeError: it became idle before enough steps were measured.
    """
    # Imported here: if Transformers moves it, only this comparison fails.
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model.set_attn_implementation("sdpa")
    # The first requests decode while the prompts of the last are computed.
    steps = setting.batch + -(-setting.batch * setting.context // _BATCH_TOKENS)
    new_tokens = 2 * steps + WARM_UP + STEPS
    pages = -(-(setting.context + new_tokens) // _PAGE_SIZE) + 1
    batching = ContinuousBatchingConfig(
        page_size=_PAGE_SIZE, num_blocks=setting.batch * pages, max_batch_tokens=_BATCH_TOKENS,
        max_requests_per_batch=setting.batch, allow_block_sharing=False, use_async_batching=False,
        use_cuda_graph=False, auto_switch_to_flash=False, safety_margin=0.0,
    )  # fmt: skip
    generation = GenerationConfig(eos_token_id=-1, pad_token_id=0, do_sample=False)
    manager = model.init_continuous_batching(generation, continuous_batching_config=batching)
    processor = manager.batch_processor = manager._create_batch_processor()
    for request in range(setting.batch):
        manager.add_request(
            [0] * setting.context, request_id=str(request), max_new_tokens=new_tokens,
            eos_token_id=-1,
        )  # fmt: skip
    times: list[float] = []
    while len(times) < WARM_UP + STEPS:
        begin = time.perf_counter()
        if not processor.prepare_next_batch():
            raise RuntimeError("continuous batching ended before the steps were measured")
        chunks = processor.inputs_and_outputs.requests_in_batch
        is_decoding = [chunk.query_length for chunk in chunks] == [1] * setting.batch
        manager._generation_step()
        processor.update_batch()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        if is_decoding:
            times.append(time.perf_counter() - begin)
    return median(times[WARM_UP:])
