"""Summaries in Markdown, for a CI job: a run, and the texts of any page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiment.analysis.metrics import METRICS, SHOWN_IN_MARKDOWN
from experiment.analysis.results import Results
from experiment.bench.data import BenchData
from experiment.gpucheck.result import GpuCheck
from experiment.report.facts.arm_figures import figure, has_blocks
from experiment.report.facts.bench import facts, speed_tables
from experiment.report.facts.run_texts import token_sentences
from experiment.report.facts.texts import Cells, PageText, arm_name, date_text
from experiment.report.files.markup import items, plain, put_between, summarise_job, table, within
from experiment.report.page.experiment import experiment_text, focus_message
from experiment.text import DASH, Translator
from experiment.text.errors import user_error
from experiment.text.messages import Message

BENCH, GPUS = "bench", "gpucheck"
NONE_YET = "No GPU has been checked yet."
_HEADS = (
    "| GPU | compute capability | driver | torch | checked | result |\n|---|---|---|---|---|---|"
)


def write_bench(path: Path, data: BenchData) -> None:
    """Write the tables of speed into a page, in English; a missing page is created.

    Raises:
        UserError: the page lacks the marks, or cannot be read or written.
    """
    t = Translator("en")
    parts = [items(facts(t, data)), *map(cells_markdown, speed_tables(t, data))]
    put_between(path, BENCH, lambda _: "\n\n".join(parts) + "\n", is_new=True)


def write_gpus(path: Path, data: GpuCheck) -> None:
    """Add the GPU of a check to the table of a page, or replace its row.

    Raises:
        UserError: the check has no GPU; the page lacks the marks, or cannot be read or written.
    """
    row = gpu_row(data)
    if row is None:
        raise user_error("gpucheck.no_gpu_seen")
    put_between(path, GPUS, lambda kept: gpus_markdown([*_rows(kept), row]) + "\n")


def gpus_markdown(rows: list[str]) -> str:
    """The table; the last row of each GPU is used."""
    if not rows:
        return NONE_YET
    by_name = {row.split("|")[1]: row for row in rows}
    return "\n".join([_HEADS, *sorted(by_name.values())])


def gpu_row(data: GpuCheck) -> str | None:
    """Row of a check, in English; None without a GPU."""
    gpu = data.environment.gpu if data.environment else None
    if gpu is None or data.environment is None:
        return None
    t = Translator("en")
    cells = [gpu.name, gpu.compute_capability, gpu.driver_version, data.environment.torch.version]
    day, _, _ = date_text(data.wall_ns, data.utc_offset_s).partition(" ")
    failed = ", ".join(part.part for part in data.parts if part.verdict == "fail")
    cells += [day, t.message(data.headline) + (f" Failed: {failed}." if failed else "")]
    return f"| {' | '.join(plain(cell or t('gpucheck.unknown')) for cell in cells)} |"


def _rows(region: str) -> list[str]:
    """Rows of the existing table, without its two lines of heads."""
    return [line for line in region.splitlines() if line.startswith("| ")][1:]


def markdown(results: Results, lang: str) -> str:
    """Verdict, table of arms, tokens and notes of a run in one language; under 50 kB."""
    t, experiment = Translator(lang), results.experiment
    parts = [f"## PagedKV Lab\n\n**{_text(t, results.headline)}**"]
    if results.status != "complete":
        parts.append(plain(t("report.status." + results.status)))
    if experiment:
        text, focus = experiment_text(t, experiment, ""), focus_message(experiment)
        drawn = [each for each in text.tables if each.name]
        parts += [*_parts(replace(text, tables=drawn)), _text(t, focus) if focus else ""]
    parts += [
        _table(t, results),
        items(t.message(sentence) for sentence, _ in token_sentences(results)),
        items(map(t.message, results.notes)),
        items(
            t("console.problem", arm=arm_name(t, arm.arm), text=t.message(text))
            for arm in results.arms
            for text in ([arm.reason] if arm.reason else []) + arm.problems
        ),
    ]
    return _joined(parts)


def summarise(text: PageText) -> None:
    """Append a page's texts to the summary of a CI job, if any.

    Raises:
        UserError: the job's file cannot be written.
    """
    head = f"## {plain(text.kicker)}\n\n**{plain(text.headline)}**"
    summarise_job(_joined([head, *_parts(text)]))


def cells_markdown(cells: Cells) -> str:
    """A table with title and notes."""
    title = f"**{plain(cells.title)}**" if cells.title else ""
    parts = (title, table([cells.header, *cells.rows], cells.left), items(cells.notes))
    return "\n\n".join(filter(None, parts))


def _parts(text: PageText) -> list[str]:
    """Sentences, tables and lists of a page."""
    return [
        items([*text.lines, *text.alarms, *text.facts, *text.notes]),
        *map(cells_markdown, text.tables),
        *(f"**{plain(name)}**\n\n{items(lines)}" for name, lines in text.lists.items()),
    ]


def _joined(parts: list[str]) -> str:
    return within("\n\n".join(filter(None, parts)) + "\n")


def _table(t: Translator, results: Results) -> str:
    if not results.arms:
        return ""
    rows = [["", *(arm_name(t, arm.arm) for arm in results.arms)]]
    for metric in map(METRICS.__getitem__, SHOWN_IN_MARKDOWN):
        figures = (figure(metric, results, arm) or DASH for arm in results.arms)
        rows.append([t.message(metric.label), *figures])
    unable = not all(has_blocks(arm.arm) for arm in results.arms)
    return table(rows, left=(0,)) + (f"\n\n{plain(t('report.no_blocks'))}" if unable else "")


def _text(t: Translator, text: Message) -> str:
    return plain(t.message(text))
