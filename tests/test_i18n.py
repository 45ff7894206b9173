"""Both catalogues are complete, equal in shape, and each in its own language."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest
from catalogue_use import Sources, value_of

import experiment
import kvsim
from experiment.analysis.metrics import METRICS
from experiment.files.shipped import CONFIGS
from experiment.report.facts.simulation_cells import EVICTIONS, PREEMPTIONS
from experiment.report.facts.simulation_figures import GROUPS
from experiment.text import (
    DASH,
    Translator,
    catalogue,
    detect_language,
    format_bytes,
    format_seconds,
)
from experiment.text.messages import message
from kvsim.sim.config import SIM_POLICIES

ROOT = Path(experiment.__file__).parent
HAN = re.compile(r"[\u3400-\u9fff]")
FULL_WIDTH = re.compile(r"[\u3000-\u303f\uff00-\uffef]")
# The same in both languages: names, and cells that hold nothing but a value.
SAME = {
    "console.title",
    "experiments.pair",
    "experiments.found.where",
    "experiments.kvsim",
    "claims.figure_share",
    "claims.figure_fine",
    "reconcile.off",
    "reconcile.colon",
    "trace_reason.other",
    "metric.stat.percentile",
    "bench.fact.versions",
    "gpucheck.machine.torch",
}


def placeholders(text: str) -> set[tuple[str, str | None]]:
    return {(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None}


def test_both_catalogues_have_the_same_keys_and_placeholders() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    assert english.keys() == chinese.keys()
    assert not [k for k in english if placeholders(english[k]) != placeholders(chinese[k])]


def test_chinese_texts_are_chinese_and_english_texts_are_not() -> None:
    names_only = re.compile(r"^[\W\d_]*(?:\{[^}]*\}[\W\d_]*)*$")
    # One or two words may be a technical name in every language.
    names = {text for text in catalogue("en").values() if len(text.split()) <= 2}
    english = [
        key for key, text in catalogue("zh").items()
        if not (HAN.search(text) or key in SAME or names_only.match(text) or text in names)
    ]  # fmt: skip
    assert not english
    assert not [k for k, v in catalogue("en").items() if HAN.search(v) or FULL_WIDTH.search(v)]


# Texts that tables name before they become messages.
TABLED = re.compile(r"(?:environment|memory|error\.env)\.[a-z_0-9]+")


def named_keys() -> set[str]:
    """Keys that are given literally to a translator or to a message, and those of tables."""
    keys: set[str] = set()
    callers = {"t", "message", "user_error", "section", "begin_task", "missing"}
    for path in ROOT.rglob("*.py"):
        tabled = path.parent.name in ("machine", "memory", "children") and path.stem != "cgroup"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in callers and (text := value_of(node.args[0])):
                    keys.add(text)
            elif tabled and TABLED.fullmatch(value_of(node) or ""):
                keys.add(str(value_of(node)))
    return {key for key in keys if "." in key}


def test_every_key_that_code_names_is_in_the_catalogues() -> None:
    assert not named_keys() - catalogue("en").keys()


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(ROOT, Path(kvsim.__file__).parent, CONFIGS)


def test_no_text_is_left_unused(sources: Sources) -> None:
    left = [key for key in catalogue("en") if not key.startswith((*exactly_asked_for(),))]
    assert not [key for key in left if not sources.asks_for(key)]


def exactly_asked_for() -> dict[str, set[str]]:
    """Under each of these there is a text for what code has, and for nothing else."""
    labels = " ".join(metric.label.model_dump_json() for metric in METRICS.values())
    sweeps = ("block_sizes", "preemption", "budgets", "samples", "prefixes")
    texts = {f"{sweep}.{part}" for sweep in sweeps for part in ("title", "axis", "about")}
    return {
        "metric.": set(re.findall(r"\"metric\.([\w.]+)", labels)),
        "sim.policy.": {policy.replace("+", "_") for policy in SIM_POLICIES},
        "sim.eviction.": {*EVICTIONS, "bound"},
        "sim.preemption.": set(PREEMPTIONS),
        "sim.sweep.": texts | {"own"},
        "sim.group.": {*GROUPS, "brief"} | {f"{name}_about" for name in GROUPS},
    }


def test_texts_of_figures_and_the_simulator_are_those_that_can_be_asked_for() -> None:
    for prefix, names in exactly_asked_for().items():
        found = {key.removeprefix(prefix) for key in catalogue("en") if key.startswith(prefix)}
        wanted = {name for name in names if not name.endswith("_about")}
        assert wanted <= found <= names, prefix


def test_a_message_inside_a_message_is_rendered_too() -> None:
    t = Translator("en")
    inner = message("failure.exit", code=7)
    outer = message("console.note", text=inner.model_dump())
    assert t.message(outer) == t("console.note", text=t.message(inner))


def test_sizes_are_binary_and_spelled() -> None:
    assert format_bytes(144 * 2**20) == "144 MiB"
    assert format_bytes(73_728) == "72 KiB"
    assert format_bytes(1.5 * 2**30) == "1.50 GiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(1010 * 2**20) == "0.99 GiB"
    assert format_bytes(907.55 * 2**20) == "907.5 MiB"
    assert format_bytes(None) == DASH


def test_short_times_keep_three_digits() -> None:
    seen = [0.000231, 0.00334, 0.0349, 0.104, 0.9994, 0.9996, 1.86, 246.1, 0, None]
    assert [format_seconds(one) for one in seen] == [
        "0.231 ms", "3.34 ms", "34.9 ms", "104 ms", "999 ms", "1.00 s", "1.86 s", "246 s", "0 s",
        DASH,
    ]  # fmt: skip


def test_the_language_follows_the_locale() -> None:
    assert detect_language({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert detect_language({"LANG": "de_DE.UTF-8"}) == "en"
    assert detect_language({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}) == "en"
    assert detect_language({"PAGEDKV_LANG": "zh", "LANG": "en_US"}) == "zh"


def test_what_files_say_cannot_steer_the_terminal() -> None:
    t = Translator("en")
    said = t("error.trace.empty", file="a\x1b[31m\u202eb\x07\n好")
    assert said == "a\\x1b[31m\\u202eb\\x07\n好 is empty."
