"""Start-up logs of vLLM, in the forms of its versions, with figures of our own."""

from __future__ import annotations

STARTED = """
INFO [core.py:69] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', \
max_seq_len=40960, tensor_parallel_size=2
INFO [gpu_model_runner.py:2338] Model loading took 7.64 GiB and 3.2 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 11.25 GiB
INFO [kv_cache_utils.py:864] GPU KV cache size: 163,840 tokens
INFO [kv_cache_utils.py:868] Maximum concurrency for 40,960 tokens per request: 4.00x
INFO [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.61 GiB
"""
TOO_LONG = """
INFO LLM engine (v0.10.2) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
max_seq_len=131072, tensor_parallel_size=1
INFO Free memory on device (21.8/22.06 GiB) on startup. Desired GPU memory utilization is (0.9, 19.85 GiB).
INFO Available KV cache memory: 4.60 GiB
ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV \
cache is needed, which is larger than the available KV cache memory (4.60 GiB). Based on the \
available memory, the estimated maximum model length is 37680.
"""  # noqa: E501
OLD = """
INFO worker.py:267] the current vLLM instance can use total_gpu_memory (79.14GiB) x \
gpu_memory_utilization (0.90) = 71.23GiB
INFO worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.12GiB; PyTorch \
activation peak memory takes 1.19GiB; the rest of the memory reserved for KV Cache is 54.93GiB.
INFO executor_base.py:110] # CUDA blocks: 28124, # CPU blocks: 2048
INFO executor_base.py:115] Maximum concurrency for 131072 tokens per request: 3.43x
"""
NO_MEMORY = """
INFO vLLM API server version 0.11.0, model='Qwen/Qwen3-8B', gpu_memory_utilization=0.9
INFO Available KV cache memory: -1.20 GiB
ValueError: No available memory for the cache blocks.
"""
OUT_OF_MEMORY = """
INFO vLLM API server version 0.11.0, model='Qwen/Qwen3-8B', gpu_memory_utilization=0.9
Capturing CUDA graphs: 10%
torch.OutOfMemoryError: CUDA out of memory.
"""
LITTLE_FREE = """
INFO vLLM API server version 0.11.0, model='Qwen/Qwen3-8B'
ValueError: Free memory on device (3.1/23.5 GiB) on startup is less than desired GPU memory \
utilization (0.9, 21.2 GiB).
"""
# In the order of vLLM's stages; each failure below is the beginning and an error.
_LOADING = """
INFO [api_server.py:1896] vLLM API server version 0.11.0
INFO [utils.py:328] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B-Instruct', \
'max_model_len': 32768, 'gpu_memory_utilization': 0.9}
INFO [core.py:69] Initializing a V1 LLM engine (v0.11.0) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=32768, tensor_parallel_size=1
INFO [gpu_model_runner.py:2602] Starting to load model meta-llama/Llama-3.1-8B-Instruct...
"""
_PROFILING = f"""{_LOADING}\
INFO [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 3.2 seconds
"""
_CACHE = f"""{_PROFILING}\
INFO [gpu_worker.py:298] Available KV cache memory: 5.06 GiB
INFO [kv_cache_utils.py:864] GPU KV cache size: 41,408 tokens
INFO [kv_cache_utils.py:868] Maximum concurrency for 32,768 tokens per request: 1.26x
"""
_CAPTURING = f"{_CACHE}Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|# | 7/67\n"
_WARMING_UP = f"""{_CAPTURING}\
INFO [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.61 GiB
"""
SERVING = f"""{_WARMING_UP}\
INFO [core.py:210] init engine (profile, create kv cache, warmup model) took 21.05 seconds
INFO:     Application startup complete.
"""
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has\n"
_OOM_SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. "
    "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.\n"
)
OOM_AT = {
    "oom_load": _LOADING + _OOM,
    "oom_profile": _PROFILING + _OOM,
    "oom_capture": _CAPTURING + _OOM,
    "oom_warmup": _WARMING_UP + _OOM_SAMPLER,
    "oom_serving": SERVING + _OOM,
}
CUT = f"""{_LOADING}\
(EngineCore_DP0 pid=9) ERROR [core.py:708] torch.distributed.DistBackendError: NCCL error in: \
ProcessGroupNCCL.cpp:94, unhandled system error
RuntimeError: Engine core initialization failed. See root cause above.
"""
SMALL_SHARE = f"""{_PROFILING.replace("0.9}", "0.6}")}\
INFO [gpu_worker.py:298] Available KV cache memory: -2.03 GiB
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when \
initializing the engine.
"""
OLD_TOO_LONG = """
INFO llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=131072, tensor_parallel_size=1
INFO model_runner.py:1060] Starting to load model meta-llama/Llama-3.1-8B-Instruct...
INFO model_runner.py:1071] Loading model weights took 14.9888 GB
INFO gpu_executor.py:122] # GPU blocks: 2588, # CPU blocks: 2048
ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can \
be stored in KV cache (41408). Try increasing `gpu_memory_utilization` or decreasing \
`max_model_len` when initializing the engine.
"""
ALL = (STARTED, TOO_LONG, OLD, NO_MEMORY, OUT_OF_MEMORY, LITTLE_FREE, SERVING, CUT,
       SMALL_SHARE, OLD_TOO_LONG, *OOM_AT.values())  # fmt: skip
