"""Build the site into a directory, from the repository alone: ``make site``.

    docs/x.md, docs/x.zh.md ─► docs/x.html, both texts in one page       planner.html
    what pages link to      ─► copied to the same place                  experiments.html
    runs                    ─► reports/, rendered again, with their index

Paths are those of the repository, and every link is relative: the site works from files and below
any path of a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from posixpath import normpath
from typing import Any

from markupsafe import Markup

import experiment
from experiment.analysis.results import ArmResult
from experiment.experiments.registry import EXPERIMENTS
from experiment.record.log import EVENTS_FILE
from experiment.record.simulation import SIM_FILE
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.embed import safe_json
from experiment.report.html.svg import patterns
from experiment.report.html.templates import page_assets, templates
from experiment.report.page.memory_bars import memory_bars
from experiment.report.pages.index import write_index
from experiment.report.pages.index_entries import entries
from experiment.report.pages.plan import what_if_context
from experiment.report.render import render, render_simulation
from experiment.report.site.markdown import Page, page_of
from experiment.text import LANGUAGES, catalogue
from kvsim.base.files import write_whole
from kvsim.sizing.overhead import ServerOptions

Data = Mapping[str, Any]
PLANNER_STYLES = ("what_if.css",)
PLANNER_SCRIPTS = ("words.js", "sliders.js", "what_if.js", "planner.js")
_USERS = [quarters << power for power in range(8) for quarters in (4, 5, 6, 7)]


def planner_context(data: Data) -> dict[str, Any]:
    """Variables of the template, ``data`` of :func:`experiment.simulate.planner.planner`."""
    users = [1, 2, 3, *_USERS, 1024]
    model, gpu, gpus = data["start"]
    first = data["plans"][model][gpu][data["counts"].index(gpus)]
    positions = {
        "context": data["context"][model],
        "users": users,
        "block_size": [*map(int, first["layouts"])],
        "kv_dtype": data["kv_dtype"],
    }
    start = first["start"] | {"users": max(n for n in users if n <= first["start"]["users"])}
    keys = {"plan.answer.memory", *_keys(data["plans"])}
    texts = {lang: {key: catalogue(lang)[key] for key in sorted(keys)} for lang in LANGUAGES}
    utilisation = f"{ServerOptions().utilisation():g}"
    return {
        "choices": {"model": data["plans"], "gpu": data["gpus"], "gpus": data["counts"]},
        **what_if_context({"positions": positions, "start": start}),
        "data": safe_json(
            {"planner": {**data, "users": users, "texts": texts, "utilisation": utilisation}}
        ),
    }


def _keys(value: Any) -> set[str]:
    """Keys of all messages within plain values."""
    if isinstance(value, dict):
        own = {value["key"]} if isinstance(value.get("key"), str) else set[str]()
        return own.union(*map(_keys, value.values()))
    return set[str]().union(*map(_keys, value)) if isinstance(value, list) else set()


ROOT = Path(experiment.__file__).parents[1]
SAMPLE = "docs/sample/report.html"
PAGES = (
    ("home", "index.html"),
    ("sample", SAMPLE),
    ("planner", "planner.html"),
    ("tutorial", "docs/tutorial.html"),
    ("experiments", "experiments.html"),
    ("docs", "docs/index.html"),
)
_FIRST_DOCS = ("tutorial", "reading", "install", "commands", "experiments", "plan")
_BRAND = '<p class="brand">PagedKV Lab</p>'  # in page.html.j2
_CACHES = ("contiguous", "paged")
_DATA = re.compile(r'<script type="application/json" id="run-data">(.*?)</script>', re.DOTALL)


def build(out: Path, plans: Mapping[str, Any], runs: Iterable[Path] = ()) -> None:
    """Write the site.

    Args:
        out: a directory that is not there, or without reports.
        plans: of :func:`experiment.simulate.planner.planner`.
        runs: directories of runs and other reports; they are copied and rendered again.

    Raises:
        UserError: a run cannot be rendered.
    """
    (out / "reports").mkdir(parents=True)
    for run in runs:
        _add_run(out / "reports", run)
    reports = {one.name: one for one in entries(out / "reports")}
    site = _Site(out)
    docs = sorted((ROOT / "docs").glob("*.md"), key=_order)
    pages = site.add_texts([str(path.relative_to(ROOT)) for path in docs])
    site.write("docs/index.html", "site_docs.html.j2", _titles("site.nav.docs"), docs=pages)
    site.copy(SAMPLE)
    site.write("index.html", "site_front.html.j2", dict.fromkeys(LANGUAGES, "PagedKV Lab"),
               patterns=patterns(), **_caches())  # fmt: skip
    site.write("planner.html", "planner.html.j2", _titles("site.planner"),
               PLANNER_SCRIPTS, PLANNER_STYLES, **planner_context(plans))  # fmt: skip
    site.write("experiments.html", "site_experiments.html.j2", _titles("site.nav.experiments"),
               experiments=[(name, site.pictures(name), reports.get(name)) for name in EXPERIMENTS],
               runs=reports)  # fmt: skip
    for page in (out / SAMPLE, *(out / "reports").rglob("*.html")):
        _link_home(page, out)


class _Site:
    """Files of the site below ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def write(
        self,
        file: str,
        template: str,
        titles: Mapping[str, str],
        scripts: Sequence[str] = (),
        styles: Sequence[str] = (),
        **context: Any,
    ) -> None:
        """Write a page in the frame of the reports."""
        assets = page_assets(*scripts, styles=("site.css", *styles))
        policy = assets["content_policy"] + "; img-src 'self'"
        page = templates(LANGUAGES[0]).get_template(template).render(
            {"lang": LANGUAGES[0], **assets, "content_policy": policy, "data": "{}",
             "titles": titles, "pages": PAGES, "here": file, "root": "../" * file.count("/"),
             "each": _each, **context}
        )  # fmt: skip
        _put(self.out / file, page.encode())

    def copy(self, file: str) -> None:
        """Copy a file of the repository to the same place."""
        _put(self.out / file, (ROOT / file).read_bytes())

    def add_texts(self, files: Sequence[str]) -> list[tuple[str, Any, Any]]:
        """Write Markdown pages and all files that they link to.

        Returns:
            Of those in docs/: the file name, titles and first paragraphs by language.
        """
        listed, waiting, seen = list[tuple[str, Any, Any]](), [*files], set[str]()
        while waiting:
            file = waiting.pop(0).replace(".zh.md", ".md")
            if file in seen:
                continue
            seen.add(file)
            if not file.endswith(".md"):
                self.copy(file)
                continue
            texts = _texts(file)
            html = file.removesuffix(".md") + ".html"
            first = next(iter(texts.values()))
            titles = {lang: texts.get(lang, first).title for lang in LANGUAGES}
            shown = {lang: text.html for lang, text in texts.items()}
            self.write(html, "site_text.html.j2", titles, ("exercises.js",), texts=shown)
            if file.startswith("docs/"):
                leads = {lang: text.lead for lang, text in texts.items()}
                listed.append((html.removeprefix("docs/"), titles, leads))
            place = file.rpartition("/")[0]
            waiting += [
                normpath(f"{place}/{link}".lstrip("/")) for t in texts.values() for link in t.links
            ]
        return listed

    def pictures(self, experiment: str) -> dict[str, str]:
        """Pictures of an experiment by language, where the repository has them."""
        files = {lang: f"docs/pictures/{experiment}-{lang}.png" for lang in LANGUAGES}
        found = {lang: file for lang, file in files.items() if (ROOT / file).exists()}
        for file in found.values():
            self.copy(file)
        return found


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _texts(file: str) -> dict[str, Page]:
    """A page of the repository by language; some are in English alone."""
    files = {lang: ROOT / file.replace(".md", ".md" if lang == "en" else f".{lang}.md")
             for lang in LANGUAGES}  # fmt: skip
    return {
        lang: page_of(path.read_text(encoding="utf-8"), lang)
        for lang, path in files.items()
        if path.exists()
    }


