"""axe-core finds no serious violation on any of the pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_check import needs_axe, violations
from made_up_machine import cuda_environment
from test_tables_page import page_of, side

from experiment.compare.sides import compare_sides
from experiment.gpucheck.result import NEEDS_GPU, CheckResult, GpuCheck, PartResult
from experiment.report.files.write import write_listed
from experiment.report.pages.compare import compare_reports
from experiment.report.pages.gpucheck import gpucheck_html
from experiment.report.pages.index import index_html
from experiment.report.pages.index_entries import Entry
from experiment.text.messages import message
from kvsim.paper.memory import closed_form_claims

pytestmark = needs_axe


def index_page(_: Path, lang: str) -> str:
    verdict = message("paper.count", holds=len(closed_form_claims()), fails=0, not_judged=1)
    kinds = ("run", "compare", "paper", "unreadable")
    return index_html(
        [Entry(kind, kind, 10**18, 0, verdict, "failed", "gpt2") for kind in kinds],  # type: ignore[arg-type]
        lang,
    )


def compare_page(scratch: Path, lang: str) -> str:
    reports = compare_reports(compare_sides(side(1), side(3)), lang)
    write_listed(scratch / "compare", reports, lang)
    return (scratch / "compare" / "compare.html").read_text(encoding="utf-8")


def gpucheck_page(_: Path, lang: str) -> str:
    """A part of each verdict and a check of each, with texts that are long."""
    step = message(
        "gpucheck.speed.step", mode=message("gpucheck.speed.mode_continuous").model_dump(),
        batch=64, context=4096, step=0.0642, tokens=997.0, share=0.228,
    )  # fmt: skip
    wrong = message("gpucheck.tokens.raised", family="llama", dtype="float16", error="x" * 120)
    parts = (
        PartResult(part="speed", verdict="pass", seconds=61.2, limit_s=120.0,
                   reason=message("gpucheck.passed", n=1),
                   checks=(CheckResult(id="step", passed=None, text=step),)),
        PartResult(part="tokens", verdict="fail", interpreted=True, seconds=2.0, limit_s=60.0,
                   reason=message("failure.exception", error="/a/path/" + "y" * 120),
                   checks=(CheckResult(id="wrong", passed=False, text=wrong),
                           CheckResult(id="right", passed=True, text=step))),
        PartResult(part="graphs", verdict="skipped", reason=NEEDS_GPU),
    )  # fmt: skip
    machine = cuda_environment()
    found = GpuCheck(
        program="1", wall_ns=1, utc_offset_s=0, minutes=8, device=machine.device,
        device_name=machine.device_name, environment=machine, parts=parts,
    )  # fmt: skip
    return gpucheck_html(found, lang)


PAGES: dict[str, Callable[[Path, str], str]] = {
    "index": index_page,
    "compare": compare_page,
    "claims": lambda _, lang: page_of("claims", lang),
    "paper": lambda _, lang: page_of("paper", lang),
    "bench": lambda _, lang: page_of("bench", lang),
    "sweep": lambda _, lang: page_of("sweep", lang),
    "gpucheck": gpucheck_page,
}


def test_axe_finds_nothing_on_the_page_of_a_run(browser: Any, report: Path) -> None:
    assert not violations(browser, report / "report.html")


def test_axe_finds_nothing_on_any_other_page(browser: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"{kind}.html" for kind in PAGES]
    for file in files:
        file.write_text(PAGES[file.stem](tmp_path, "en"), encoding="utf-8")
    assert not violations(browser, *files)
