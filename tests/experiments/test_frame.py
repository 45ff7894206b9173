"""The frame that carries every experiment: cells, repeats, predictions, and what must not pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import CONFIGS, Ran, run, tiny_config

from experiment.analysis.conclusions import evaluate
from experiment.analysis.experiment_results import FigureValue
from experiment.config.arms import ARM_GROUPS
from experiment.config.reading import load_config
from experiment.config.schema import ROUNDS_ENOUGH, expand_arms
from experiment.events import RepeatFinished, RequestFinished, Step
from experiment.experiments.base import cell_config
from experiment.experiments.evaluate import picture
from experiment.experiments.labels import figure_label
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import EXPERIMENTS, find_experiment
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts import experiment as words
from experiment.report.files.markdown import markdown
from experiment.report.files.write import run_reports, write_files
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.errors import UserError

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


def test_blocks_hold_more_requests_than_slabs_do(capacity: Ran) -> None:
    few, many = capacity.cell(requests=3), capacity.cell(requests=10)
    assert capacity.figure(few, "slabs", "running_peak").value == 3
    assert capacity.figure(many, "slabs", "running_peak").value == 4
    paged = capacity.figure(many, "paged", "running_peak").value
    assert paged is not None
    assert paged > 4
    assert capacity.verdicts()["at_once"] == "shown"


def test_every_arm_warms_up_and_then_repeats(capacity: Ran) -> None:
    for cell in cells_of(capacity.record):
        for arm in ALL_ARMS:
            repeats = cell.repeats(arm)
            assert [each.repeat for each in repeats] == [0, 1, 2]
            assert [each.warm_up for each in repeats] == [True, False, False]
            assert all(each.generate_s > 0 for each in repeats)
    assert all(arm.repeats == 2 for cell in capacity.result.cells for arm in cell.arms)


def test_times_have_a_value_for_each_repeat_and_counts_have_none(capacity: Ran) -> None:
    cell = capacity.cell(requests=10)
    rate = capacity.figure(cell, "paged", "tokens_per_s")
    assert len(rate.values) == 2
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low <= (rate.value or 0) <= rate.high
    assert rate.foretold is None
    assert capacity.figure(cell, "paged", "steps").values == []


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


def with_events(record: Record, change: object, tmp_path: Path) -> Record:
    """The record once more, its lines handed to ``change``."""
    directory = tmp_path / "changed"
    directory.mkdir()
    lines = (record.directory / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    changed = change([json.loads(line) for line in lines])  # type: ignore[operator]
    text = "".join(json.dumps(line) + "\n" for line in changed)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return read_record(directory)


def last_of(events: list[dict[str, object]], kind: str, arm: str) -> int:
    return max(i for i, e in enumerate(events) if e["event"] == kind and e.get("arm") == arm)


def test_a_repeat_that_counts_otherwise_fails_the_run(capacity: Ran, tmp_path: Path) -> None:
    def drop_a_step(events: list[dict[str, object]]) -> list[dict[str, object]]:
        release = last_of(events, "step", "contiguous.batch")
        del events[last_of(events[:release], "step", "contiguous.batch")]
        return events

    record = with_events(capacity.record, drop_a_step, tmp_path)
    result = picture(record)[1]
    assert result.status == "incomplete"
    keys = {p.params["text"]["key"] for p in result.experiment.problems}  # type: ignore[union-attr]
    assert "experiments.problem.uneven" in keys


def test_a_step_that_no_figure_tells_apart_fails_the_run(capacity: Ran, tmp_path: Path) -> None:
    def one_more_waits(events: list[dict[str, object]]) -> list[dict[str, object]]:
        plans = [e["plan"] for e in events if e["event"] == "step" and e["arm"] == "paged"]
        last = [plan for plan in plans if "chunks" in plan][-1]  # type: ignore[operator]
        last["waiting"] = 1  # type: ignore[index]
        return events

    record = with_events(capacity.record, one_more_waits, tmp_path)
    result = picture(record)[1]
    assert result.status == "incomplete"
    (problem,) = result.experiment.problems  # type: ignore[union-attr]
    assert problem.params["text"]["key"] == "experiments.problem.step"


def test_other_tokens_in_a_repeat_fail_the_run(capacity: Ran, tmp_path: Path) -> None:
    def other_token(events: list[dict[str, object]]) -> list[dict[str, object]]:
        event = events[last_of(events, "request", "paged")]
        event["tokens"] = [*event["tokens"][:-1], 7]  # type: ignore[index]
        return events

    record = with_events(capacity.record, other_token, tmp_path)
    (problem,) = picture(record)[1].experiment.problems  # type: ignore[union-attr]
    assert problem.params["text"]["params"]["figure"]["key"] == "metric.new_tokens"


def test_a_count_that_kvsim_did_not_foretell_fails_the_run(capacity: Ran, tmp_path: Path) -> None:
    """The requests were longer than the ones that were run."""

    def longer(events: list[dict[str, object]]) -> list[dict[str, object]]:
        for event in events:
            if event["event"] == "workload":
                for request in event["requests"]:  # type: ignore[attr-defined]
                    request["max_new_tokens"] += 1
        return events

    record = with_events(capacity.record, longer, tmp_path)
    results = picture(record)[1]
    assert results.experiment is not None
    keys = [p.params["text"]["key"] for p in results.experiment.problems]
    assert "experiments.problem.foretold" in keys
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
    for cell in ran.result.cells:
        slabs = next(arm for arm in cell.arms if arm.arm == "slabs")
        assert slabs.status == "skipped"
        assert slabs.reason is not None
        assert slabs.reason.key == "error.workload.no_slab"
        assert cell.arm("paged") is not None
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


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_result_is_told_in_either_language(
    capacity: Ran, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console = ConsoleReporter(lang)
    console.show_results(capacity.results, ["report.html"])
    printed = capsys.readouterr().out
    t = Translator(lang)
    assert t("experiments.capacity.at_once") in printed
    assert t("verdict.shown") in printed
    assert "kvsim" in printed


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


def test_a_report_says_of_every_arm_that_it_ran_or_why_not(
    capacity: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    without = {each.arm: each.reason.key for each in capacity.result.without}
    assert set(without) == {"transformers_paged", "vllm"}
    assert set(without) | set(capacity.result.arms) == set(expand_arms(ARM_GROUPS))
    ConsoleReporter("en").show_results(capacity.results, [])
    t = Translator("en")
    line = " ".join(capsys.readouterr().out.split())
    assert t("experiments.without.not_asked") in line


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_summary_of_a_job_has_a_section_of_the_experiment(capacity: Ran, lang: str) -> None:
    text, t = markdown(capacity.results, lang), Translator(lang)
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    at_once = next(row for row in table if t("experiments.capacity.at_once") in row[0])
    assert at_once[1] == t("verdict.shown")
    many = capacity.cell(requests=10)
    mean = capacity.figure(many, "paged", "running_mean")
    drawn = f"{mean.value:.2f} ({t('experiments.kvsim', value=f'{mean.foretold:.2f}')})"
    label = t.message(figure_label("running_mean"))
    row = next(r for r in table if r[0] == f"| {label}: 10")
    assert drawn in row[capacity.result.arms.index("paged") + 1]
    exact, of = capacity.result.exact_counts
    assert t("experiments.foretold", exact=exact, of=of) in text


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_is_shipped(name: str) -> None:
    assert name in SHIPPED


def test_an_unknown_experiment_is_refused_by_name() -> None:
    with pytest.raises(UserError) as caught:
        find_experiment("capcity")
    assert caught.value.text.params["near"] == "capacity"


def test_repeats_and_requests_belong_to_their_cell(capacity: Ran) -> None:
    first, second = cells_of(capacity.record)
    assert len([e for e in first.events if isinstance(e, RepeatFinished)]) == 3 * len(ALL_ARMS)
    ended = [e for e in second.events if isinstance(e, RequestFinished) and e.arm == "slabs"]
    assert len(ended) == 3 * 10
