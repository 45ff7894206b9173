"""Guides name what exists, link to what is there, and print counts that kvsim comes to as well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import pytest
from guide_pages import FENCE, LINK, ROOT, read, spans

from experiment.config.reading import load_config
from experiment.config.schema import Config, config_keys
from experiment.experiments.base import cell_config
from experiment.experiments.figures import FIGURES
from experiment.experiments.prediction import _Listed
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text import Translator, catalogue
from experiment.text.errors import ExitCode
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.config import SimConfig
from kvsim.sim.metrics import SimResult
from kvsim.sim.simulator import simulate
from kvsim.traces.types import TraceRequest

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "reports/README.md")
)
# Every name in these is one of the code.
NAMING = ("docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md")
# Between marks that a command replaces.
GENERATED = re.compile(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", re.DOTALL)
PLACEHOLDER = re.compile(r"NAME|GROUP|XX|KEY")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DEFINED = re.compile(
    r"^\s*(?:(?:async )?def|class) (\w+)|^\s*(\w+)\s*(?::[^=\n]*)?=|^\s+(\w+): ", re.M
)
PROMPTS, NEW, LENGTH, BLOCK = (2, 13, 110, 2), 50, 512, 16
TINY_SLOT_BYTES = 1024  # of tiny-gpt2: 2 x 2 layers x 4 heads x 16 x 4 bytes


@cache
def defined() -> frozenset[str]:
    """Every name that a function, class, constant or field has somewhere in the code."""
    names: set[str] = set()
    for folder in ("experiment", "kvsim", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for found in DEFINED.findall(path.read_text(encoding="utf-8")):
                names.update(filter(None, found))
    return frozenset(names)


def count_words(page: str) -> int:
    """Words as ``wc -w`` counts them, of prose and tables written by hand.

    Left out: regions between ``NAME: begin`` and ``NAME: end``, and docs/families.md's table, which
    commands write; the tables of fields in docs/record.md; fenced blocks (commands, outputs,
    drawings, examples).
    """
    text = FENCE.sub("", GENERATED.sub("", read(page)))
    if page in ("docs/families.md", "docs/record.md"):
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    return len(text.split())


def test_the_guides_stay_short() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("README*.md")]
    counts = {
        str(path.relative_to(ROOT)): count_words(str(path.relative_to(ROOT))) for path in pages
    }
    assert sum(counts.values()) <= 18_000, counts


def test_links_within_the_repository_lead_somewhere() -> None:
    for page in PAGES:
        links = [link for link in LINK.findall(FENCE.sub("", read(page))) if ":" not in link]
        assert not [link for link in links if not leads_somewhere(page, link)], page


def leads_somewhere(page: str, link: str) -> bool:
    """Whether the file of a link is there and, where it names one, its heading too."""
    file, _, anchor = link.partition("#")
    path = ((ROOT / page).parent / file).resolve() if file else ROOT / page
    if not anchor:
        return path.exists()
    text = FENCE.sub("", path.read_text(encoding="utf-8")) if path.is_file() else ""
    return anchor in {anchor_of(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def anchor_of(title: str) -> str:
    """What GitHub calls a heading in links."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.strip().replace(" ", "-")


@pytest.mark.parametrize("page", NAMING)
def test_files_and_names_that_a_guide_gives_are_those_of_the_code(page: str) -> None:
    named = {one for one in spans(page) if not PLACEHOLDER.search(one)}
    files = {
        s for s in named if "/" in s and re.fullmatch(r"[\w./-]+(\.(py|toml|md|css|js|j2)|/)", s)
    }
    assert len(files) > 3 or page == "CONTRIBUTING.md"
    assert not [one for one in files if not (ROOT / one).exists()]
    names = {one for one in named if NAME.fullmatch(one)} - {
        *catalogue("en"),
        *config_keys(),
        *TOOLS,
    }
    assert not [name for name in names if not is_defined(name)]


# Words of programs, files and Transformers that are no names of ours.
TOOLS = {
    "make", "pagedkv", "cuda", "vllm", "render", "selfcheck", "events.jsonl", "sim.json",
    "generate", "StaticCache", "diff", "console",
}  # fmt: skip


