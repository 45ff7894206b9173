"""Which of vLLM's modes is taken: by what is tried, and what is kept and shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiment.arms.launch import BIND
from experiment.bench.data import BenchData
from experiment.bench.plan import Options, base_config, with_vllm
from experiment.bench.vllm_mode import Mode, bindings, fastest_modes, kinds_of, mode_on
from experiment.bench.workloads import FULL, Workload
from experiment.machine.thread_variables import bound_cores
from experiment.report.facts.bench import all_tables
from experiment.report.pages.bench import bench_html
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

E, K = Mode(True, "0,1"), Mode(False, "0,1")
FAILED = message("failure.no_end")


def fastest(workloads: str, rates: dict[tuple[str, Mode], float | None]) -> dict[str, Any]:
    """Trials that only say a rate."""

    def attempt(workload: Workload, mode: Mode) -> tuple[float | None, Message | None]:
        rate = rates.pop((workload.name, mode))
        return rate, None if rate else FAILED

    modes = list(dict.fromkeys(mode for _, mode in rates))
    told = fastest_modes(modes, [each for each in FULL if each.name in workloads], attempt)
    assert not rates
    return told


def test_each_workload_takes_its_fastest_mode_and_the_others_the_last_one() -> None:
    told = fastest("ABC", {("A", E): 30.0, ("A", K): 29.0, ("B", E): 70.0, ("B", K): 85.0})
    assert [mode_on(told, name) for name in "ABCD"] == [E, K, K, K]
    kept = {name: [each["rates"] for each in trials] for name, trials in told["finals"].items()}
    assert kept == {"A": [[30.0], [29.0]], "B": [[70.0], [85.0]]}
    assert told["reason"] is None


def test_a_workload_that_is_alone_has_its_own_trials() -> None:
    assert mode_on(fastest("D", {("D", E): 5.0, ("D", K): 6.0}), "D") == K


def test_a_mode_without_a_rate_keeps_its_reason_and_is_not_taken() -> None:
    told = fastest("AB", {("A", E): None, ("A", K): 1.0, ("B", E): 7.0, ("B", K): None})
    assert [mode_on(told, name) for name in "AB"] == [K, E]
    assert told["finals"]["A"][0]["reason"] == FAILED.model_dump(mode="json")
    nothing = fastest("A", {("A", E): None, ("A", K): None})
    assert (nothing["modes"], mode_on(nothing, "A")) == ({}, E)
    assert nothing["reason"] == FAILED.model_dump(mode="json")


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


# -- what is shown -------------------------------------------------------------------------------


def trial(eager: bool, bind: str, *rates: float | None) -> dict[str, Any]:
    reason = None if any(rates) else FAILED.model_dump()
    return {"eager": eager, "bind": bind, "rates": list(rates), "reason": reason}


def data(told: dict[str, Any]) -> BenchData:
    return BenchData(version="1", started="2026-11-22T04:33:57+00:00", vllm=told)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_file_of_a_version_with_a_probe_and_finals_is_shown(lang: str) -> None:
    t = Translator(lang)
    probes = [trial(True, "auto", 10.0), trial(True, "0,1", 30.0), trial(False, "0,1", 28.0)]
    finals = {"A": [trial(True, "0,1", 31.5, 30.5), trial(False, "0,1", 29.5, 29.25)]}
    taken = {"eager": True, "bind": "0,1"}
    found = data(taken | {"probes": probes, "finals": finals, "modes": {"A": taken}})
    (table,) = all_tables(t, found)
    assert table.header[2:] == [t("bench.column.probe"), "A"]
    rates = [row[2:] for row in table.rows]
    assert rates == [
        ["10.0", "—"], ["30.0", "31.0 (30.5 … 31.5)"], ["28.0", "29.4 (29.2 … 29.5)"]
    ]  # fmt: skip
    assert bench_html(found, lang)
