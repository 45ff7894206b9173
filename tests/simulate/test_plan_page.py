"""The page of a plan: the answer first, and sliders that compute as kvsim does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import html5lib
import pytest
from axe_check import needs_axe, violations
from pages import Opened

from experiment.commands.main import main
from experiment.report.facts.plan import answer, serve_command
from experiment.report.pages.plan import plan_html
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from kvsim.planning.capacity import capacities
from kvsim.sizing.budget import KVBudget
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.layout import Layout, Service, lay_out
from kvsim.sizing.models import find_model
from kvsim.sizing.overhead import ServerOptions

GIB = 1 << 30
# Every kind of layer: full, windows, chunks, states, latent; and a prefix, a maximum length beyond
# the context, and a KV budget as given.
PLANS: dict[str, dict[str, Any]] = {
    "gpt2": {"gpu": "rtx-4090", "context": 600, "users": 30},
    "gemma-3-27b": {"gpu": "h100", "context": 8192},
    "gpt-oss-20b": {"gpu": "rtx-4090", "context": 30_000, "memory": Memory(kv_dtype="fp8")},
    "llama-4-scout": {"gpu": "h200", "context": 20_000, "memory": Memory(gpus=2)},
    "qwen3-next-80b-a3b": {"gpu": "h200", "context": 4096, "memory": Memory(gpus=2)},
    "falcon-h1-7b": {"gpu": "a100-80gb", "context": 4096, "prefix_caching": False},
    "deepseek-v3": {"gpu": "h200", "context": 32_768, "memory": Memory(gpus=8)},
    "llama-3.1-8b": {
        "gpu": "rtx-4090", "context": 3000, "max_length": 8000, "shared_prefix": 1000,
        "async_scheduling": False, "memory": Memory(budget=4 * GIB),
    },
}  # fmt: skip
_LINES = ("exact", "range", "users_", "limit_", "printed", "never_starts")
_MOVE = """moves => moves.map(([moved, at]) => {
  for (const [name, place] of Object.entries(at)) {
    document.getElementById('what-if-' + name).value = place;
  }
  document.getElementById('what-if-' + moved).dispatchEvent(new Event('input'));
  const lines = [...document.querySelectorAll('#what-if .answers p:not([hidden])')];
  return lines.map(line => line.textContent);
})"""

At = Mapping[str, Any]


def said(data: Mapping[str, Any], lang: str = "en") -> list[str]:
    """The answer's lines that depend on the sliders, as the console prints them."""
    lines = [
        one for one in answer(data) if one.key.startswith(tuple(f"plan.answer.{k}" for k in _LINES))
    ]
    return [Translator(lang).message(one) for one in lines]


class Sliders:
    """A page with its plan, and what kvsim computes for positions of its sliders."""

    def __init__(self, browser: Any, folder: Path, name: str) -> None:
        asked = {"memory": Memory(), **PLANS[name]}
        self.gpu = find_gpu(asked.pop("gpu"))
        self.name, self.asked, self.memory = name, asked, asked.pop("memory")
        self.data = plan(name, self.gpu, memory=self.memory, **asked)
        self.positions: dict[str, list[Any]] = self.data["plan"]["what_if"]["positions"]
        start = self.data["plan"]["what_if"]["start"]
        self.start = {key: values.index(start[key]) for key, values in self.positions.items()}
        self.layout = cache(self._layout)
        file = folder / f"{name}.html"
        file.write_text(plan_html(self.data, "en"), encoding="utf-8")
        self.opened = Opened(browser, file)

    def show(self, moves: list[tuple[str, At]]) -> list[list[str]]:
        """The page's lines for each move: the slider that moves, and places of all."""
        shown = self.opened.page.evaluate(_MOVE, moves)
        return [[line.replace("\u00a0", " ") for line in lines] for lines in shown]

    def values(self, places: At) -> dict[str, Any]:
        return {name: self.positions[name][place] for name, place in places.items()}

    def _layout(self, block_size: int, kv_dtype: str) -> Layout:
        caches = find_model(self.name).caches(
            "float8" if kv_dtype == "fp8" else None, self.memory.gpus, block_size,
            prefix_caching=self.asked.get("prefix_caching", True),
        )  # fmt: skip
        return lay_out(caches)

    def expected(self, places: At, lang: str = "en") -> list[str]:
        """kvsim's numbers in the words of the console."""
        at, whole, gpus = self.values(places), self.data["plan"], self.memory.gpus
        layout, length = self.layout(at["block_size"], at["kv_dtype"]), at["context"]
        longest = max(length, self.asked.get("max_length", 0))
        batched = ServerOptions().batched_tokens(self.gpu, longest)
        batches = 2 if self.asked.get("async_scheduling", True) else 1
        given = self.data["setup"]["budget"]
        budget = KVBudget(given["kv"], given["memory"], low=given["low"], high=given["high"])
        prefix = self.asked.get("shared_prefix", 0)
        service = Service(longest, batched, batches)
        sizes = capacities(layout, budget, gpus, service, length, prefix)
        seqs = ServerOptions().sequences(self.gpu, longest)
        capacity = whole["capacity"] | {
            "length": length, "users": at["users"], "shortened": False,
            "limit": "sequences" if sizes["middle"].requests > seqs else "memory",
            **{name: asdict(size) for name, size in sizes.items()},
        }  # fmt: skip
        blocks = layout.request_blocks(Service(longest, 1, 1), length)
        size = blocks * layout.block_bytes * gpus
        return [
            *said(
                self.data | {"plan": whole | {"capacity": capacity, "max_length": longest}}, lang
            ),
            Translator(lang)("plan.answer.request", size=size, blocks=blocks),
        ]


