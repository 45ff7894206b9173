"""What a person reads in README and guides: commands, code spans, links, headings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
BEGINNINGS = ("make ", "pip install ", "pagedkv ", "python run_experiment.py")
TRANSLATED = {
    "README.md": "README.zh.md",
    "docs/tutorial.md": "docs/tutorial.zh.md",
    "docs/reading.md": "docs/reading.zh.md",
    "docs/commands.md": "docs/commands.zh.md",
    "docs/install.md": "docs/install.zh.md",
    "docs/limits.md": "docs/limits.zh.md",
}
WITH_COMMANDS = (
    *TRANSLATED, *TRANSLATED.values(), "CONTRIBUTING.md", "docs/experiments.md",
    "docs/plan.md", "docs/simulator.md", "docs/performance.md", "docs/vllm.md",
    "docs/compare.md", "docs/memory.md",
    "docs/reliability.md", "docs/record.md", "docs/paper.md", "reports/README.md", "CHANGELOG.md",
)  # fmt: skip


def read(page: str) -> str:
    """Text of a page of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def spans(page: str) -> list[str]:
    """What stands between backticks within lines."""
    return SPAN.findall(FENCE.sub("", read(page)))


def commands(page: str) -> list[list[str]]:
    """Words of every command of a page, of blocks and within lines, in order."""
    blocks = [block.replace("\\\n", " ").splitlines() for block in FENCE.findall(read(page))]
    lines = [line.removeprefix("$ ") for block in blocks for line in block] + spans(page)
    found = []
    for line in lines:
        if f"{line} ".startswith(BEGINNINGS):
            found += [shlex.split(part, comments=True) for part in line.split("&&")]
    return [words for words in found if words]


def program_words(words: list[str]) -> list[str] | None:
    """What our own program is given; None for another one's command."""
    if words[0] == "pagedkv":
        return words[1:]
    return words[2:] if words[:2] == ["python", "run_experiment.py"] else None
