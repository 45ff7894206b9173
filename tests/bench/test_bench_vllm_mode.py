"""Which of vLLM's modes is taken: by what is tried, how often, in which order, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.bench.data import BenchData
from experiment.bench.plan import Options, base_config, with_vllm
from experiment.bench.vllm_mode import (
    Mode,
    Probed,
    bindings,
    faster,
    finalists,
    kinds_of,
    mode_on,
)
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

    def __init__(self, rates: dict[Mode, float | None]) -> None:
        self.rates = rates
        self.asked: list[Mode] = []

    def __call__(self, mode: Mode) -> tuple[float | None, Message | None]:
        self.asked.append(mode)
        rate = self.rates[mode]
        return rate, None if rate else message("failure.no_end")


def test_each_mode_is_tried_once_and_the_fastest_is_found() -> None:
    tried = Tried(FIRST)
    chosen, probed = faster(MODES, tried)
    assert tried.asked == MODES
    assert chosen == Mode(True, "0,1")
    assert {probe.mode: probe.rate for probe in probed} == FIRST
    (lost,) = [probe for probe in probed if probe.reason]
    assert (lost.mode, lost.rate) == (Mode(False, "auto"), None)


def test_a_final_has_the_best_of_each_kind_however_far_behind() -> None:
    probed = faster(MODES, Tried(FIRST))[1]
    assert finalists(probed) == [Mode(True, "0,1"), Mode(False, "0,1")]
    assert finalists(probed[:3]) == [Mode(True, "0,1")]
    assert finalists(probed[3:4]) == []


def test_where_nothing_runs_nothing_is_chosen() -> None:
    chosen, probed = faster(MODES[3:4], Tried(FIRST))
    assert chosen is None
    assert [probe.rate for probe in probed] == [None]


def test_a_workload_has_its_own_mode_and_the_others_the_last_ones() -> None:
    told = {
        "eager": False, "bind": "0,1",
        "modes": {"A": {"eager": True, "bind": "0,1"}, "B": {"eager": False, "bind": "0,1"}},
    }  # fmt: skip
    assert mode_on(told, "A") == Mode(True, "0,1")
    assert mode_on(told, "B") == mode_on(told, "C") == Mode(False, "0,1")


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
    mode = Probed(Mode(True, "nobind"), 10.0)
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
def test_every_figure_is_shown_and_what_was_taken_where(lang: str) -> None:
    eager, compiled = Mode(True, "0,1"), Mode(False, "0,1")
    probed = faster(MODES, Tried(FIRST))[1]
    finals = {
        "A": faster([eager, compiled], Tried({eager: 31.5, compiled: 29.5}))[1],
        "B": faster([eager, compiled], Tried({eager: None, compiled: 88.5}))[1],
    }
    told = {
        "eager": False, "bind": "0,1", "asked": "auto", "probes": [p.to_json() for p in probed],
        "finals": {name: [p.to_json() for p in each] for name, each in finals.items()},
        "modes": {"A": {"eager": True, "bind": "0,1"}, "B": {"eager": False, "bind": "0,1"}},
    }  # fmt: skip
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    table = next(each for each in all_tables(t, data) if each.title == t("bench.title_vllm"))
    shown = {tuple(cells[:2]): cells[2:] for cells in table.rows}
    assert len(shown) == len(MODES)
    words, cores = catalogue(lang), t("bench.bind.cores", cores="0,1")
    assert table.header[2:] == [words["bench.column.probe"], "A", "B"]
    assert shown[words["bench.eager"], cores] == ["30.0", "31.5", "—"]
    assert shown[words["bench.compiled"], cores] == ["28.0", "29.5", "88.5"]
    assert shown[words["bench.eager"], words["bench.bind.auto"]] == ["10.0", "—", "—"]
    assert t("failure.no_end") in table.notes
    for workload, mode in (("A", words["bench.eager"]), ("B", words["bench.compiled"])):
        way = {"workload": workload, "mode": mode, "bind": cores}
        assert t("bench.note_vllm_final", **way) in table.notes
        assert t("bench.fact.vllm_final", **way) in facts(t, data)
