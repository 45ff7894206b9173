"""Steps workloads through vLLM's own scheduler; runs in vLLM's interpreter, without a model.

    python vllm_scheduler.py < workloads.jsonl > steps.jsonl

A workload is a line as :mod:`workloads` makes it, its answer a line: a list of steps, each of

    [[request, tokens scheduled, tokens computed before, blocks held], ...]  in vLLM's order
    blocks in use, without the null block
    [preempted request, ...]  in order
    [finished request, ...]  in order
"""

from __future__ import annotations

import collections
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm_configs import llama

MAX_LENGTH = 8192
STOP = 29_999
_LIMITS = (
    "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens",
    "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval", "watermark", "policy",
)  # fmt: skip


def _windows(workload: Mapping[str, Any]) -> list[kv.KVCacheGroupSpec]:
    """A group for each of the sliding windows, in tokens, that a workload has."""
    return [
        kv.KVCacheGroupSpec(
            [f"window{place}"],
            kv.SlidingWindowSpec(
                block_size=workload["block_size"], num_kv_heads=1, head_size=64,
                dtype=torch.bfloat16, sliding_window=window,
            ),
        )
        for place, window in enumerate(workload.get("windows", ()))
    ]  # fmt: skip


class Asked:
    """vLLM's scheduler with one workload, and what it preempts in order."""

    def __init__(self, model: ModelConfig, workload: Mapping[str, Any]) -> None:
        size = workload["block_size"]
        limits = {name: workload[name] for name in _LIMITS if name in workload}
        scheduling = SchedulerConfig(
            max_model_len=MAX_LENGTH, is_encoder_decoder=False, async_scheduling=False,
            scheduler_reserve_full_isl=workload["admission"] == "full", **limits,
        )  # fmt: skip
        cache = CacheConfig(
            block_size=size,
            enable_prefix_caching=workload["prefix_caching"],
        )
        self.config = VllmConfig(
            model_config=model, cache_config=cache, scheduler_config=scheduling
        )
        # Afterwards: vLLM's platform for CPUs forbids it.
        scheduling.async_scheduling = workload["async"]
        cache.num_gpu_blocks = blocks = workload["blocks"] + 1
        spec = kv.FullAttentionSpec(
            block_size=size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        cached = kv.KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[],
            kv_cache_groups=[kv.KVCacheGroupSpec(["layer"], spec), *_windows(workload)],
        )  # fmt: skip
        self.hasher = None
        if workload["prefix_caching"]:
            kv_cache_utils.init_none_hash(sha256)
            self.hasher = kv_cache_utils.get_request_block_hasher(size, sha256)
        kind = AsyncScheduler if workload["async"] else Scheduler
        self.scheduler = kind(
            self.config, cached, StructuredOutputManager(self.config), block_size=size,
            log_stats=True,
        )  # fmt: skip
        self.preempted: list[int] = []
        preempt = self.scheduler._preempt_request

        def noted(request: Request, *args: object, **kwargs: object) -> None:
            self.preempted.append(int(request.request_id))
            preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = noted
        self.workload = workload
        self.stops: dict[str, int] = {}

    def add(self, number: int, tokens: list[int], new: int, priority: int, stop: int) -> None:
        """Queue a request; ``stop``: the number of its token that is a stop token; 0: none."""
        params = SamplingParams(max_tokens=new, stop_token_ids=[STOP])
        params.update_from_generation_config({}, None)
        self.stops[str(number)] = stop
        request = Request(
            str(number), tokens, params, None, arrival_time=float(number), priority=priority,
            block_hasher=self.hasher,
        )  # fmt: skip
        self.scheduler.add_request(request)

    def abort(self, number: int) -> None:
        """Abort a request, if it is there."""
        if str(number) in self.scheduler.requests:
            self.scheduler.finish_requests([str(number)], RequestStatus.FINISHED_ABORTED)

    def steps(self) -> Iterator[list[Any]]:
        """Step to the end, the requests arriving and leaving at their steps."""
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        tables = manager.coordinator.single_type_managers[0].req_to_blocks
        coming = collections.deque(self.workload["requests"])
        aborts = collections.defaultdict(list)
        for at, number in self.workload["aborts"]:
            aborts[at].append(number)
        step, number = 0, 0
        flight: collections.deque[tuple[Any, ModelRunnerOutput]] = collections.deque()
        while coming or scheduler.has_requests() or flight:
            while coming and coming[0]["arrival"] <= step:
                one = coming.popleft()
                self.add(number, one["tokens"], one["new"], one["priority"], one["stop"])
                number += 1
            for each in aborts.pop(step, ()):
                self.abort(each)
            self.preempted.clear()
            out = scheduler.schedule()
            ids = list(out.num_scheduled_tokens)
            chunks = [
                [int(i), count, scheduler.requests[i].num_computed_tokens - count, len(tables[i])]
                for i, count in out.num_scheduled_tokens.items()
            ]
            used = self.workload["blocks"] - manager.block_pool.get_num_free_blocks()
            if ids:
                flight.append((out, self._sampled(ids)))
            finished: list[int] = []
            if flight and (len(flight) > bool(self.workload["async"]) or not ids):
                done = scheduler.update_from_output(*flight.popleft())
                finished = [
                    int(o.request_id)
                    for each in done.values()
                    for o in each.outputs
                    if o.finish_reason is not None
                ]
            yield [chunks, used, list(self.preempted), finished]
            step += 1
            if step > 20_000:
                sys.exit(f"no end: {json.dumps(self.workload)}")

    def _sampled(self, ids: list[str]) -> ModelRunnerOutput:
        """The token of each request that a model would sample: its position, from 30,000 on."""
        sampled = []
        for i in ids:
            request = self.scheduler.requests[i]
            if request.is_prefill_chunk:
                sampled.append([])
            else:
                place = request.num_output_tokens + request.num_output_placeholders
                place += not self.workload["async"]
                stops = place == self.stops[i]
                sampled.append([STOP if stops else 30_000 + request.num_prompt_tokens + place])
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: k for k, i in enumerate(ids)},
            sampled_token_ids=sampled,
        )


def main() -> None:
    """Answer each workload of the standard input."""
    with llama(MAX_LENGTH) as model:
        for line in sys.stdin:
            print(json.dumps(list(Asked(model, json.loads(line)).steps())), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # unloading vLLM takes seconds