def is_defined(name: str) -> bool:
    """Whether each part of a dotted name is a module or something that code defines."""
    parts = name.split(".")
    place = ROOT.joinpath(*parts)
    if place.is_dir() or place.with_suffix(".py").exists() or (ROOT / name).exists():
        return True
    if parts[-1] in ("py", "toml", "js", "css", "md"):
        return bool(list(ROOT.glob(f"*/**/{name}")))
    return all(part in defined() for part in parts)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_counts_the_default_run(page: str) -> None:
    text, finals = read(page), [final_tokens(prompt, NEW) for prompt in PROMPTS]
    slots, live = len(PROMPTS) * LENGTH, sum(finals)
    padding = sum(max(PROMPTS) - prompt for prompt in PROMPTS)
    blocks = sum(blocks_needed(final, BLOCK) for final in finals)
    unwritten, empty = slots - live - padding, blocks * BLOCK - live
    for count in (slots, live, padding, blocks, blocks * BLOCK, slots - live, unwritten, empty):
        assert re.search(rf"(?<![\d,]){count:,}(?![\d,])", text), count
    bars = re.findall(r"^\S.*?  +(#+)(/*)(\.*)$", text, re.MULTILINE)
    wanted = [(live, padding, unwritten), (live, 0, empty)]
    assert [tuple(map(len, bar)) for bar in bars] == [
        tuple(round(count / 32) for count in counts) for counts in wanted
    ]


def foretold(config: Config, size: int) -> SimResult:
    """What kvsim makes of the requests of a config in blocks of ``size``."""
    lengths = config.workload.lengths
    budget = config.cache.budget
    if budget == "auto":
        budget = len(lengths) * config.cache.max_length * TINY_SLOT_BYTES
    told = SimConfig(
        "paged", budget, TINY_SLOT_BYTES, config.cache.max_length, LinearLatency(fixed_s=1.0),
        block_size=size,
    )  # fmt: skip
    requests = [TraceRequest(i, 0, prompt, new) for i, (prompt, new) in enumerate(lengths)]
    return simulate(_Listed(requests), told)


def cells(name: str) -> list[Config]:
    """The cells of an experiment in its quick size."""
    config = load_config(CONFIGS / f"{name}.toml", {"experiment.size": "quick"})
    return [cell_config(config, cell) for cell in EXPERIMENTS[name].cells(config)]


def shown(figure: str, results: Sequence[SimResult]) -> str:
    """The end of a table's row, as the tutorial prints it."""
    predict = FIGURES[figure].predict
    assert predict is not None
    values = [predict(result) for result in results]
    assert all(value is not None for value in values)
    formats = {"waste": lambda v: f"{v * 100:.1f} %", "table_entries": lambda v: f"{v:.1f}"}
    write = formats.get(figure, lambda v: f"{v:.0f}")
    return "".join(f" {write(value)} |" for value in values)


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/tutorial.zh.md"])
def test_the_tutorial_prints_what_kvsim_foretells(page: str) -> None:
    rows = [line for line in read(page).splitlines() if line.startswith("|")]
    crowded = cells("capacity")[-1]
    both = [foretold(crowded, size) for size in (LENGTH, BLOCK)]
    wanted = [shown(figure, both) for figure in ("running_peak", "waste", "preemptions")]
    shapes = cells("lengths")
    for size in (LENGTH, BLOCK):
        each = [foretold(config, size) for config in shapes]
        wanted += [shown("waste", each), shown("running_peak", each)]
    sizes = cells("block-size")
    each = [foretold(config, config.cache.block_size) for config in sizes]
    wanted += [shown("waste", each), shown("table_entries", each)]
    for end in wanted:
        assert any(row.endswith("|" + end) for row in rows), end


CODES = {value for name, value in vars(ExitCode).items() if name.isupper() and name != "ENDED"}
ROW = re.compile(r"^\| (\d[\d, 、]*) \|", re.M)


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/commands.zh.md"])
def test_a_page_has_every_exit_code_and_no_other(page: str) -> None:
    text = read(page)
    start = re.search(r"^\| (exit code|退出码) \|.*\n", text, re.M)
    assert start is not None
    table = text[start.end() :].partition("\n\n")[0]
    assert {int(code) for row in ROW.findall(table) for code in re.findall(r"\d+", row)} == CODES


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_help_has_every_exit_code(lang: str) -> None:
    found = {int(number) for number in re.findall(r"\d+", Translator(lang)("help.epilog"))}
    assert found == CODES


def test_the_tests_that_the_page_names_are_there() -> None:
    text = read("docs/reliability.md")
    named = set(re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py|tests/[\w/]+(?:\.py)?)`", text))
    assert {"tests/fuzz/campaign.py", "tests/leaks", "test_resumed.py"} <= named
    places = [ROOT, ROOT / "tests/faults"]
    assert not [name for name in named if not any((place / name).exists() for place in places)]
