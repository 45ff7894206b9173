"""Which of vLLM's modes is taken: by what is tried, how often, in which order, and what is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.arms.launch import BIND
from experiment.bench import vllm_mode
from experiment.bench.data import BenchData
from experiment.bench.plan import Options, base_config, with_vllm
from experiment.bench.rounds import RoundResult
from experiment.bench.rows import Row
from experiment.bench.vllm_mode import (
    Mode,
    Probed,
    bindings,
    faster,
    faster_mode,
    finalists,
    kinds_of,
    mode_on,
)
from experiment.bench.vllm_trials import why_not_faster
from experiment.bench.workloads import FULL, Workload
from experiment.machine.thread_variables import bound_cores
from experiment.report.facts.bench import facts
from experiment.report.facts.bench_tables import all_tables
from experiment.report.pages.bench import bench_html
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

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


def test_a_mode_that_is_named_again_is_run_again_and_the_mean_decides() -> None:
    eager, compiled = MODES[1], MODES[4]
    runs = {eager: [10.0, 40.0], compiled: [24.0, 24.0]}  # the first and the last run were eager's

    def attempt(mode: Mode) -> tuple[float | None, Message | None]:
        return runs[mode].pop(0), None

    chosen, probed = faster([eager, compiled, compiled, eager], attempt)
    assert chosen == eager
    assert [each.to_json()["rates"] for each in probed] == [[10.0, 40.0], [24.0, 24.0]]
    assert [each.rate for each in probed] == [25.0, 24.0]


def test_a_run_without_a_rate_leaves_the_other_one_and_its_reason() -> None:
    tried: list[float | None] = [None, 12.0]
    chosen, (probe,) = faster([MODES[0]] * 2, lambda _: (tried.pop(0), message("failure.no_end")))
    assert chosen == MODES[0]
    assert (probe.rates, probe.rate) == ([None, 12.0], 12.0)
    assert probe.reason == message("failure.no_end")


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


ASKED = Options(
    workloads=("A",), arms=("vllm",), named=True, rounds=1, least=1, limit_s=None, threads=2,
    tiny=True, profile=False, out=Path("none"),
)  # fmt: skip


def test_what_was_chosen_is_what_the_arm_is_told() -> None:
    config = with_vllm(base_config(ASKED, "cpu"), False, "auto")
    assert (config.vllm.enforce_eager, config.vllm.threads_bind) == (False, "auto")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("asked", "rates", "key"),
    [
        ("auto", {True: 10.0}, "vllm_alone"),
        ("auto", {True: 10.0, False: None}, "vllm_only"),
        ("eager", {True: 10.0}, "vllm_asked"),
        ("auto", {True: 10.0, False: 9.0}, "vllm"),  # of a version that knew no finals
    ],
)
def test_the_fastest_of_one_mode_is_not_called_the_fastest_of_both(
    lang: str, asked: str, rates: dict[bool, float | None], key: str
) -> None:
    probes = [Probed(Mode(kind, "nobind"), [rate]).to_json() for kind, rate in rates.items()]
    told = {"eager": True, "bind": "nobind", "probes": probes, "asked": asked}
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    (fact,) = [each for each in facts(t, data) if "vLLM" in each]
    words = {
        "mode": t("bench.eager"),
        "bind": t("bench.bind.nobind"),
        "n": 2 if key == "vllm" else 1,
    }
    assert fact == t(f"bench.fact.{key}", **words)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_why_only_one_mode_was_tried_is_shown_beside_what_it_reached(lang: str) -> None:
    why = message("note.vllm_eager")
    told = {
        "eager": True, "bind": "nobind", "asked": "auto", "reason": why.model_dump(),
        "probes": [Probed(Mode(True, "nobind"), [10.0]).to_json()],
    }  # fmt: skip
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    assert t("bench.fact.vllm_why", text=t.message(why)) in facts(t, data)
    assert t("note.vllm_eager") in bench_html(data, lang)


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
        "A": [Probed(eager, [31.5, 30.5]), Probed(compiled, [29.5, 29.25])],
        "B": [
            Probed(eager, [None, None], message("failure.no_end")),
            Probed(compiled, [88.5, 89.5]),
        ],
        "C": [Probed(eager, [7.5]), Probed(compiled, [8.5])],  # of a version that ran each once
    }
    told = {
        "eager": False, "bind": "0,1", "asked": "auto", "probes": [p.to_json() for p in probed],
        "finals": {name: [p.to_json() for p in each] for name, each in finals.items()},
        "modes": {"A": {"eager": True, "bind": "0,1"}, "B": {"eager": False, "bind": "0,1"}},
    }  # fmt: skip
    told["modes"] |= {"C": told["modes"]["B"]}
    data = BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)
    t = Translator(lang)
    table = next(each for each in all_tables(t, data) if each.title == t("bench.title_vllm"))
    shown = {tuple(cells[:2]): cells[2:] for cells in table.rows}
    assert len(shown) == len(MODES)
    words, cores = catalogue(lang), t("bench.bind.cores", cores="0,1")
    assert table.header[2:] == [words["bench.column.probe"], "A", "B", "C"]
    both = ["31.0 (30.5 … 31.5)", "29.4 (29.2 … 29.5)"]
    assert shown[words["bench.eager"], cores] == ["30.0", both[0], "—", "7.5"]
    assert shown[words["bench.compiled"], cores] == ["28.0", both[1], "89.0 (88.5 … 89.5)", "8.5"]
    assert shown[words["bench.eager"], words["bench.bind.auto"]] == ["10.0", "—", "—", "—"]
    assert t("failure.no_end") in table.notes
    eager_said, compiled_said = words["bench.eager"], words["bench.compiled"]
    taken = {"A": (eager_said, 2), "B": (compiled_said, 2), "C": (compiled_said, 1)}
    for workload, (mode, runs) in taken.items():
        way = {"workload": workload, "mode": mode, "bind": cores}
        assert t("bench.note_vllm_final", **way) in table.notes
        assert t("bench.fact.vllm_final", **way, n=runs) in facts(t, data)


# -- all of it, with trials that only say a rate ---------------------------------------------------

E, K = Mode(True, "nobind"), Mode(False, "nobind")
Rates = dict[tuple[str, Mode], list[float | None]]


class Trials:
    """Stands in for the runs: answers each with the next rate of its workload and mode."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.ran: list[tuple[str, Mode]] = []

    def __call__(self, runs: Any, ground: Any, config: Any, workload: Workload) -> Any:
        def attempt(mode: Mode) -> tuple[float | None, Message | None]:
            self.ran.append((workload.name, mode))
            rate = self.rates[workload.name, mode].pop(0)
            return rate, None if rate else message("failure.no_end")

        return attempt


