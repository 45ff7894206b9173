"""The site: every link leads somewhere, nothing is fetched, and the planner answers as ``plan``."""

from __future__ import annotations

import random
import shutil
import threading
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import html5lib
import pytest
from axe_check import needs_axe, violations
from guide_pages import ROOT
from pages import OpenPage

from experiment.report.facts.plan import answer, serve_command
from experiment.report.site.build import SAMPLE, build
from experiment.report.site.markdown import page_of
from experiment.simulate.plan import plan
from experiment.simulate.planner import COUNTS, GPUS, MODELS, planner
from experiment.simulate.setup import Memory
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from kvsim.sizing.layout import Service, lay_out
from kvsim.sizing.models import find_model

TELEPHONE = {"width": 390, "height": 844}
_HAN = r"/[\u4e00-\u9fff]/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, with the report of a run, below a directory with a blank in its name."""
    scratch = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "tests/corpus/logs/quick", scratch / "quick")
    build(scratch / "the site", planner(), [scratch / "quick"])
    return scratch / "the site"


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


@cache
def nodes(page: Path) -> list[Any]:
    text = page.read_text(encoding="utf-8")
    return [*html5lib.parse(text, namespaceHTMLElements=False).iter()]


def test_every_link_leads_to_a_file_and_an_element(site: Path) -> None:
    ids = {page: {node.get("id") for node in nodes(page)} for page in pages(site)}
    links = 0
    for page in ids:
        for node in nodes(page):
            target = node.get("href") if node.tag in ("a", "link") else node.get("src")
            if target is None:
                continue
            where = urlsplit(target)
            if where.scheme:
                assert node.tag == "a", (page, target)  # followed by a person, not fetched
                continue
            file = (page.parent / unquote(where.path)).resolve() if where.path else page
            assert file.is_relative_to(site), (page, target)
            assert file.is_file(), (page, target)
            assert not where.fragment or unquote(where.fragment) in ids[file], (page, target)
            links += 1
    assert links > 150
    assert {path.stem for path in ROOT.glob("docs/*.md") if not path.stem.endswith(".zh")} <= {
        page.stem for page in ids
    }


def test_every_report_leads_back_to_the_site(site: Path) -> None:
    reports = [site / SAMPLE, *(site / "reports").rglob("*.html")]
    assert len(reports) > 2
    for page in reports:
        links = (node.get("href") for node in nodes(page) if node.tag == "a")
        assert site / "index.html" in {(page.parent / link).resolve() for link in links if link}


def test_pages_are_valid(site: Path) -> None:
    for page in [*site.glob("*.html"), *site.glob("docs/*.html")]:
        html5lib.HTMLParser(strict=True).parse(page.read_text(encoding="utf-8"))


def test_pages_fetch_nothing_and_fit_a_telephone_in_both_languages(
    site: Path, open_page: OpenPage
) -> None:
    one = open_page(site / "index.html", viewport=TELEPHONE)
    for page in [*site.glob("*.html"), *site.glob("docs/*.html")]:
        one.page.goto(page.as_uri())
        is_chinese = {}
        for lang in LANGUAGES:
            one.page.click(f'[data-language="{lang}"]')
            assert one.page.evaluate("document.documentElement.scrollWidth") <= 390, (page, lang)
            text = "document.querySelector('main').innerText.replace(/English \\| 中文/, '')"
            is_chinese[lang] = one.page.evaluate(f"{_HAN}.test({text})")
            assert one.page.locator("h1:visible").count() == 1, page
        assert is_chinese["zh"], page
        assert page.parent != site or not is_chinese["en"], page
        broken = "[...document.images].filter(i => i.checkVisibility() && !i.naturalWidth).length"
        assert one.page.evaluate(broken) == 0, page
    assert all(url.startswith(site.as_uri()) for url in one.requests)


def test_without_script_both_languages_are_there(site: Path, open_page: OpenPage) -> None:
    page = open_page(site / "index.html", java_script_enabled=False, viewport=TELEPHONE).page
    for name in ("index.html", "planner.html", "docs/tutorial.html"):
        page.goto((site / name).as_uri())
        for lang in LANGUAGES:
            assert page.locator(f'main [lang="{lang}"]:visible').count() > 3
        commands = page.locator("pre:visible").all_inner_texts()
        assert name != "planner.html" or any("run_experiment.py plan" in one for one in commands)


@needs_axe
def test_axe_finds_nothing(browser: Any, site: Path) -> None:
    names = ("index.html", "planner.html", "docs/tutorial.html")
    assert not violations(browser, *(site / name for name in names))


