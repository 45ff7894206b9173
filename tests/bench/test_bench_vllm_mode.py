"""Which of vLLM's modes is taken: by what is tried, how often, in which order, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.bench.data import BenchData
from experiment.bench.plan import Options, base_config, with_vllm
from experiment.bench.vllm_mode import Mode, Probed, bindings, find_fastest, kinds_of
from experiment.i18n import LANGUAGES, Translator, catalogue
from experiment.launch import BIND
from experiment.messages import Message, UserError, message
from experiment.report.bench_facts import facts
from experiment.report.bench_tables import all_tables
from experiment.thread_env import bound_cores

MODES = [Mode(eager, bind) for eager in (True, False) for bind in ("auto", "0,1", "nobind")]
FIRST = dict(zip(MODES, (10.0, 30.0, 20.0, None, 28.0, 15.0), strict=True))


class Tried:
    """Answers with the rates that it is given and keeps what was asked."""

    def __init__(self, second: dict[Mode, float | None]) -> None:
        self.second = second
        self.asked: list[tuple[Mode, int]] = []

    def __call__(self, mode: Mode, number: int) -> tuple[float | None, Message | None]:
        self.asked.append((mode, number))
        rate = (self.second if number else FIRST)[mode]
        return rate, None if rate else message("failure.no_end")


def test_each_mode_is_tried_and_the_best_two_once_more_the_other_way_round() -> None:
    best, next_best = Mode(True, "0,1"), Mode(False, "0,1")
    tried = Tried({best: 20.0, next_best: 29.0})
    chosen, probed = find_fastest(MODES, tried)
    assert tried.asked == [*((mode, 0) for mode in MODES), (next_best, 1), (best, 1)]
    assert chosen == next_best  # 28.5 on average against 25
    kept = {probe.mode: probe.rates for probe in probed}
    assert kept[best] == [30.0, 20.0]
    assert kept[next_best] == [28.0, 29.0]
    assert kept[Mode(True, "auto")] == [10.0]
    (lost,) = [probe for probe in probed if probe.reason]
    assert (lost.mode, lost.rates) == (Mode(False, "auto"), [None])


def test_a_mode_that_fails_the_second_time_is_not_taken() -> None:
    best, next_best = Mode(True, "0,1"), Mode(False, "0,1")
    assert find_fastest(MODES, Tried({best: None, next_best: 5.0}))[0] == next_best


def test_where_nothing_runs_nothing_is_chosen() -> None:
    chosen, probed = find_fastest(MODES[3:4], Tried({}))
    assert chosen is None
    assert [probe.rates for probe in probed] == [[None]]


def test_bindings_are_those_that_leave_the_arms_alike() -> None:
    assert bindings("cpu", 2, 2, {}) == ["auto", bound_cores(2), "nobind"]
    assert bindings("cpu", 2, 8, {}) == [bound_cores(2), "nobind"]  # auto would take all eight
    assert bindings("cpu", None, 8, {}) == ["auto", "nobind"]
    assert bindings("cpu", 2, None, {}) == [bound_cores(2), "nobind"]
    assert bindings("cuda", 2, 2, {}) == ["nobind"]
    assert bindings("cpu", 2, 2, {BIND: "3"}) == ["3"]


def test_what_was_chosen_is_what_the_arm_is_told() -> None:
    asked = Options(
        workloads=("A",), arms=("vllm",), named=True, rounds=1, least=1, limit_s=None, threads=2,
        tiny=True, profile=False, out=Path("none"),
    )  # fmt: skip
    config = with_vllm(base_config(asked, "cpu"), False, "auto")
    assert (config.vllm.enforce_eager, config.vllm.threads_bind) == (False, "auto")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("asked", ["auto", "eager"])
def test_a_mode_that_was_asked_for_is_not_called_the_fastest_of_both(lang: str, asked: str) -> None:
    mode = Probed(Mode(True, "nobind"), [10.0])
    told = {"eager": True, "bind": "nobind", "probes": [mode.to_json()], "asked": asked}
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    (fact,) = [each for each in facts(t, data) if "vLLM" in each]
    words = {"mode": t("bench.eager"), "bind": t("bench.bind.nobind"), "n": 1}
    assert fact == t("bench.fact.vllm" if asked == "auto" else "bench.fact.vllm_asked", **words)


@pytest.mark.parametrize(
    ("asked", "compiler", "kinds"),
    [("auto", True, {True, False}), ("auto", False, {True}), ("eager", False, {True}),
     ("compiled", True, {False}), ("compiled", False, None)],
)  # fmt: skip
def test_the_kinds_that_are_tried_are_those_asked_for_and_can_run(
    asked: str, compiler: bool, kinds: set[bool] | None
) -> None:
    if kinds is None:
        with pytest.raises(UserError) as refused:
            kinds_of(asked, "cpu", compiler)
        assert refused.value.text.key == "error.vllm_compiler"
    else:
        assert set(kinds_of(asked, "cpu", compiler)) == kinds
    assert set(kinds_of("compiled", "cuda", compiler)) == {False}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_figure_of_the_probe_is_shown(lang: str) -> None:
    best, next_best = Mode(True, "0,1"), Mode(False, "0,1")
    chosen, probed = find_fastest(MODES, Tried({best: 20.0, next_best: 29.0}))
    assert chosen is not None
    told = {"eager": chosen.eager, "bind": chosen.bind, "probes": [p.to_json() for p in probed]}
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    table = next(each for each in all_tables(t, data) if each.title == t("bench.title_vllm"))
    shown = {tuple(cells[:2]): cells[2:] for cells in table.rows}
    assert len(shown) == len(MODES)
    words, cores = catalogue(lang), t("bench.bind.cores", cores="0,1")
    assert shown[words["bench.compiled"], cores] == ["28.0", "29.0"]
    assert shown[words["bench.eager"], words["bench.bind.auto"]] == ["10.0", "—"]
    assert t("failure.no_end") in table.notes
    (fact,) = [each for each in facts(t, data) if "vLLM" in each]
    assert words["bench.compiled"] in fact
    assert cores in fact
