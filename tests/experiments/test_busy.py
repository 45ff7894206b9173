"""Other programs that are busy as an arm begins or runs: seen, told once, no verdict on times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import Ran
from made_up import (
    SLABS,
    Figures,
    begun_busy,
    beside,
    budget,
    busy_notice,
    cell,
    claimed,
    findings,
    found_of,
    notes,
    rate,
    sides,
    value,
    why,
)

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.analysis.finding_text import answer
from experiment.config.schema import make_config
from experiment.events import (
    ArmStarted,
    CellStarted,
    EnvironmentProbed,
    Event,
    Notice,
    RepeatFinished,
    Step,
    TurnAwaited,
    TurnStarted,
    Usage,
    encode,
)
from experiment.experiments.busy import others_cores
from experiment.experiments.evaluate import picture
from experiment.experiments.found import ratio
from experiment.experiments.measured import cells_of
from experiment.machine import background_load as noise
from experiment.machine.background_load import BUSY_CORES
from experiment.measure import cells
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import show_results
from experiment.report.page.page import report_html
from experiment.runner.interleave import ArmCoroutine, Interleaver
from experiment.text import Translator
from experiment.text.messages import message
from kvsim.core.step import StepPlan


@pytest.mark.parametrize(
    ("seen", "expected", "unused"),
    [
        ((0.0, 1.0, 1.0), 0.0, 2),
        ((1.0, 0.125, 1.0), 0.125, 1),
        ((1.0, 0.5, 0.75), 0.5, 0),
        ((1.0, 2.0, 3.0), 1.0, 0),
        ((None, 1.0, 1.0), None, 2),
        ((1.0, None, 1.0), None, 1),
    ],
)
def test_what_others_keep_busy_takes_more_than_one_look(
    monkeypatch: pytest.MonkeyPatch,
    seen: tuple[float | None, ...],
    expected: float | None,
    unused: int,
) -> None:
    """The least of them is told, also where it is quiet; nobody busy is not nobody knows."""
    left = list(seen)
    monkeypatch.setattr(noise, "others_cores", lambda: left.pop(0))
    assert noise.min_background_load() == expected
    assert len(left) == unused


@dataclass
class Told:
    """Stands in for the session and its console: which arms run when, and what is written down."""

    order: list[str] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.order.append(event.event)

    def arm_coroutine(self, arm: str, *_: Any) -> ArmCoroutine[None]:
        self.order.append(arm)
        yield TurnAwaited(arm=arm, repeat=1)
        self.order.append(f"{arm} 1")
        return None

    def begin(self, *_: Any) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize(
    ("changes", "device", "room", "order"),
    [
        ({}, "cpu", True, ["slabs", "paged", "slabs 1", "paged 1"]),
        ({}, "cuda", True, ["slabs", "slabs 1", "paged", "paged 1"]),
        ({"turns": False}, "cpu", True, ["slabs", "slabs 1", "paged", "paged 1"]),
        # Behind the turn of another cell the log says which one goes on.
        ({}, "cpu", False, ["slabs", "slabs 1", "cell", "paged", "paged 1"]),
    ],
)
def test_arms_take_turns_where_they_may(
    changes: dict[str, Any], device: str, room: bool, order: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not room:
        monkeypatch.setattr(Interleaver, "has_room", lambda self, more: not self._coroutines)
    told, arms = Told(), ["slabs", "paged"]
    started = CellStarted(index=1, of=2, values={}, overrides={}, arms=arms)
    given, config = SimpleNamespace(prepared=None, refused={}), {"name": "capacity", **changes}
    begin: Any = cells._begin_cell
    with Interleaver[None](lambda turn, repeat: None) as turns:
        environment, asked = SimpleNamespace(device=device), make_config({"experiment": config})
        begin(told, told, started, asked, environment, given, arms, turns)
        turns.run()
    assert told.order == order


def with_notices(two_arms: Ran, place: Path, cores: Mapping[str, float]) -> Record:
    """The log of the same run as it is where other programs were seen as these arms began."""
    log = (two_arms.record.directory / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    (started,) = (cell.started for cell in cells_of(two_arms.record))
    lines = []
    for line in log:
        event = json.loads(line)
        if event["event"] == "arm_started" and event["arm"] in cores:
            arm = event["arm"]
            lines.append(encode(busy_notice(started, arm, cores[arm])))
        lines.append(line)
    (place / EVENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return read_record(place)


def test_of_all_arms_it_is_told_once_and_with_advice(two_arms: Ran, tmp_path: Path) -> None:
    assert not [note for note in two_arms.result.notes if note.key == "experiments.note.busy"]
    record = with_notices(two_arms, tmp_path, {"slabs": 0.5, "paged": 1.25})
    (cell,) = cells_of(record)
    assert len(cell.view(1).of(ArmStarted)) == 2
    assert not cell.view(1).of(Notice)
    results = picture(record)[1]
    assert results.experiment is not None
    told = [note for note in results.experiment.notes if note.key == "experiments.note.busy"]
    # With no other note on times: those of three repeats may scatter, too.
    assert results.experiment.model_copy(update={"notes": told}).noisy
    assert [note.params for note in told] == [{"n": 2, "of": 2, "cores": 1.25}]
    assert results.experiment.problems == []
    assert not [note for note in results.notes if note.key.startswith("experiments.note.busy")]


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_a_time_of_an_arm_that_began_busy_gets_no_verdict(
    two_arms: Ran, tmp_path: Path, arm: str
) -> None:
    record = with_notices(two_arms, tmp_path, {arm: 0.75})
    result = picture(record)[1].experiment
    assert result is not None
    (cell,) = result.cells
    assert {one.arm: one.others_cores for one in cell.arms} == {
        "slabs": None, "paged": None, arm: 0.75
    }  # fmt: skip
    before = {finding.id: finding for finding in two_arms.result.findings}
    after = {finding.id: finding for finding in result.findings}
    assert before["throughput"].verdict in ("shown", "not_shown")
    assert why(after["throughput"]) == "busy"
    assert (after["at_once"].verdict, after["preempting"]) == (
        before["at_once"].verdict, before["preempting"]
    )  # fmt: skip
    assert [one.figures for one in cell.arms] == [
        one.figures for one in two_arms.result.cells[0].arms
    ]


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_where_the_gain_comes_from_is_not_told_of_an_arm_that_began_busy(
    two_arms: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str], arm: str
) -> None:
    """In the page and on the console there is a dash, with the reason."""
    (_, before) = two_arms.results.gains
    open_ = message("gains.not_apart")  # of so short a run repeats may tell nothing either
    assert before.reason == (open_ if before.factor is None else None)
    shown, results = picture(with_notices(two_arms, tmp_path, {arm: 0.75}))
    slabs, paged = results.gains
    assert (slabs.reason, paged.factor, paged.step) == (None, None, "paging")
    assert paged.reason == message("experiments.busy")
    t = Translator("en")
    ladder = report_html(shown, results, "en").partition('id="gains"')[2].partition("</table>")[0]
    assert t.message(paged.reason) in ladder
    assert 'class="dash"' in ladder
    show_results(ConsoleReporter("en"), results.model_copy(update={"experiment": None}), [])
    printed = " ".join(capsys.readouterr().out.split())
    assert t("console.note", text=t.message(paged.reason)) in printed


SECOND, EVERY = 10**9, 250_000_000
# Samples of a repeat of two seconds that somebody loads in its middle.
QUIET, LOADED = [0.05] * 8, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def told(
    samples: Sequence[Sequence[float | None]], arm: str = "paged", apart: int = SECOND
) -> list[Event]:
    """An arm with a warm-up and repeats, a sample behind every 250 ms of them."""
    events: list[Event] = [_usage(arm, 0, None)]
    at = 0
    for repeat, each in enumerate(samples):
        if repeat and apart:
            at += apart  # in between nobody generates
            events.append(_usage(arm, at, None))
        end = at + EVERY * len(each)
        used = [_usage(arm, at + EVERY * n, cores) for n, cores in enumerate(each, 1)]
        events += [
            Step(arm=arm, plan=StepPlan(0), started_ns=at, t_ns=at + 1),
            *used,
            Step(arm=arm, plan=StepPlan(0), started_ns=end - 1, t_ns=end),
            RepeatFinished(arm=arm, repeat=repeat, warm_up=not repeat, generate_s=1.0, t_ns=end),
        ]
        at = end
    return events


def _usage(arm: str, t_ns: int, cores: float | None) -> Usage:
    return Usage(arm=arm, cpu_cores=1.0, gpu_share=None, gpu_memory_share=None,
                 others_cores=cores, t_ns=t_ns)  # fmt: skip


def in_turns(cores: float) -> list[Event]:
    """Two repeats, of which another arm ran in between for a second; a sample ends each turn."""
    events: list[Event] = []
    for number, at, used in ((1, SECOND, 0.0), (2, 3 * SECOND, cores)):
        end = at + SECOND // 10
        events += [
            TurnStarted(cell=0, arm="paged", repeat=number, group=1, t_ns=at),
            Step(arm="paged", plan=StepPlan(0), started_ns=at, t_ns=end),
            RepeatFinished(arm="paged", repeat=number, warm_up=False, generate_s=0.1, t_ns=end),
            _usage("paged", end, used),
            TurnStarted(cell=0, arm="slabs", repeat=number, group=1, t_ns=end),
        ]
    return events


PROBED = EnvironmentProbed(environment={"load": {"others_cores": 0.75}})
# A repeat of a second, of which a fifth lies in the first sample and the rest in the second.
CLIPPED = [
    _usage("paged", 0, None),
    Step(arm="paged", plan=StepPlan(0), started_ns=SECOND, t_ns=2 * SECOND),
    _usage("paged", SECOND + SECOND // 5, 1.0),
    _usage("paged", 9 * SECOND, 0.5),
    RepeatFinished(arm="paged", repeat=1, warm_up=False, generate_s=1.0),
]
LATE = told([QUIET, QUIET])
SEEN: dict[str, tuple[list[Event], float | None]] = {
    "quiet": (told([QUIET, QUIET, QUIET, QUIET]), None),
    "any measured repeat counts": (told([QUIET, QUIET, LOADED, QUIET]), 0.375),
    "the warm-up is no figure": (told([LOADED, QUIET, QUIET, QUIET]), None),
    "at the limit": (told([QUIET, [BUSY_CORES] * 8]), None),
    "partly unknown": (told([QUIET, [None, 1.0, 1.0, 1.0, 1.0, None]]), 1.0),
    "unknown": (told([QUIET, [None] * 8]), None),
    "no repeat": (told([QUIET]), None),
    # A busy moment is no busy machine: short repeats are judged together.
    "short, one busy": (told([[0.0], [1.0], [0.0], [0.0], [0.0], [0.0]], apart=0), None),
    "short, two busy": (told([[0.0], [1.0], [1.0], [0.0], [0.0], [0.0]], apart=0), 0.4),
    "short, alone": (told([[0.0], [1.0]], apart=0), 1.0),
    "short, warm-up": (told([[1.0], [0.0]], apart=0), None),
    "short beside one that lends them no quiet": (
        told([QUIET, [0.0] * 4, [1.0] * 2], apart=0), 1.0
    ),
    "short beside a long one": (
        told([QUIET, [0.0] * 4, [1.0], [0.0], [0.0], [0.0]], apart=0), None
    ),
    "of a sample the part within the repeat": (CLIPPED, 0.6),
    "quiet in its turns": (in_turns(0.0), None),
    "turns of others are none of its own": (in_turns(1.0), 0.5),
    # What was seen before the run decides where no repeat was sampled.
    "before, and left alone": ([PROBED, *told([QUIET, QUIET])], None),
    "before, and not sampled": ([PROBED, *told([QUIET, [None] * 8])], 0.75),
    "before, and disturbed": ([PROBED, *told([QUIET, LOADED])], 0.375),
    "between repeats and behind the last": (
        [*LATE[:12], _usage("paged", LATE[11].t_ns + SECOND // 2, 99.0), *LATE[12:],
         _usage("paged", LATE[-1].t_ns + SECOND, 99.0)], None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_what_others_use_while_an_arm_repeats_is_judged_repeat_by_repeat(name: str) -> None:
    events, expected = SEEN[name]
    another = told([QUIET, LOADED], "slabs")
    mine = {} if expected is None else {"paged": pytest.approx(expected)}
    assert others_cores(events) == mine
    assert others_cores([*another, *events]) == {"slabs": 0.375, **mine}


def is_untested(seen: Finding) -> bool:
    """Whether it gives no verdict for a busy machine."""
    assert seen.verdict != "untested" or why(seen) == "busy"
    return seen.verdict == "untested"


def test_repeats_that_lie_apart_are_not_clear_on_a_busy_machine() -> None:
    """Fewer repeats than it takes are too few on any machine."""
    fast, slow, once = value([140, 141, 142]), value([100, 101, 102]), value([1, 2])
    pairs = ((fast, slow), (slow, fast), (once, once))
    seen = [ratio(*pair, busy=True) for pair in pairs]
    told = [(each.lacking, each.clear) for each in seen if each]
    assert told == [("busy", False), ("busy", False), ("few", False)]


@pytest.mark.parametrize(
    ("busy", "untested"),
    [((), False), (("slabs",), True), (("paged",), True), (("contiguous.batch",), False)],
)
def test_either_side_of_a_comparison_may_have_begun_busy(
    busy: tuple[str, ...], untested: bool
) -> None:
    paged = budget(8.0, [140, 141, 142], preemptions=3)
    ran = cell(0, {"requests": 24}, slabs=SLABS, paged=paged, contiguous__batch=SLABS)
    seen = findings("capacity", begun_busy(ran, *busy))
    assert is_untested(seen["throughput"]) is untested
    # More at a time is counted; beside it the speeds are not compared.
    assert seen["at_once"].verdict == "shown"
    assert (why(beside(seen["at_once"])["tokens_per_s"]) == "busy") is untested
    assert sides(seen["preempting"]) == {"24": 3}


def concurrency(busy: str | None) -> list[CellResult]:
    """Three numbers at a time; ``busy`` is an arm that began so with the most, or where it ran."""

    def ran(rate: float) -> Figures:
        return {"tokens_per_s": [rate] * 3, "loop_latency_s": [100 / rate] * 3,
                "running_mean": 3.2, "running_peak": 4}  # fmt: skip

    first = cell(0, {"concurrency": 1}, contiguous__sequential=ran(10), contiguous__batch=ran(10),
                 slabs=ran(12), paged=ran(12))  # fmt: skip
    more = cell(1, {"concurrency": 8}, contiguous__batch=ran(15), slabs=ran(30), paged=ran(60))
    most = cell(2, {"concurrency": 32}, contiguous__batch=ran(20), slabs=ran(60), paged=ran(300))
    if busy == "contiguous.sequential":
        return [begun_busy(first, busy), more, most]
    return [first, more, begun_busy(most, busy) if busy else most]


@pytest.mark.parametrize(
    ("busy", "steps"),
    [
        (None, set()),
        ("contiguous.sequential", {"batching"}),
        ("contiguous.batch", {"batching", "engine"}),
        ("slabs", {"engine", "paging"}),
        ("paged", {"paging"}),
    ],
)
def test_a_gain_is_judged_where_none_of_its_steps_began_busy(
    busy: str | None, steps: set[str]
) -> None:
    cells = concurrency(busy)
    seen = findings("concurrency", *cells)
    assert {name for name in ("batching", "engine", "paging") if is_untested(seen[name])} == steps
    assert is_untested(seen["whole"]) is (busy is not None)
    throughput = claimed("throughput", found_of("concurrency", *cells))
    assert (throughput.verdict, throughput.seen is None) == (
        ("untested", True) if busy else ("shown", False)
    )
    assert throughput.reason == (answer(seen["whole"]) if busy else seen["whole"].notes[1])


@pytest.mark.parametrize(("busy", "told"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_busy_number_before_saturation_leaves_it_open(busy: int, told: bool) -> None:
    """From the second to the third it grows no more; what comes after that decides nothing."""
    cells = [
        cell(n, {"concurrency": 2**n}, paged={"tokens_per_s": [rate] * 3})
        for n, rate in enumerate((10, 20, 21, 41))
    ]
    cells[busy] = begun_busy(cells[busy], "paged")
    seen = findings("concurrency", *cells)["saturation_paged"]
    assert (why(seen), seen.estimate, "busy" in notes(seen)) == ("growth", 2, told)


@pytest.mark.parametrize(
    ("quiet", "verdict"), [([0.001, 0.002, 0.003], "untested"), ([0.02, 0.03, 0.04], "not_shown")]
)
def test_what_the_table_costs_is_not_told_on_a_busy_machine(
    quiet: list[float], verdict: str
) -> None:
    """Unless it is clearly dear at a context that began on a quiet one."""

    def at(index: int, context: int, shares: Sequence[float]) -> CellResult:
        ran: Figures = {"lookup_of_step": shares, "lookup_share": shares,
                        "lookup_scattered_s": [3, 3, 3], "lookup_ordered_s": [1, 1, 1]}  # fmt: skip
        return cell(index, {"context": context}, paged=ran)

    busy = begun_busy(at(1, 512, [0.05, 0.06, 0.07]), "paged")
    cells = [at(0, 64, quiet), busy]
    seen = findings("lookup", *cells)
    assert seen["of_step"].verdict == verdict
    assert is_untested(seen["scattered"])
    rows = (seen["of_attention"], *seen["of_attention"].beside)
    assert [why(row) for row in rows] == [None, "busy"]
    judged = claimed("lookup", found_of("lookup", *cells))
    assert judged.verdict == verdict
    if verdict == "untested":
        assert (judged.seen, judged.reason) == (None, answer(seen["of_step"]))
        assert is_untested(seen["of_step"])


def test_a_queue_on_a_busy_machine_may_be_that_of_others() -> None:
    bore, queued, more = (
        rate(n, 2.0**n, slabs=queue, paged=queue)
        for n, queue in enumerate([(1.0, 1.0), (0.5, 2.0), (0.4, 3.0)])
    )
    seen = findings("serving", bore, begun_busy(queued, "slabs"), more)
    assert is_untested(seen["first"])
    assert "busy" in notes(seen["limit_slabs"])
    assert "busy" not in notes(seen["limit_paged"])
    # What is beyond the limit decides nothing.
    seen = findings("serving", bore, queued, begun_busy(more, "slabs", "paged"))
    assert seen["first"].estimate == 2.0
    assert "busy" not in notes(seen["first"])
    assert "busy" not in notes(seen["limit_slabs"])
    assert is_untested(seen["paging"])
