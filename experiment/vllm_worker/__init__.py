"""vLLM itself as an arm: a worker that runs in an interpreter which has vLLM, and not our packages.

    runner                     │ vLLM's interpreter
    launch.py ─ VllmTask ─stdin─► __main__.py ─► arm.py ─► vLLM's LLMEngine, EngineCore inside it
                               │                 │             │ MeasuredExecutor: phases, marks
    record ◄─────events─stdout──────────────────┘             ▼
                               │                     Worker process for each rank: weights, cache

EngineCore stays in the worker's own process, so that nothing runs while memory is read and each
step's block tables are there to be looked at. Weights and cache are in processes below it.

Of this package the runner imports ``task`` alone. What runs inside depends on vLLM, on what vLLM
brings (torch, Transformers, pydantic) and on the events; see tests/vllm_arm.
"""