@pytest.fixture(scope="module", params=PLANS)
def sliders(
    browser: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sliders]:
    made = Sliders(browser, tmp_path_factory.mktemp("plan"), request.param)
    yield made
    assert made.opened.complaints == []
    assert len(made.opened.requests) == 1
    made.opened.context.close()


def test_every_position_of_each_slider_is_kvsim_s(sliders: Sliders) -> None:
    moves = [
        (name, sliders.start | {name: place})
        for name, values in sliders.positions.items()
        for place in range(len(values))
    ]
    assert all(len(values) > 1 for values in sliders.positions.values())
    shown = sliders.show(moves)
    assert shown == [sliders.expected(places) for _, places in moves]


def test_a_thousand_random_combinations_are_kvsim_s(sliders: Sliders) -> None:
    draw = random.Random(0)
    moves = [
        (
            "context",
            {name: draw.randrange(len(values)) for name, values in sliders.positions.items()},
        )
        for _ in range(1000)
    ]
    shown = sliders.show(moves)
    assert shown == [sliders.expected(places) for _, places in moves]


def test_a_plan_with_the_sliders_values_has_the_same_answer(sliders: Sliders) -> None:
    """Nothing else of a plan depends on them: neither the budget nor the limits of the service."""
    start = sliders.start
    other = {
        "context": max(0, start["context"] - 3), "users": 0, "kv_dtype": 1 - start["kv_dtype"],
        "block_size": len(sliders.positions["block_size"]) - 1,
    }  # fmt: skip
    for places in (start, other):
        at = sliders.values(places)
        memory = replace(sliders.memory, kv_dtype=at.pop("kv_dtype"))
        found = plan(sliders.name, sliders.gpu, memory=memory, **(sliders.asked | at))
        assert sliders.show([("users", places)])[0][:-1] == said(found)


@pytest.mark.parametrize("sliders", ["gemma-3-27b", "llama-3.1-8b"], indirect=True)
def test_the_keyboard_moves_a_slider_and_the_language_changes_what_is_said(
    sliders: Sliders,
) -> None:
    page, places = sliders.opened.page, dict(sliders.start)
    sliders.show([("users", places)])
    for name, values in sliders.positions.items():
        slider = page.get_by_role("slider", name=Translator("en")(f"plan.what_if.{name}"))
        step = -1 if places[name] else 1
        slider.press("ArrowLeft" if step < 0 else "ArrowRight")
        places[name] += step
        value = values[places[name]]
        text = f"{value:,}" if isinstance(value, int) else value
        assert slider.get_attribute("aria-valuetext") == text
        assert page.get_by_text(text, exact=True).count() > 0
    for lang in ("zh", "en"):
        page.click(f'[data-language="{lang}"]')
        lines = page.locator("#what-if .answers p:not([hidden])").all_inner_texts()
        assert [line.replace("\u00a0", " ") for line in lines] == sliders.expected(places, lang)
    first, second = page.get_by_role("status").locator("p").all_inner_texts()
    assert [first, second] == lines[:2]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command, in Chinese first."""
    out = tmp_path_factory.mktemp("page") / "plan.html"
    words = ("--model", "gemma-3-27b", "--gpu", "h100", "--context", "8192", "--users", "12")
    assert main(["plan", *words, "--out", str(out), "--lang", "zh"]) == ExitCode.OK
    return out


def test_the_page_opens_with_the_answer_of_the_console(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    html5lib.HTMLParser(strict=True).parse(text)
    body = html5lib.parse(text, namespaceHTMLElements=False).find("body")
    data = plan("gemma-3-27b", "h100", context=8192, users=12)
    hero = body.find(".//section[@class='hero']")
    for lang in LANGUAGES:
        told = "".join("".join(node.itertext()) for node in hero.iter() if node.get("lang") == lang)
        for line in (*map(Translator(lang).message, answer(data)), *serve_command(data["plan"])):
            assert line in told.replace("\u00a0", " ")


def test_it_fits_a_screen_and_needs_no_script(page: Path, browser: Any) -> None:
    for script in (True, False):
        one = Opened(browser, page, java_script_enabled=script)
        for width in (1200, 390):
            one.page.set_viewport_size({"width": width, "height": 900})
            assert one.page.locator("#what-if").is_visible() == script
            assert one.page.locator("h1:visible").count() == 1
            assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        one.context.close()


@needs_axe
def test_axe_finds_no_serious_violation(browser: Any, page: Path) -> None:
    assert not violations(browser, page)