def found(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, asked: str = "auto", compiler: bool = True,
    there: bool = True,
) -> tuple[dict[str, Any], list[tuple[str, Mode]]]:  # fmt: skip
    """What is found on A and B, with threads that are bound nowhere, and what was run for it."""
    trials = Trials(rates)
    monkeypatch.setattr(vllm_mode, "_attempts", trials)
    monkeypatch.setattr(vllm_mode, "has_compiler", lambda: compiler)
    missing = message("vllm.missing")
    monkeypatch.setattr(vllm_mode, "find_vllm", lambda device: Path("python") if there else missing)
    monkeypatch.setenv(BIND, "nobind")
    ground: Any = SimpleNamespace(environment=SimpleNamespace(device="cpu"))
    config = base_config(ASKED, "cpu")
    told = faster_mode(Path("none"), ground, config, lambda _: None, FULL[:2], asked)
    return told, trials.ran


def test_finals_are_run_on_the_workloads_there_and_back_and_the_rest_takes_the_last_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, ran = found(
        monkeypatch,
        {
            ("probe", E): [6.0], ("probe", K): [5.0],  # the finals decide, and not this
            ("A", E): [30.0, 50.0], ("A", K): [39.0, 39.0],  # by its first run alone, eager lost
            ("B", E): [90.0, 70.0], ("B", K): [85.0, 85.0],
        },
    )  # fmt: skip
    finals = [(name, mode) for name in "AB" for mode in (E, K, K, E)]
    assert ran == [("probe", E), ("probe", K), *finals]
    rates = {name: [each["rates"] for each in final] for name, final in told["finals"].items()}
    assert rates == {"A": [[30.0, 50.0], [39.0, 39.0]], "B": [[90.0, 70.0], [85.0, 85.0]]}
    assert [mode_on(told, name) for name in "ABCD"] == [E, K, K, K]
    assert [why_not_faster(told, name) for name in "AB"] == [None, None]
    assert told.get("reason") is None


