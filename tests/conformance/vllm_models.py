"""Asks vLLM's own model classes what their layers keep; runs in vLLM's interpreter.

    python vllm_models.py < asks.jsonl > answers.jsonl

Asks and answers are those of :func:`experiment.vllm_worker.layouts.lay_out_model`, a line each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from experiment.vllm_worker.layouts import lay_out_model, one_process


def main() -> None:
    """Answer each ask of the standard input."""
    with tempfile.TemporaryDirectory() as place, one_process():
        for line in sys.stdin:
            print(json.dumps(lay_out_model(json.loads(line), place)), flush=True)


if __name__ == "__main__":
    main()
