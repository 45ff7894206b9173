"""What a simulation prints and writes: the same numbers everywhere, a reason for every dash."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sim_runs import MODEL, SMALL, simulated

from experiment.commands.main import main
from experiment.report.facts.simulation_cells import cells_of, dashes, sweeps_of, visible_figures
from experiment.report.facts.simulation_figures import FIGURES, GROUPS, STATES
from experiment.report.facts.values import written
from experiment.text import Translator
from experiment.text.errors import ExitCode
from kvsim.latency.roofline import Efficiencies, Roofline
from kvsim.sim.config import SIM_POLICIES, SimConfig
from kvsim.sim.simulator import simulate
from kvsim.sizing.models import find_model
from kvsim.traces import PRESETS, ArrivalProcess, SyntheticTrace, from_preset

HAN = re.compile(r"[\u4e00-\u9fff]")


def record(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "sim.json").read_text(encoding="utf-8")))


def table(directory: Path, name: str) -> list[dict[str, str]]:
    text = (directory / name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def rendered(directory: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["render", str(directory), "--details", *words]) == ExitCode.OK
    return capsys.readouterr().out


def test_the_record_is_what_kvsim_itself_finds(drawn: Path) -> None:
    cell = next(c for c in record(drawn)["cells"] if c["policy"] == "paged")
    told = dict(cell["result"]["config"])
    recipe = from_preset("sharegpt-like", 100, ArrivalProcess(20.0), max_length=2048)
    plain = {k: v for k, v in told.items() if k not in ("latency", "labels")}
    latency = {k: v for k, v in told["latency"].items() if k != "kind"}
    assert told["latency"]["kind"] == "Roofline"
    latency["efficiencies"] = Efficiencies(**latency["efficiencies"])
    config = SimConfig(**plain, latency=Roofline(**latency), labels=told["labels"])
    assert (
        json.loads(json.dumps(simulate(SyntheticTrace(recipe), config).to_json())) == cell["result"]
    )


def test_the_paper_s_pool_is_counted(drawn: Path) -> None:
    setup = record(drawn)["setup"]
    assert setup["bytes_per_token"] == 819_200
    assert (setup["slots"], setup["blocks"]) == (15_728, 983)


def test_console_csv_and_record_hold_the_same_numbers(
    drawn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data = record(drawn)
    rows = {row["policy"]: row for row in table(drawn, "summary.csv")}
    printed = rendered(drawn, capsys, "--lang", "en")
    t = Translator("en")
    assert tuple(rows) == SIM_POLICIES
    cells = cells_of(data)
    for name, group in GROUPS.items():
        for figure in group:
            values = [cell.value(figure) for cell in cells]
            for cell, value in zip(cells, values, strict=True):
                assert rows[cell.policy][figure.name] == ("" if value is None else str(value))
            if figure in visible_figures(group, cells):
                assert_row(printed, t(f"sim.group.{name}"), t.message(figure.about.label),
                           [written(value, figure.about.unit) for value in values])  # fmt: skip


@pytest.mark.parametrize("name", ["summary.csv", "timeline.csv", "sweeps.csv"])
def test_every_row_of_every_table_says_what_it_comes_from(
    drawn: Path, hashed: Path, name: str
) -> None:
    for directory, seed in ((drawn, "0"), (hashed, "0")):
        trace = record(directory)["trace"]
        assert len(trace["sha256"]) == 64
        rows = table(directory, name)
        assert rows
        assert {(r["trace"], r["trace_sha256"], r["seed"]) for r in rows} == {
            (trace["name"], trace["sha256"], seed)
        }


def assert_row(printed: str, title: str, label: str, values: list[str]) -> None:
    """The row's values stand in the group's table, one after another."""
    found: list[str] = []
    inside = False
    for line in printed.splitlines():
        cells = re.split(r"  +", line)
        if len(cells) > 1 and cells[1] in SIM_POLICIES:
            inside = cells[0] == title
        elif inside and len(cells) > 1 and cells[0] == label:
            found += cells[1:]
    assert found == values, label


def test_the_states_of_every_policy_sum_to_its_pool(drawn: Path) -> None:
    pools = {cell["policy"]: cell["result"]["pool_slots"] for cell in record(drawn)["cells"]}
    for row in table(drawn, "timeline.csv"):
        states = [row[f"{name}_slots"] for name in STATES if row.get(f"{name}_slots")]
        total = sum(map(float, states))
        assert total == pytest.approx(pools[row["policy"]])


def test_the_timeline_adds_up_to_the_totals(drawn: Path) -> None:
    rows = table(drawn, "timeline.csv")
    for cell in record(drawn)["cells"]:
        own = [row for row in rows if row["policy"] == cell["policy"]]
        result = cell["result"]
        assert sum(int(row["preemptions"]) for row in own) == result["preemptions"]["total"]
        spans = [float(row["end_s"]) - float(row["begin_s"]) for row in own]
        running = sum(float(row["running"]) * span for row, span in zip(own, spans, strict=True))
        assert running / result["span_s"] == pytest.approx(result["running"]["mean"])
    paged = [c for c in record(drawn)["cells"] if c["policy"] == "paged"]
    assert paged[0]["result"]["preemptions"]["total"] > 0


@pytest.mark.parametrize(("part", "least"), [("p50", 2), ("p90", 10), ("p99", 100)])
def test_a_percentile_of_too_few_requests_is_a_dash(part: str, least: int) -> None:
    """As everywhere: it would be the longest of them under another name."""
    (figure,) = (figure for figure in FIGURES if figure.name == f"latency_{part}_s")

    def of(count: int) -> dict[str, Any]:
        return {"latency_s": {"count": count, part: 1.5}}

    assert figure.value(of(least)) == 1.5
    assert figure.value(of(least - 1)) is None
    assert figure.reason(of(least - 1)) == "few_requests"
    assert figure.reason({"latency_s": {"count": 0, part: None}}) == "nothing_ended"


def test_every_dash_has_a_reason(drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = cells_of(record(drawn))
    printed = " ".join(rendered(drawn, capsys, "--lang", "en").split())
    t = Translator("en")
    for group in GROUPS.values():
        given = {(p, f.name) for d in dashes(group, cells) for p in d.policies for f in d.figures}
        for figure in visible_figures(group, cells):
            for cell in cells:
                assert (cell.value(figure) is None) == ((cell.policy, figure.name) in given)
        for dash in dashes(group, cells):
            assert t.message(dash.reason) in printed
            assert dash.reason.key != "sim.reason.nothing_ran"
    for row in table(drawn, "summary.csv"):
        because = {part.partition("=")[0] for part in row["unknown_because"].split("; ")}
        assert because == {figure.name for figure in FIGURES if row[figure.name] == ""}


def test_sweeps_change_one_thing(drawn: Path, hashed: Path) -> None:
    sizes, preemption, budgets, samples = sweeps_of(record(drawn))
    assert (sizes.name, sizes.axis, sizes.mark) == ("block_sizes", (1, 16, 64), 16)
    waste = sizes.lines["paged"]
    assert waste[0] == 0
    assert waste[1] < waste[2]  # type: ignore[operator]
    own = next(c for c in cells_of(record(drawn)) if c.policy == "paged")
    figure = next(f for f in FIGURES if f.name == "waste_of_allocated_share")
    assert waste[1] == own.value(figure)
    # A smaller block is more copies, so that swapping is dearer, most of all with blocks of one.
    assert (preemption.name, preemption.axis, preemption.mark) == ("preemption", (1, 16, 64), 16)
    swap, again = preemption.lines["swap"], preemption.lines["recompute"]
    assert swap[0] > 5 * swap[1] > 5 * swap[2] > 0  # type: ignore[operator]
    assert max(again) < 1.5 * min(again)  # type: ignore[type-var, operator]
    assert budgets.mark == 12 << 30
    running = budgets.lines["max"]
    assert running[0] < running[1]  # type: ignore[operator]
    assert samples.lines["paged"][0] < samples.lines["paged"][1]  # type: ignore[operator]
    (prefixes,) = sweeps_of(record(hashed))
    optimal, lru = prefixes.lines["optimal"], prefixes.lines["lru"]
    assert all(a >= b for a, b in zip(optimal, lru, strict=True))  # type: ignore[operator]
    assert optimal[0] < optimal[-1]  # type: ignore[operator]
    # Of 240 blocks 4 + 4 + 8 + 60 are asked for the first time.
    assert optimal[-1] == pytest.approx(1 - 76 / 240)
    rows = table(hashed, "sweeps.csv")
    last = [row for row in rows if row["line"] == "lru"][-1]
    assert (int(last["at"]), float(last["value"])) == (76, pytest.approx(1 - 76 / 240))


def test_a_mean_preemption_s_price_is_worked_out_from_what_moved(drawn: Path) -> None:
    data = record(drawn)
    point = next(p for p in data["preemption"] if p["block_size"] == 16)
    cell = next(c for c in data["cells"] if c["policy"] == "paged")["result"]
    # The run itself recomputes: it is the same simulation.
    assert point["recompute_preemptions"] == cell["preemptions"]["total"] > 0
    # Both ways of at least a block: 40 layers, K and V, 10 µs each to start.
    assert point["swap_s"] > 2 * 80 * 10e-6


def test_capacities_of_a_trace_without_hash_ids_are_said_to_be_left_out(tmp_path: Path) -> None:
    words = (*SMALL, "--requests", "5", "--policy", "paged", "--capacities", "5")
    data = simulated(tmp_path / "out", *words)
    assert [note["key"] for note in data["notes"]] == ["sim.note.no_hash_ids"]
    assert data["prefixes"] is None


def test_hits_are_counted(hashed: Path) -> None:
    row = next(r for r in table(hashed, "summary.csv") if r["policy"] == "paged+prefix")
    assert float(row["hits_first_share"]) > 0.5


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_80_columns_are_enough(
    lang: str, drawn: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", "80")
    words = ["plan", *MODEL, "--prompt-tokens", "161", "--new-tokens", "338", "--ascii"]
    assert main([*words, "--lang", lang]) == ExitCode.OK
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 80
    for words in ((), ("--ascii",)):
        printed = rendered(drawn, capsys, "--lang", lang, *words)
        assert max(cell_len(line) for line in printed.splitlines()) <= 80
        assert bool(HAN.search(printed)) == (lang == "zh")
        if words and lang == "en":
            assert printed.isascii()
        assert "paged+prefix" in printed


def test_a_fitted_latency_is_used(tmp_path: Path) -> None:
    latency = {"kind": "LinearLatency", "fixed_s": 0.02}
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"latency": latency}), encoding="utf-8")
    words = (*SMALL, "--policy", "paged", "--latency", str(path), "--quiet")
    data = simulated(tmp_path / "out", *words)
    result = data["cells"][0]["result"]
    assert result["busy_s"] == pytest.approx(result["steps"] * 0.02)
    assert data["setup"]["latency"]["source"] == "file"


def test_swapped_blocks_need_and_use_host_memory(tmp_path: Path) -> None:
    words = (*SMALL, "--policy", "paged", "--preemption", "swap", "--swap-space", "8GiB")
    result = simulated(tmp_path / "out", *words, "--quiet")["cells"][0]["result"]
    assert result["preemptions"]["swapped_bytes"] > 0
    assert result["tokens"]["recomputed"] == 0


DRAWN = ("--trace", "alpaca-like", "--requests", "20")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "rtx-4090"), ("opt-13b", "a100-40gb")])
def test_the_default_maximum_length_is_the_longest_request_s(
    tmp_path: Path, model: str, gpu: str, preset: str
) -> None:
    words = ("--model", model, "--gpu", gpu, "--trace", preset, "--requests", "20", "--quiet")
    data = simulated(tmp_path / "out", *words)
    positions = find_model(model).max_positions
    drawn = SyntheticTrace(from_preset(preset, 20, ArrivalProcess(None), max_length=positions))
    longest = max(one.prompt_tokens + one.output_tokens for one in drawn)
    assert data["setup"]["max_length"] == longest
    cells = {cell["policy"]: cell["result"] for cell in data["cells"]}
    assert list(cells) == ["slabs", "max", "pow2", "oracle", "paged"]
    assert cells["slabs"]["block_size"] == cells["max"]["config"]["max_length"] == longest
    slots = data["setup"]["slots"]
    assert cells["slabs"]["pool_slots"] == slots // longest * longest


def test_a_given_maximum_length_is_what_slabs_reserve(tmp_path: Path) -> None:
    data = simulated(tmp_path / "out", *MODEL, *DRAWN, "--max-length", "2048")
    (slabs,) = (cell["result"] for cell in data["cells"] if cell["policy"] == "slabs")
    assert slabs["block_size"] == 2048
    assert slabs["pool_slots"] == 7 * 2048  # of 15,728
