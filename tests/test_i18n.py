"""Both catalogues are complete, equal in shape, and each in its own language."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest
from catalogue_use import Sources

import experiment
import kvsim
from experiment.compare.metrics import METRICS
from experiment.experiments import figures as experiments
from experiment.files.shipped import CONFIGS
from experiment.report.facts.simulation_figures import FIGURES, GROUPS
from experiment.report.facts.simulation_sweeps import EVICTIONS, PREEMPTIONS
from experiment.text import (
    DASH,
    LANGUAGES,
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
MOJIBAKE = re.compile("鏄|锛|鐨勬|â€|Ã|ï¼|锟斤拷|\ufffd")
# The same in both languages: names, and cells that hold nothing but a value.
SAME = {
    "console.title",
    "experiments.pair",
    "experiments.kvsim",
    "claims.figure_share",
    "claims.figure_fine",
    "experiments.headline",
    "experiments.value.int8",
    "experiments.value.fp8",
    "reconcile.off",
    "reconcile.colon",
    "trace_reason.other",
}


def placeholders(text: str) -> set[tuple[str, str | None]]:
    return {(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None}


def test_both_catalogues_have_the_same_keys() -> None:
    assert catalogue("en").keys() == catalogue("zh").keys()


@pytest.mark.parametrize("key", sorted(catalogue("en")))
def test_a_text_has_the_same_placeholders_in_both_languages(key: str) -> None:
    assert placeholders(catalogue("en")[key]) == placeholders(catalogue("zh")[key])


def test_chinese_texts_are_chinese_and_english_texts_are_not() -> None:
    names_only = re.compile(r"^[\W\d_]*(?:\{[^}]*\}[\W\d_]*)*$")
    for key, text in catalogue("zh").items():
        assert HAN.search(text) or key in SAME or names_only.match(text) or is_name(text), key
    for key, text in catalogue("en").items():
        assert not HAN.search(text), key
        assert not FULL_WIDTH.search(text), key


def is_name(text: str) -> bool:
    """One or two words that are a technical name in every language."""
    return len(text.split()) <= 2 and text == catalogue_value_in_english(text)


def catalogue_value_in_english(text: str) -> str | None:
    return next((value for value in catalogue("en").values() if value == text), None)


def test_no_text_was_copied_instead_of_translated() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    copied = {k for k, v in english.items() if chinese.get(k) == v and len(v.split()) > 2}
    assert copied <= SAME


def test_chinese_letters_and_words_in_latin_letters_are_set_apart() -> None:
    glued = re.compile(r"[\u4e00-\u9fff][A-Za-z]{2,}|[A-Za-z]{2,}[\u4e00-\u9fff]")
    found = {key: text for key, text in catalogue("zh").items() if glued.search(text)}
    assert not found


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_text_is_mojibake(lang: str) -> None:
    assert not [key for key, text in catalogue(lang).items() if MOJIBAKE.search(text)]


def called_keys() -> set[str]:
    """Keys that are given literally to a translator or to a message."""
    keys: set[str] = set()
    callers = {"t", "message", "user_error", "section", "begin_task", "missing"}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            if name in callers and isinstance(first, ast.Constant) and isinstance(first.value, str):
                keys.add(first.value)
    return {key for key in keys if "." in key}


def test_every_key_that_code_names_is_in_the_catalogues() -> None:
    missing = called_keys() - catalogue("en").keys()
    assert not missing


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(ROOT, Path(kvsim.__file__).parent, CONFIGS)


def test_no_text_is_left_unused(sources: Sources) -> None:
    left = [key for key in catalogue("en") if not key.startswith((*exactly_asked_for(),))]
    assert len(left) > 1000
    assert not [key for key in left if not sources.asks_for(key)]


def test_a_text_under_a_word_that_nobody_says_is_found_unused(sources: Sources) -> None:
    hidden = [
        "arm_name.nobody", "claim.nobody.title", "claim.throughput.nobody", "error.os.nobody",
        "explain.nobody.text", "experiments.nobody.about", "report.nobody.title", "sim.page.nobody",
        "error.unknown_nobody_near", "section.nobody_about", "help.nobody",
    ]  # fmt: skip
    assert not [key for key in hidden if sources.asks_for(key)]


def exactly_asked_for() -> dict[str, set[str]]:
    """Under each of these there is a text for what code has, and for nothing else."""
    figures = {figure.name for figure in FIGURES if figure.state is None}
    states = {figure.state for figure in FIGURES if figure.state is not None}
    sweeps = ("block_sizes", "preemption", "budgets", "samples", "prefixes")
    texts = {f"{sweep}.{part}" for sweep in sweeps for part in ("title", "axis", "about")}
    return {
        "compare.metric.": {*METRICS},
        "experiments.figure.": {*experiments.FIGURES},
        "sim.figure.": figures | {"state_mean", "state_peak"},
        "sim.state.": states,
        "sim.policy.": {policy.replace("+", "_") for policy in SIM_POLICIES},
        "sim.eviction.": {*EVICTIONS, "bound"},
        "sim.preemption.": set(PREEMPTIONS),
        "sim.sweep.": texts | {"own"},
        "sim.group.": {*GROUPS} | {f"{name}_about" for name in GROUPS},
    }


@pytest.mark.parametrize(("prefix", "names"), exactly_asked_for().items())
def test_texts_of_figures_and_the_simulator_are_those_that_can_be_asked_for(
    prefix: str, names: set[str]
) -> None:
    found = {key.removeprefix(prefix) for key in catalogue("en") if key.startswith(prefix)}
    wanted = {name for name in names if not name.endswith("_about")}
    assert wanted <= found <= names


def test_unknown_values_are_a_dash_in_every_format() -> None:
    for spec in ("bytes", "percent", "seconds", "count", "ratio", "rate", ""):
        from experiment.text import _FORMATTER

        assert _FORMATTER.vformat("{x:" + spec + "}", (), {"x": None}) == DASH


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


def test_no_file_of_the_product_is_mojibake() -> None:
    for path in ROOT.rglob("*"):
        if path.suffix in {".py", ".toml", ".j2", ".css", ".js"}:
            assert not MOJIBAKE.search(path.read_text(encoding="utf-8")), path


def test_what_files_say_cannot_steer_the_terminal() -> None:
    t = Translator("en")
    said = t("error.trace.empty", file="a\x1b[31m\u202eb\x07\n好")
    assert said == "a\\x1b[31m\\u202eb\\x07\n好 is empty."
