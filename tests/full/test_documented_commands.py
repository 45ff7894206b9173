"""Every command of README and docs/commands.md, in an empty directory, as a person types them.

Both languages have the same ones (`tests/test_readme.py`), so they are typed once. On two quiet
cores that is some twenty-five minutes, nine of them `claims`; on a busy machine it is hours.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guide_pages import ROOT, commands, program_words
from start_logs import STARTED

from experiment.arms.launch import find_vllm
from experiment.text.errors import ExitCode
from experiment.text.messages import Message

PAGES = ("README.md", "docs/commands.md")
GIVEN = [program_words(one) for page in PAGES for one in commands(page)]
TYPED = [list(each) for each in dict.fromkeys(tuple(one) for one in GIVEN if one is not None)]
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-16 18:17:04.0781590,879,55
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are typed; what one writes is there for the next."""
    path = tmp_path_factory.mktemp("newcomer")
    (path / "trace.csv").write_text(TRACE, encoding="utf-8")
    (path / "vllm.log").write_text(STARTED, encoding="utf-8")
    (path / "result.json").write_text(json.dumps(served()), encoding="utf-8")
    return path


def served() -> dict[str, Any]:
    """What ``vllm bench serve --save-detailed`` writes of sixty requests."""
    made = random.Random(0)
    prompts, answers = ([made.randint(20, most) for _ in range(60)] for most in (900, 80))
    return {
        "model_id": "m", "request_throughput": 2.0, "generated_texts": ["a"] * 60,
        "input_lens": prompts, "output_lens": answers,
        "start_times": [made.uniform(0, 30) for _ in range(60)],
        "ttfts": [0.03 + 0.0001 * tokens for tokens in prompts],
        "itls": [[0.012 + 0.00001 * at] * (tokens - 1) for at, tokens in enumerate(answers)],
    }  # fmt: skip


@pytest.mark.parametrize("given", TYPED, ids=lambda given: " ".join(given) or "the walkthrough")
def test_a_documented_command_ends_well(given: list[str], place: Path) -> None:
    if "vllm" in " ".join(given) and isinstance(find_vllm(), Message):
        pytest.skip("vLLM is not there: run make vllm")
    runs = sorted((path.parent for path in place.glob("reports/*/run.json")), key=os.path.getmtime)
    words = [word.replace("reports/<run>", str(runs[-1])) if "<run>" in word else word
             for word in given]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *words],
        cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.OK, done.stdout[-4000:] + done.stderr
    assert done.stdout.strip()
