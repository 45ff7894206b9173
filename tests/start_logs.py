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
ALL = (STARTED, TOO_LONG, OLD, NO_MEMORY, OUT_OF_MEMORY, LITTLE_FREE)
