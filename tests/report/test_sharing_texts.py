"""What is said of sampling and sharing is what the run did."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results, TokenComparison
from experiment.events import WorkloadReady
from experiment.events.sampling import SamplingConfig
from experiment.record.log import Record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts.run_texts import (
    explanations,
    sampling_message,
    token_sentences,
)
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator

PREFIX = {
    "queried": 70, "hit_cross": 30, "hit_batch": 3, "requeried": 0, "hit_own": 0, "hit_again": 0,
}  # fmt: skip


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return make_record(tmp_path, arms=("contiguous.batch", "paged"))


def with_paged(results: Results, **values: Any) -> Results:
    arms = [a.model_copy(update=values) if a.arm == "paged" else a for a in results.arms]
    return results.model_copy(update={"arms": arms})


def sampled(record: Record) -> Record:
    """The same run as if its tokens had been drawn, two for each prompt."""
    sampling = SamplingConfig(temperature=0.5, n=2)
    events = [
        e.model_copy(update={"sampling": sampling}) if isinstance(e, WorkloadReady) else e
        for e in record.events
    ]
    return Record(record.directory, tuple(events), record.damaged_lines)


def test_without_sharing_nothing_is_said_to_be_shared(record: Record) -> None:
    found = explanations(evaluate(record))
    assert [text.key for text in found["cow"]] == ["explain.cow.off"]
    assert [text.key for text in found["prefix"]] == ["explain.prefix.off"]


def test_page_and_console_say_the_same_of_sharing(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    results = with_paged(evaluate(record), shared_peak=6, copied_blocks=12, prefix_cache=PREFIX)
    results = results.model_copy(update={"status": "complete"})
    page = report_html(record, results, "en")
    ConsoleReporter("en", ascii_only=True).show_results(results, [])
    console = " ".join(capsys.readouterr().out.split())
    copies, hits = explanations(results)["cow"], explanations(results)["prefix"]
    for said, figures in ((*copies, ["6", "12"]), (*hits, ["33", "70"])):
        text = Translator("en").message(said)
        assert re.findall(r"\d+", text) == figures
        assert text in page
        assert text in console


def test_tokens_that_were_drawn_are_neither_equal_nor_different(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    results = evaluate(sampled(record))
    assert [(one.arm, one.equal) for one in results.tokens] == [("contiguous.batch", None)]
    page = report_html(sampled(record), results, "en")
    first = next(body_of(page).iter("section"))
    said = "".join(first.itertext())
    assert "not compared" in said
    assert "未比较" in said
    assert "same tokens" not in said
    ConsoleReporter("zh").show_results(results, [])
    console = "".join(capsys.readouterr().out.split())
    assert "未比较" in console
    assert "token完全相同" not in console
    assert any(text.key == "fairness.random" for text in results.fairness)
    assert any(text.key == "fairness.samples" for text in results.fairness)
    assert not any(text.key == "fairness.stop" for text in results.fairness)


def test_where_one_arm_has_other_tokens_nothing_is_said_of_all(record: Record) -> None:
    equal, other = (
        TokenComparison(arm=arm, reference="paged", requests=4, equal_requests=n,
                        first_difference=first)
        for arm, n, first in (("slabs", 4, None), ("contiguous.batch", 3, (2, 5)))
    )  # fmt: skip
    results = evaluate(record).model_copy(update={"tokens": [equal, other]})
    said = [(Translator("en").message(text), is_good) for text, is_good in token_sentences(results)]
    (differ, is_good), first = said
    assert "3 of 4 requests" in differ
    assert is_good is False
    assert first == ("First difference: request 2, new token 6.", False)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_how_tokens_are_chosen_is_one_line(lang: str) -> None:
    t = Translator(lang)
    assert t("sampling.greedy") in t.message(sampling_message(SamplingConfig()))
    drawn = SamplingConfig(
        temperature=0.7, top_k=9, seed=4, n=3, stop_token_ids=(8, 6), min_new_tokens=2
    )
    text = t.message(sampling_message(drawn))
    assert re.findall(r"[\d.]*\d", text) == ["0.7", "9", "4", "3", "8", "6", "3"]
    assert f"top-p {t('sampling.off')}" in text
    assert "—" not in text
