"""Which figures are judged: by how many rounds have them, by the tokens, by vLLM's trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiment.bench.data import BenchData
from experiment.bench.plan import Options
from experiment.bench.rows import Row
from experiment.bench.run import Bench
from experiment.bench.summary import lines
from experiment.bench.targets import Outcome, outcomes
from experiment.report.facts.bench_tables import Cells, all_tables
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, message

FAILED = message("failure.no_end")
ALONE = message("bench.unjudged.vllm_alone", mode=message("bench.eager").model_dump())


def row(workload: str, arm: str, number: int, **figures: Any) -> Row:
    told = {"workload": workload, "arm": arm, "round": number, "status": "finished"}
    return Row.model_validate(told | figures)


def pairs(other: str, count: int, **figures: Any) -> list[Row]:
    """Rounds of B in which the paged arm is four times as fast."""
    rates = {"paged": 200.0, other: 50.0}
    return [
        row("B", arm, number, useful_tokens_per_s=rate, **figures)
        for number in range(count)
        for arm, rate in rates.items()
    ]


def lost(arm: str, count: int) -> list[Row]:
    """Further rounds of B, in which an arm has failed and the paged one has not."""
    failed = {"status": "failed", "reason": FAILED}
    return [
        each
        for number in range(10, 10 + count)
        for each in (
            row("B", "paged", number, useful_tokens_per_s=200.0),
            row("B", arm, number).model_copy(update=failed),
        )
    ]


def judged(rows: list[Row], name: str, **how: Any) -> Outcome:
    return next(each for each in outcomes(rows, [], {}, **how) if each.id == name)


def shown(lang: str, rows: list[Row], **how: Any) -> tuple[Translator, Cells]:
    targets = [each.to_json() for each in outcomes(rows, [], {}, **how)]
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", targets=targets)
    t = Translator(lang)
    return t, all_tables(t, data)[-1]


# -- rounds that lack a figure -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "missing", "verdict"),
    [(3, 0, "met"), (3, 2, "met"), (2, 2, "not_judged"), (1, 2, "not_judged"), (1, 0, "met")],
)
def test_a_verdict_takes_a_figure_in_more_than_half_of_the_rounds(
    there: int, missing: int, verdict: str
) -> None:
    rows = [*pairs("contiguous.batch", there), *lost("contiguous.batch", missing)]
    found = judged(rows, "b_batch")
    assert (found.verdict, found.values, found.median) == (verdict, [4.0] * there, 4.0)
    assert found.rounds == there + missing
    assert found.reason == (FAILED if missing else None)
    assert found.unjudged is None


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(("there", "key"), [(2, "note_target_few"), (3, "note_target_some")])
def test_why_rounds_are_missing_is_shown_whether_or_not_it_is_judged(
    lang: str, there: int, key: str
) -> None:
    rows = [*pairs("contiguous.batch", there), *lost("contiguous.batch", 2)]
    t, table = shown(lang, rows)
    told = {"target": t("bench.target.b_batch"), "n": there, "rounds": there + 2}
    assert t(f"bench.{key}", **told, text=t.message(FAILED)) in table.notes
    assert t("bench.note_not_judged") not in table.notes
    assert next(cells for cells in table.rows if cells[0] == told["target"])[1] == "4.00"


def test_why_nobody_waited_is_the_reason_of_a_ratio_of_those_who_ran_meanwhile() -> None:
    why = message("bench.nobody_waited")
    rows = [row("C", arm, 0, mean_running_reason=why) for arm in ("paged", "slabs")]
    assert judged(rows, "c_running").reason == why


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_the_targets_are_not_of_says_so_once_and_what_rounds_lack_as_well(lang: str) -> None:
    rows = [*pairs("contiguous.batch", 1), *lost("contiguous.batch", 1)]
    t, table = shown(lang, rows, judged=False)
    assert table.notes.count(t("bench.note_not_judged")) == 1
    told = {"target": t("bench.target.b_batch"), "n": 1, "rounds": 2, "text": t.message(FAILED)}
    assert t("bench.note_target_some", **told) in table.notes
    # Of A and C nothing was run at all, and nobody asked for it.
    assert not any(t("bench.target.a_vllm") in note for note in table.notes)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_only_the_target_of_d_is_of_a_gpu(lang: str) -> None:
    rows = [*pairs("contiguous.batch", 1), row("D", "paged", 0, decode_read_share=0.7)]
    t, table = shown(lang, rows)
    assert t("bench.note_not_judged_gpu") in table.notes
    assert t("bench.note_not_judged") not in table.notes


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_file_of_before_reasons_were_kept_is_shown(lang: str) -> None:
    found = [each.to_json() for each in outcomes(pairs("vllm", 1), [], {}, judged=False)]
    old = [{k: v for k, v in each.items() if k != "unjudged"} | {"reason": None} for each in found]
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", targets=old)
    t = Translator(lang)
    assert t("bench.note_not_judged") in all_tables(t, data)[-1].notes


# -- vLLM in its faster mode ---------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_mode_that_may_not_be_the_faster_is_measured_and_not_judged(lang: str) -> None:
    rows = pairs("vllm", 2)
    assert judged(rows, "b_vllm").verdict == "met"
    found = judged(rows, "b_vllm", unjudged={"b_vllm": ALONE})
    assert (found.verdict, found.values, found.unjudged) == ("not_judged", [4.0, 4.0], ALONE)
    t, table = shown(lang, rows, unjudged={"b_vllm": ALONE, "a_vllm": ALONE})
    target = t("bench.target.b_vllm")
    assert t("bench.note_target_open", target=target, text=t.message(ALONE)) in table.notes
    cells = next(cells for cells in table.rows if cells[0] == target)
    assert (cells[1], cells[-1]) == ("4.00", t("bench.verdict.not_judged"))
    # What was never measured is just that.
    assert judged(rows, "a_vllm", unjudged={"a_vllm": ALONE}).verdict == "not_measured"


def trial(eager: bool, *rates: float | None) -> dict[str, Any]:
    return {"eager": eager, "bind": "nobind", "rates": list(rates), "reason": None}


BOTH = [trial(True, 5.0), trial(False, 6.0)]
FINAL = [trial(True, 5.0, 5.0), trial(False, 6.0, 6.0)]


@pytest.mark.parametrize(
    ("probes", "finals", "why"),
    [
        (BOTH, {"A": FINAL, "B": FINAL}, None),
        ([trial(True, 5.0)], {}, ALONE),
        ([trial(True, 5.0), trial(False, None)], {}, message("bench.unjudged.vllm_rate")),
        (BOTH, {"A": FINAL}, message("bench.unjudged.vllm_rate")),
    ],
    ids=["both", "eager alone", "one rate", "no final on B"],
)
def test_a_benchmark_judges_vllm_only_where_both_modes_were_tried(
    probes: list[dict[str, Any]], finals: dict[str, Any], why: Message | None, tmp_path: Path
) -> None:
    options = Options(
        workloads=("B",), arms=("paged", "vllm"), named=False, rounds=3, least=2, limit_s=None,
        threads=2, tiny=False, profile=False, out=tmp_path,
    )  # fmt: skip
    bench = Bench(options, lambda text: None, lambda event: None, lambda row: None)
    bench.data = BenchData(
        version="1", started="2026-11-22T04:33:57+00:00", rows=pairs("vllm", 2),
        model={"name": "gpt2", "dtype": "float32"}, machine={"device": "cpu"},
        settings={"threads": 2}, vllm={"probes": probes, "finals": finals, "modes": {}},
    )  # fmt: skip
    bench._write()
    found = next(each for each in bench.data.targets if each["id"] == "b_vllm")
    assert found["verdict"] == ("met" if why is None else "not_judged")
    assert found["values"] == [4.0, 4.0]
    assert found["unjudged"] == (None if why is None else why.model_dump(mode="json"))


# -- tokens in half precision --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("alike", "counts"), [(10, True), (9, True), (8, False), (None, True)])
def test_in_half_precision_nine_tenths_begin_as_the_reference_does(
    dtype: str, alike: int | None, counts: bool
) -> None:
    told = {"dtype": dtype, "requests": 10, "equal_requests": 0, "equal_first_tokens": alike}
    found = judged(pairs("contiguous.batch", 1, **told), "b_batch")
    assert found.values == ([4.0] if counts else [])
    garbled = message("bench.problem.first_tokens")
    assert found.reason == (None if counts else garbled)
    shares = [row("D", "paged", n, decode_read_share=0.7, **told) for n in range(2)]
    share = judged(shares, "d_read_share", judged_gpu=True)
    assert share.verdict == ("met" if counts else "not_measured")
    assert share.reason == (None if counts else garbled)


def test_an_arm_that_computes_garbage_has_no_factor_whoever_it_is() -> None:
    told = {"dtype": "float16", "requests": 10, "equal_requests": 0}
    rows = [
        row("B", "paged", 0, useful_tokens_per_s=200.0, equal_first_tokens=10, **told),
        row("B", "vllm", 0, useful_tokens_per_s=900.0, equal_first_tokens=2, **told),
    ]
    assert {each.arm: each.factors for each in lines(rows)}["vllm"] == []


def test_outside_half_precision_nothing_hangs_on_the_first_token_alone() -> None:
    told = {"dtype": "float32", "requests": 10, "equal_first_tokens": 2}
    assert judged(pairs("vllm", 1, equal_requests=10, **told), "b_vllm").values == [4.0]
    found = judged(pairs("vllm", 1, equal_requests=9, **told), "b_vllm")
    assert found.reason == message("bench.problem.other_tokens")
    shares = [row("D", "paged", 0, decode_read_share=0.7, equal_requests=0, **told)]
    assert judged(shares, "d_read_share").values == [0.7]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_how_many_requests_begin_alike_is_shown(lang: str) -> None:
    told = {"dtype": "float16", "requests": 10, "equal_requests": 1, "reference": "slabs"}
    rows = [row("B", "paged", 0, **told, equal_first_tokens=7), row("B", "slabs", 0, requests=10)]
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", rows=rows)
    t = Translator(lang)
    names = {"arm": t("arm_name.paged"), "reference": t("arm_name.slabs"), "requests": 10}
    notes = all_tables(t, data)[0].notes
    assert t("bench.note_first_tokens", **names, equal=7) in notes
    assert t("bench.note_tokens", **names, equal=1) in notes