def _order(path: Path) -> tuple[int, str]:
    first = _FIRST_DOCS.index(path.stem) if path.stem in _FIRST_DOCS else len(_FIRST_DOCS)
    return first, path.stem


def _titles(key: str) -> dict[str, str]:
    return Bilingual(LANGUAGES[0]).titles(key, "PagedKV Lab")


def _each(texts: Mapping[str, str]) -> Markup:
    """A text by language; one that is in one language alone is shown in both."""
    if len(texts) == 1:
        return Markup("{}").format(*texts.values())
    spans = (Markup('<span lang="{}">{}</span>').format(*item) for item in texts.items())
    return Markup("").join(spans)


def _caches() -> dict[str, Any]:
    """Bars of the sample's caches at their peaks, and the ratio of their allocated memory."""
    (data,) = _DATA.findall((ROOT / SAMPLE).read_text(encoding="utf-8"))
    arms = {arm["arm"]: arm for arm in json.loads(data)["results"]["arms"]}
    two = [ArmResult.model_validate(arms[name]) for name in ("slabs", "paged")]
    bars = memory_bars(two, coarse=True)
    factor = bars[0].bytes.allocated / bars[1].bytes.allocated
    return {"caches": list(zip(_CACHES, bars, strict=True)), "factor": factor}


def _link_home(page: Path, site: Path) -> None:
    """Let the name at the head of a report lead to the site."""
    depth = len(page.relative_to(site).parts) - 1
    head, name, tail = page.read_text(encoding="utf-8").partition(_BRAND)
    if name:
        link = f'<p class="brand"><a href="{"../" * depth}index.html">PagedKV Lab</a></p>'
        _put(page, (head + link + tail).encode())


def _add_run(reports: Path, run: Path) -> None:
    """Copy a directory of a run, a simulation or another report, and render the first two again."""
    place = reports / run.resolve().name
    for path in (one for one in run.rglob("*") if one.is_file()):
        _put(place / path.relative_to(run), path.read_bytes())
    if (place / SIM_FILE).exists():
        render_simulation(place)
    elif (place / EVENTS_FILE).exists():
        render(place)
    else:
        write_index(place, LANGUAGES[0])
