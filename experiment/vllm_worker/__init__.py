"""The vLLM arm: a worker process in vLLM's interpreter.

    runner                     │ vLLM's interpreter
    launch.py ─ VllmTask ─stdin─► __main__.py ─► arm.py ─► vLLM's LLMEngine, EngineCore inside it
                               │                 │             │ MeasuredExecutor: phases, marks
    record ◄─────events─stdout──────────────────┘             ▼
                               │                     Worker process for each rank: weights, cache

EngineCore runs in the worker's own process, so that it is idle while memory is read and block
tables can be read in each step. Weights and cache are in its child processes.

Beside the arm, ``check_layout`` lays out a planned cache by vLLM's own functions, which ``configs``
and ``layouts`` call.

The runner imports only ``task`` of this package. The rest depends on vLLM, its dependencies (torch,
Transformers, pydantic) and the events; see tests/vllm_arm.
"""