def test_it_works_below_a_path_of_a_server(site: Path, browser: Any) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site.parent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page, asked = browser.new_page(), list[str]()
    page.on("response", lambda found: asked.append(found.url if found.ok else "not found"))
    home = f"http://127.0.0.1:{server.server_port}/the%20site/"
    try:
        for name in ("Planner", "Tutorial", "Experiments", "Docs", "Sample report"):
            page.goto(home)
            page.locator(".cards").get_by_role("link", name=name, exact=True).click()
            page.wait_for_load_state()
            assert page.url.startswith(home)
            assert page.url != home
            assert page.locator("h1:visible").count() == 1
            if name == "Experiments":
                assert page.evaluate("[...document.images].some(i => i.naturalWidth > 100)")
    finally:
        page.close()
        server.shutdown()
    assert all(url.startswith(home) for url in asked)


def test_the_report_of_a_run_is_in_it(site: Path, open_page: OpenPage) -> None:
    one = open_page(site / "experiments.html")
    one.page.get_by_role("link", name=Translator("en")("index.title")).click()
    one.page.locator("ol.index a").first.click()
    assert one.page.url == (site / "reports/quick/report.html").as_uri()
    assert one.page.locator("#player").count()


def test_headings_have_the_names_that_github_gives_them() -> None:
    """As its own pages show them, with the ids of a page in Chinese apart from the English ones."""
    text = "# What's `new`?\n\n## Step 1: run\n\n## Step 1: run\n\n## KV 缓存，分页\n"
    names = ["whats-new", "step-1-run", "step-1-run-1", "kv-缓存分页"]
    for lang, prefix in (("en", ""), ("zh", "zh-")):
        html = html5lib.parse(page_of(text, lang).html, namespaceHTMLElements=False)
        ids = [node.get("id") for node in html.iter() if node.tag in ("h1", "h2")]
        assert ids == [prefix + name for name in names]


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("x.md", "x.html"), ("../x.md#a-b", "../x.html#a-b"), ("#步骤", "#zh-步骤"),
        ("x.zh.md", "x.html?lang=zh"), ("x.zh.md#步骤", "x.html?lang=zh#zh-步骤"),
        ("x.toml", "x.toml"), ("https://a.b/c.md#d", "https://a.b/c.md#d"),
    ],
)  # fmt: skip
def test_a_link_of_a_chinese_page_leads_to_the_page_of_both(link: str, leads: str) -> None:
    html = html5lib.parse(page_of(f"[x]({link})", "zh").html, namespaceHTMLElements=False)
    (found,) = html.iter("a")
    assert unquote(found.get("href")) == leads


EXERCISES = """# Exercises

**Exercise.** How many blocks?

<details data-answer="1,024">
<summary>Answer</summary>

1,024 blocks.

</details>

<details data-answer="the newest|request 23">
<summary>Which one is preempted?</summary>

Request 23, the newest.

</details>

<details data-answer="6, 384, 61">
<summary>How many blocks and slots, and how many wasted?</summary>

6 blocks, 384 slots, 61 wasted.

</details>

<details>
<summary>Not asked</summary>

Nothing to answer.

</details>
"""


def test_a_right_answer_opens_its_details(site: Path, open_page: OpenPage, tmp_path: Path) -> None:
    page = (site / "docs/reading.html").read_text(encoding="utf-8")
    start, end = page.index("<article"), page.index("</article>")
    html = str(page_of(EXERCISES, "en").html)
    file = tmp_path / "exercises.html"
    file.write_text(page[:start] + '<article class="text" lang="en">' + html + page[end:], "utf-8")
    one = open_page(file)
    assert one.page.locator("form.exercise").count() == 3
    tries = [
        (0, "1023", "1024 blocks"), (0, "", "1024"), (0, "10.24", "１０２４"),
        (0, "24", "all 1,024."),
        (1, "oldest", "The newest."), (1, "request 2", "REQUEST 23"),
        (2, "6", "6 384 61"), (2, "384, 6, 61", "6 blocks, 384 slots, 61 wasted"),
    ]  # fmt: skip
    for number, wrong, right in tries:
        one.page.reload()
        form, details = (one.page.locator(name).nth(number) for name in ("form", "details"))
        for given, opens in ((wrong, False), (right, True)):
            form.get_by_role("textbox").fill(given)
            form.get_by_role("button").click()
            assert (details.get_attribute("open") is not None) == opens, given
            said = Translator("en")("site.right" if opens else "site.not_yet")
            assert form.get_by_role("status").inner_text() == said


