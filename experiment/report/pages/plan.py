"""Page of a plan: the answer, sliders for other values, memory of a request by length."""

from __future__ import annotations

from functools import partial
from typing import Any

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.plan import (
    Data,
    answer,
    log_lines,
    plan_tables,
    predicted,
    sentences,
    serve_command,
)
from experiment.report.facts.simulation import fact_lines, memory_facts
from experiment.report.facts.texts import Keyed, PageText
from experiment.report.html.answer import answer_html
from experiment.report.html.embed import safe_json
from experiment.report.html.lines import LineChart, figure, line_chart, line_swatch
from experiment.report.html.templates import templates
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.messages import message
from kvsim.sizing.request_memory import WAYS

FILE = "plan.json"
# Texts of the sliders' script.
_ANSWERS = (
    "range", "exact", "users_fit", "users_perhaps", "users_too_many",
    "limit_sequences", "printed", "printed_exactly", "never_starts", "request",
)  # fmt: skip


def plan_html(data: Data, lang: str) -> str:
    """Render the page from the data of ``plan --out``."""
    draw = None if _has_failed(data) else partial(_pictures, plan=data["plan"])
    scripts = ("words.js", "sliders.js", "what_if.js")
    return answer_html(
        lambda t: _page_text(t, data), lang, FILE, data, draw=draw, scripts=scripts,
        styles=("what_if.css",),
    )  # fmt: skip


def _has_failed(data: Data) -> bool:
    """Whether there is no plan, but a start-up log in which vLLM did not start."""
    return "plan" not in data


def _page_text(t: Translator, data: Data) -> PageText:
    log = [t.message(each) for each in log_lines(data["log"])] if "log" in data else []
    if _has_failed(data):
        return PageText(data["log"]["path"], log[0], (), (), lines=log[1:])
    plan = data["plan"]
    title, first, *rest = [t.message(each) for each in answer(data)]
    held, contiguous, *others = [t.message(each) for each in sentences(data)]
    command = " ".join(serve_command(plan))
    # What vLLM prints is part of the answer.
    lists = {
        t("section.plan"): [held, *others],
        t("section.plan_vllm"): [t.message(each) for each in predicted(plan)[bool(command) :]],
        t("section.sim_memory"): fact_lines(t, memory_facts(data)),
    }
    return PageText(
        kicker=title,
        headline=first,
        lines=[*log, *rest, contiguous],
        facts=(),
        tables=plan_tables(t, plan)[:: -1 if plan["memory"] else 1],
        lists={heading: lines for heading, lines in lists.items() if lines},
        command=command,
    )


def _pictures(b: Bilingual, plan: Data) -> dict[str, Markup]:
    """The sliders, hidden without script, and the chart of a request's memory."""
    charts = {"memory": _chart(b, plan)} if plan["memory"] else {}
    if not plan["what_if"]:
        return charts
    context = what_if_context(plan["what_if"])
    sliders = templates(b.lang).get_template("section_what_if.html.j2").render(context)
    return {"sliders": Markup(sliders), **charts}  # noqa: S704 - made by a template that escapes


def what_if_context(what: Data) -> dict[str, Any]:
    """Variables of a template with sliders: name, label, last position and own; texts."""
    texts = {
        lang: {name: catalogue(lang)[f"plan.answer.{name}"] for name in _ANSWERS}
        for lang in LANGUAGES
    }
    return {
        "sliders": [
            (
                name,
                message(f"plan.what_if.{name}"),
                len(positions) - 1,
                positions.index(what["start"][name]),
            )
            for name, positions in what["positions"].items()
        ],
        "texts": safe_json(texts),
    }


def _chart(b: Bilingual, plan: Data) -> Markup:
    """Line chart of a request's memory by length."""
    memory, last = plan["memory"], len(WAYS) - 1
    chart = LineChart(
        name="plan-memory",
        table="memory-data",
        title=message("plan.memory.title"),
        about=message("plan.memory.about"),
        axis=message("plan.memory.tokens"),
        points=[
            Keyed(f"{tokens:,}", f"plan.memory.tokens.{n}")
            for n, tokens in enumerate(memory["tokens"])
        ],
        lines=[memory[way] for way in WAYS],
        unit="bytes",
        top=last,
    )
    legend = [
        (line_swatch(n, n == last), message(f"plan.memory.{way}")) for n, way in enumerate(WAYS)
    ]
    return figure(b, chart.title, line_chart(b, chart), legend)
