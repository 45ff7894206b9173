"""KV cache bytes of models, and memory of GPUs."""