def test_answers_of_the_tutorial_are_the_same_in_both_languages(site: Path) -> None:
    tutorial = nodes(site / "docs/tutorial.html")
    answers = {
        lang: [
            node.get("data-answer")
            for article in tutorial
            if article.tag == "article" and article.get("lang") == lang
            for node in article.iter("details")
        ]
        for lang in LANGUAGES
    }
    assert len(answers["en"]) == len(answers["zh"])
    for english, chinese in zip(answers["en"], answers["zh"], strict=True):
        assert (english is None) == (chinese is None)
        if english and english.isdigit():
            assert english == chinese


_CHOOSE = r"""combinations => combinations.map(([choice, values]) => {
  const selects = Object.keys(choice).map(name => document.getElementById('choice-' + name));
  for (const select of selects) select.value = choice[select.id.slice(7)];
  selects[0].dispatchEvent(new Event('change'));
  if (!document.getElementById('reason').hidden) {
    return [document.getElementById('reason').textContent];
  }
  for (const [name, place] of Object.entries(values)) {
    const slider = document.getElementById('what-if-' + name);
    slider.value = place;
    slider.dispatchEvent(new Event('input'));
  }
  return [...document.querySelectorAll('#what-if .answers p:not([hidden]), #budget, #serve')]
    .map(line => line.textContent.replace(/ \\\n */g, ' '));
})"""
_LINES = ("range", "exact", "users_", "limit_sequences", "printed", "never_starts", "memory")


def test_the_planner_answers_as_plan_does(site: Path, open_page: OpenPage) -> None:
    """Lines of 100 random combinations in the browser, and those of the command."""
    one = open_page(site / "planner.html")
    data = one.page.evaluate("JSON.parse(document.getElementById('run-data').textContent).planner")
    draw = random.Random(0)
    asked, expected = [], []
    for _ in range(100):
        model, gpu, gpus = draw.choice(MODELS), draw.choice(GPUS), draw.choice(COUNTS)
        found = data["plans"][model][gpu][COUNTS.index(gpus)]
        positions = {
            "context": data["context"][model],
            "users": data["users"],
            "block_size": sorted(map(int, found.get("layouts", [16]))),
            "kv_dtype": data["kv_dtype"],
        }
        places = {name: draw.randrange(len(values)) for name, values in positions.items()}
        asked.append(({"model": model, "gpu": gpu, "gpus": gpus}, places))
        values = {name: positions[name][place] for name, place in places.items()}
        expected.append(planned(model, gpu, gpus, values))
    for (choice, places), lines, shown in zip(
        asked, expected, one.page.evaluate(_CHOOSE, asked), strict=True
    ):
        assert sorted(line.replace("\u00a0", " ") for line in shown) == lines, (choice, places)
    refused = sum(len(lines) == 1 for lines in expected)
    assert 10 < refused < 75


def planned(model: str, gpu: str, gpus: int, at: dict[str, Any]) -> list[str]:
    """What the program plans, in its words."""
    t, dtype = Translator("en"), at.pop("kv_dtype")
    try:
        data = plan(model, gpu, memory=Memory(gpus=gpus, kv_dtype=dtype), **at)
    except UserError as error:
        return [t.message(error.text)]
    lines = [
        t.message(line) for line in answer(data)
        if line.key.startswith(tuple(f"plan.answer.{name}" for name in _LINES))
    ]  # fmt: skip
    caches = find_model(model).caches("float8" if dtype == "fp8" else None, gpus, at["block_size"])
    layout = lay_out(caches)
    blocks = layout.request_blocks(Service(at["context"], 1, 1), at["context"])
    size = blocks * layout.block_bytes * gpus
    request = t("plan.answer.request", size=size, blocks=blocks)
    return sorted([*lines, request, " ".join(serve_command(data["plan"]))])


def test_the_address_names_the_choice(site: Path, open_page: OpenPage) -> None:
    one = open_page(site / "planner.html")
    one.page.select_option("#choice-model", "gpt-oss-20b")
    one.page.select_option("#choice-gpus", "2")
    other = open_page(site / "index.html")
    other.page.goto(one.page.url)
    assert other.page.input_value("#choice-model") == "gpt-oss-20b"
    assert other.page.input_value("#choice-gpus") == "2"
    assert other.page.inner_text("#serve") == one.page.inner_text("#serve")
    one.page.click('[data-language="zh"]')
    assert one.page.evaluate(f"{_HAN}.test(document.getElementById('budget').innerText)")
    one.page.select_option("#choice-model", "deepseek-v3")
    assert one.page.evaluate(f"{_HAN}.test(document.getElementById('reason').innerText)")


def test_the_front_page_is_short(site: Path, open_page: OpenPage) -> None:
    one = open_page(site / "index.html")
    assert len(one.page.inner_text("main").split()) < 120
    assert (site / "planner.html").stat().st_size < 1_000_000
