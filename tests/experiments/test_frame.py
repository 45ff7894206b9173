"""The frame of every experiment: cells, repeats, predictions, and which cell a page shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import CONFIGS, Ran, run, tiny_config
from made_up import Figures, cell

from experiment.analysis.conclusions import evaluate
from experiment.analysis.experiment_results import CellArm, CellResult, FigureValue
from experiment.config.arms import ARM_GROUPS
from experiment.config.reading import load_config
from experiment.config.schema import ROUNDS_ENOUGH, expand_arms
from experiment.events import ModelPrepared, Step
from experiment.experiments.base import cell_config, planned_cells
from experiment.experiments.evaluate import _other_machines, focus_of, picture
from experiment.experiments.labels import figure_label
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import EXPERIMENTS, find_experiment
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts import experiment as words
from experiment.report.files.write import run_reports, write_files
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.messages import message

ALL_ARMS = ["contiguous.sequential", "contiguous.batch", "contiguous.growing", "slabs", "paged"]
SHIPPED = sorted(path.stem for path in CONFIGS.glob("*.toml") if path.stem in EXPERIMENTS)


@pytest.fixture(scope="module")
def capacity(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """More requests than four slabs hold, and more than the blocks do, on every arm of ours.

    Two blocks, and no slab, are kept from those who wait.
    """
    config = tiny_config(
        "capacity",
        experiment__values=[3, 10],
        experiment__options={"lengths": [[6, 10], [20, 14], [3, 24]]},
        cache__max_length=64,
        cache__block_size=4,
        cache__budget=4 * 64 * 1024,
        cache__watermark_blocks=2,
        experiment__repeats=2,
        run__arms=ALL_ARMS,
    )
    return run(config, tmp_path_factory.mktemp("capacity") / "run")


def test_every_count_of_every_arm_is_what_kvsim_foretold(capacity: Ran) -> None:
    exact, predicted = capacity.result.exact_counts
    assert exact == predicted
    per_arm = {
        arm: sum(
            value.exact is True
            for cell in capacity.result.cells
            for value in cell.arm(arm).figures.values()  # type: ignore[union-attr]
        )
        for arm in ALL_ARMS
    }
    assert all(count >= 8 for count in per_arm.values()), per_arm
    assert not capacity.result.problems
    assert capacity.results.status == "complete"


def test_every_arm_warms_up_and_then_repeats(capacity: Ran) -> None:
    for each_cell in cells_of(capacity.record):
        for arm in ALL_ARMS:
            repeats = each_cell.repeats(arm)
            assert [each.repeat for each in repeats] == [0, 1, 2]
            assert [each.warm_up for each in repeats] == [True, False, False]
            assert all(each.generate_s > 0 for each in repeats)
    assert all(arm.repeats == 2 for cell in capacity.result.cells for arm in cell.arms)


def test_times_have_a_value_for_each_repeat_and_counts_have_none(capacity: Ran) -> None:
    cell = capacity.cell(requests=10)
    rate, steps = (capacity.figure(cell, "paged", name) for name in ("tokens_per_s", "steps"))
    assert (len(rate.values), rate.foretold, steps.values) == (2, None, [])
    assert (rate.low or 9e9) <= (rate.value or 0) <= (rate.high or 0)


def test_a_view_of_one_repeat_is_an_ordinary_run(capacity: Ran) -> None:
    cell = cells_of(capacity.record)[1]
    whole = [e for e in cell.events if isinstance(e, Step) and e.arm == "paged"]
    views = [cell.view(repeat) for repeat in range(3)]
    steps = [[s for s in view.of(Step) if s.arm == "paged"] for view in views]
    assert sum(map(len, steps)) == len(whole)
    assert len({len(each) for each in steps}) == 1
    for view in views:
        results = evaluate(view)
        assert [arm.status for arm in results.arms] == ["finished"] * len(ALL_ARMS)
        assert not [problem for arm in results.arms for problem in arm.problems]
        assert all(comparison.equal for comparison in results.tokens)
        assert len(results.arms[-1].requests) == 10


Events = list[dict[str, Any]]


def with_events(record: Record, change: Callable[[Events], Events], tmp_path: Path) -> Record:
    """The record once more, its lines handed to ``change``."""
    directory = tmp_path / "changed"
    directory.mkdir()
    lines = (record.directory / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    changed = change([json.loads(line) for line in lines])
    text = "".join(json.dumps(line) + "\n" for line in changed)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return read_record(directory)


def last_of(events: Events, kind: str, arm: str) -> int:
    return max(i for i, e in enumerate(events) if e["event"] == kind and e.get("arm") == arm)


def drop_a_step(events: Events) -> Events:
    """One of the last repeat of a batch: a repeat counts otherwise than the others."""
    release = last_of(events, "step", "contiguous.batch")
    del events[last_of(events[:release], "step", "contiguous.batch")]
    return events


def one_more_waits(events: Events) -> Events:
    """In a step of the last repeat, which no figure tells apart."""
    plans = [e["plan"] for e in events if e["event"] == "step" and e["arm"] == "paged"]
    [plan for plan in plans if "chunks" in plan][-1]["waiting"] = 1
    return events


def other_token(events: Events) -> Events:
    event = events[last_of(events, "request", "paged")]
    event["tokens"] = [*event["tokens"][:-1], 7]
    return events


def longer_requests(events: Events) -> Events:
    """Longer than the ones that were run, so that kvsim predicts other counts."""
    for event in events:
        for request in event["requests"] if event["event"] == "workload" else ():
            request["max_new_tokens"] += 1
    return events


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (drop_a_step, "uneven"),
        (one_more_waits, "step"),
        (other_token, "uneven"),
        (longer_requests, "foretold"),
    ],
)
def test_what_contradicts_itself_fails_the_run(
    capacity: Ran, tmp_path: Path, change: Callable[[Events], Events], problem: str
) -> None:
    results = picture(with_events(capacity.record, change, tmp_path))[1]
    assert results.experiment is not None
    keys = {each.params["text"]["key"] for each in results.experiment.problems}
    assert f"experiments.problem.{problem}" in keys
    assert results.status == "incomplete"


def test_an_arm_without_room_is_left_out_of_its_cells_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(
        "block-size",
        experiment__values=[4, 16],
        workload__lengths=[[5, 3], [9, 4]],
        cache__max_length=64,
        cache__budget=48 * 1024,
        run__arms=["slabs", "paged"],
    )
    ran = run(config, tmp_path / "run")
    for one in ran.result.cells:
        slabs, paged = one.arms
        assert (slabs.status, paged.status) == ("skipped", "finished")
        assert slabs.reason is not None
        assert slabs.reason.key == "error.workload.no_slab"
    assert ran.results.status == "complete"
    # Said once, with all the cells, and where only results are printed, too.
    assert len(words.ended(ran.result)) == 1
    ConsoleReporter("en", quiet=True).show_results(ran.results, [])
    printed = " ".join(capsys.readouterr().out.split())
    t = Translator("en")
    skipped = t("console.arm_skipped", arm=t("arm_name.slabs"), reason=t.message(slabs.reason))
    assert t("experiments.in_cells", axis="block size", cells="4; 16", text=skipped) in printed


def test_means_of_the_same_counts_are_equal_however_they_were_divided() -> None:
    assert FigureValue(value=0.1 + 0.2, foretold=0.3).exact
    assert FigureValue(value=7, foretold=8).exact is False
    assert FigureValue(value=1 / 3, foretold=1 / 3 + 1e-6).exact is False
    assert FigureValue(value=None, foretold=8).exact is None
    assert FigureValue(value=7).exact is None


def test_every_file_is_written_and_holds_the_experiment(capacity: Ran) -> None:
    reports = run_reports(capacity.shown, capacity.results, "en")
    write_files(capacity.shown.directory, reports)
    directory = capacity.record.directory
    table = (directory / "experiment.csv").read_text(encoding="utf-8").splitlines()
    cells, arms = len(capacity.result.cells), len(ALL_ARMS)
    assert len(table) == 1 + cells * arms * len(capacity.result.figures)
    page = (directory / "report.html").read_text(encoding="utf-8")
    for lang in LANGUAGES:
        assert Translator(lang)("experiments.capacity.question") in page
        assert Translator(lang).message(figure_label("running_peak")) in page
    assert 'id="experiment-running-mean-wide"' in page


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("size", ["full", "quick"])
def test_every_shipped_experiment_has_cells_that_fit(name: str, size: str) -> None:
    config = load_config(CONFIGS / f"{name}.toml", {"experiment.size": size})
    spec = find_experiment(name)
    cells = spec.cells(config)
    assert cells
    assert all(cell_config(config, cell).arm_names for cell in cells)
    assert len({tuple(cell.values.items()) for cell in cells}) == len(cells)
    assert set(spec.charts) <= set(spec.figures)
    assert config.experiment.repeats >= ROUNDS_ENOUGH
    if size == "quick":  # starting a process takes seconds
        assert sum(len(cell_config(config, cell).arm_names) for cell in cells) <= 12


@pytest.mark.parametrize("name", SHIPPED)
def test_of_every_arm_that_is_left_out_the_reason_is_known(name: str) -> None:
    asked = load_config(CONFIGS / f"{name}.toml", {}).arm_names
    reasons = find_experiment(name).without
    assert set(reasons) == set(expand_arms(ARM_GROUPS)) - set(asked)
    for lang in LANGUAGES:
        assert all(f"experiments.without.{key}" in catalogue(lang) for key in reasons.values())


RAN: Figures = {"waste": 0.1}


def of(index: int, *arms: str) -> CellResult:
    """A cell in which these arms ended well."""
    return cell(index, {"context": 256 * (index + 1)}, **dict.fromkeys(arms, RAN))


def test_the_page_looks_at_the_last_cell_in_which_the_most_arms_ran() -> None:
    """One arm alone has nothing to be compared with, and of a failed cell there is nothing."""
    assert focus_of([of(0, "paged"), of(1, "paged"), of(2, "paged")]) == 2
    gone = of(2, "paged")
    arms = [arm.model_copy(update={"status": "skipped"}) for arm in gone.arms]
    skipped = gone.model_copy(update={"arms": arms})
    assert focus_of([of(0, "paged"), of(1, "paged"), skipped]) == 1
    assert focus_of([skipped]) == 0
    both = ("slabs", "paged")
    assert focus_of([of(0, "paged"), of(1, *both), of(2, *both), of(3, "paged")]) == 2
    # An arm that does the same in every cell runs in the first alone, and is missed in none.
    why = message("skip.one_at_a_time")
    alone = CellArm(
        arm="contiguous.sequential", status="skipped", repeats=0, figures={}, reason=why
    )
    first, more, last = of(0, "contiguous.sequential", *both), of(1, *both), of(2, "paged")
    more, last = (one.model_copy(update={"arms": [alone, *one.arms]}) for one in (more, last))
    assert focus_of([first, more]) == focus_of([first, more, last]) == 1
    assert focus_of([of(0, "paged"), gone.model_copy(update={"arms": [alone]})]) == 0


def test_of_a_run_on_a_cpu_it_is_said_what_holds_elsewhere() -> None:
    def on(device: str, name: str, **changes: Any) -> list[str]:
        config = tiny_config(name, **changes)
        model = ModelPrepared.model_construct(device=device)
        mine = cell_config(config, planned_cells(EXPERIMENTS[name], config)[-1])
        cell_events = SimpleNamespace(events=(model,), config=mine)
        told = _other_machines([cell_events])  # type: ignore[list-item]
        return [note.key.rpartition(".")[2] for note in told]

    # What scores decide is not the same on any machine.
    assert {name for name in EXPERIMENTS if on("cpu", name) == ["cpu_scores"]} == {"beam"}
    assert on("cpu", "capacity") == ["cpu"]
    assert on("cpu", "capacity", workload__ignore_eos=False) == ["cpu_scores"]
    assert on("cuda", "capacity") == []