@pytest.mark.parametrize(("asked", "compiler"), [("eager", True), ("auto", False)])
def test_one_mode_alone_has_no_final_and_is_not_said_to_be_the_faster(
    monkeypatch: pytest.MonkeyPatch, asked: str, compiler: bool
) -> None:
    told, ran = found(monkeypatch, {("probe", E): [5.0]}, asked, compiler)
    assert ran == [("probe", E)]
    assert (told["finals"], told["modes"]) == ({}, {})
    assert mode_on(told, "A") == E
    alone = message("bench.unjudged.vllm_alone", mode=message("bench.eager").model_dump())
    assert why_not_faster(told, "A") == alone
    kept = None if compiler else message("note.vllm_eager").model_dump(mode="json")
    assert told.get("reason") == kept


def test_compiled_alone_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = found(monkeypatch, {("probe", K): [5.0]}, "compiled")
    alone = message("bench.unjudged.vllm_alone", mode=message("bench.compiled").model_dump())
    assert why_not_faster(told, "B") == alone


def test_a_mode_without_a_rate_leaves_the_other_one_without_a_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, ran = found(monkeypatch, {("probe", E): [5.0], ("probe", K): [None]})
    assert len(ran) == 2
    assert mode_on(told, "A") == E
    assert why_not_faster(told, "A") == message("bench.unjudged.vllm_rate")


def test_a_final_that_one_mode_never_ends_compares_nothing_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: Rates = {
        ("probe", E): [5.0], ("probe", K): [6.0], ("A", E): [7.0, 7.0], ("A", K): [None, None],
        ("B", E): [7.0, None], ("B", K): [8.0, 8.0],
    }  # fmt: skip
    told, _ = found(monkeypatch, rates)
    assert [mode_on(told, name) for name in "AB"] == [E, K]
    assert why_not_faster(told, "A") == message("bench.unjudged.vllm_rate")
    assert why_not_faster(told, "B") is None


def test_where_no_mode_has_a_rate_the_reason_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Rates = {("probe", E): [None], ("probe", K): [None]}
    told, _ = found(monkeypatch, dict(nothing))
    assert told["reason"] == message("failure.no_end").model_dump(mode="json")
    assert told["modes"] == {}
    assert why_not_faster(told, "A") == message("bench.unjudged.vllm_rate")
    nothing["probe", E] = [None]
    told, _ = found(monkeypatch, nothing, compiler=False)
    assert told["reason"] == message("note.vllm_eager").model_dump(mode="json")


def test_without_vllm_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    told, ran = found(monkeypatch, {}, there=False)
    assert ran == []
    assert told["reason"] == message("vllm.missing").model_dump(mode="json")


def test_two_runs_of_a_mode_are_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_round(directory: Path, *_: Any, **__: Any) -> RoundResult:
        directory.mkdir(parents=True)
        row = Row(workload="A", arm="vllm", round=0, status="finished", useful_tokens_per_s=2.0)
        return RoundResult(rows=[row])

    monkeypatch.setattr(vllm_mode, "run_round", run_round)
    monkeypatch.setattr(vllm_mode, "grounded", lambda ground, *_: ground)
    ground: Any = None
    attempt = vllm_mode._attempts(tmp_path, ground, base_config(ASKED, "cpu"), FULL[0])
    assert [attempt(mode) for mode in (E, K, K, E)] == [(2.0, None)] * 4
    assert len(list(tmp_path.iterdir())) == 4
