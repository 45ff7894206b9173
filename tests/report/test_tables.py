"""Every table of every command, at every width: no line is too long, and no word is torn apart."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from busy_run import make_run, paged_plans, slab_plans
from event_makers import BATCH, SEQUENTIAL, batch_arm, head, paged_arm
from full_tables import full_bench, full_claims, full_experiment, full_paper, full_sweep
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_machine import cpu_environment, cuda_environment
from rich.cells import cell_len
from rich.console import Console
from sample import make_record
from test_run_tables import engine, step

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import Check, RunFinished
from experiment.experiments.registry import EXPERIMENTS
from experiment.record.log import Record
from experiment.report.console.bench import BenchConsole
from experiment.report.console.claims import ClaimsConsole
from experiment.report.console.environment import show_environment
from experiment.report.console.lines import Console as OurConsole
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.selfcheck import show_checks
from experiment.report.console.sweep import SweepConsole
from experiment.report.console.table import Table
from experiment.report.console.wrap import wrap
from experiment.report.facts.texts import ASCII, AsciiFile
from experiment.report.pages.paper import paper_text
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import message

SIM = ["--trace", "sharegpt-like", "--requests", "60", "--rate", "20", "--model", "opt-13b",
       "--gpu", "a100-40gb"]  # fmt: skip
SWEEPS = ["--policy", "all", "--block-sizes", "1,16,64", "--budgets", "6GiB,12GiB",
          "--kv-budget", "12GiB"]  # fmt: skip
GATE = '[limits]\n"paged/steps" = { max = 1 }\n"paged/allocated_bytes" = { min = 1 }\n'
WIDTHS = (40, 120)
WORDS = re.compile(r"[^\s\u2e80-\ufaff\uff00-\uffef]+")
NUMBERS = re.compile(r"\d (?:[%×]|[KMG]?i?B\b|[mµn]?s\b)")
CLOSING = ("，", "。", "；", "：", "！", "？", "、", "）", "」", "』", "】", "》", "%")


def ladder(directory: Path) -> Record:
    """Every rung, up to vLLM."""
    directory.mkdir()
    paged = paged_arm()
    vllm = [event.model_copy(update={"arm": "vllm"}) for event in paged if hasattr(event, "arm")]
    arms = [batch_arm(SEQUENTIAL), batch_arm(BATCH), batch_arm("slabs"), paged, vllm]
    events = [*head(), *(event for arm in arms for event in arm), RunFinished(status="complete")]
    return Record(directory, tuple(events), 0)


def vllm_like(directory: Path) -> Record:
    record = make_record(directory)
    return replace(record, events=(*record.events, engine(192), step(1, 3, 3)))


def printed(lang: str, folder: Path) -> Iterator[Callable[[], object]]:
    """Everything that prints a table."""
    out = ConsoleReporter(lang)
    busy = make_run(folder / "busy", paged_plans(), slab_plans())
    for record in (busy, ladder(folder / "ladder"), vllm_like(folder / "vllm")):
        yield lambda record=record: out.show_results(evaluate(record), [])
        for event in record.events:
            if not hasattr(event, "environment"):
                yield lambda event=event: out.handle(event)
    for environment in (cpu_environment(), cuda_environment()):
        yield lambda environment=environment: show_environment(out, environment)
    for name in EXPERIMENTS:
        results = SimpleNamespace(experiment=full_experiment(name, "full"), environment={},
                                  differences=[])  # fmt: skip
        yield lambda results=results: out.show_results(results, [])  # type: ignore[arg-type]
    yield lambda: ClaimsConsole(lang, False).show(full_claims(), [])
    yield lambda: OurConsole(lang).page(paper_text(Translator(lang), full_paper()))
    yield lambda: BenchConsole(lang).show(full_bench())
    (folder / "sweep").mkdir()
    yield lambda: SweepConsole(lang).show(full_sweep(), [folder / "sweep"])
    checks = [Check(check="c", passed=p, text=message("failure.out_of_memory"))
              for p in (True, False, None)]  # fmt: skip
    yield lambda: show_checks(out, checks)
    (folder / "gate.toml").write_text(GATE, encoding="utf-8")
    pair = [str(folder / "busy"), str(folder / "vllm")]
    for words in (
        ["simulate", *SIM, *SWEEPS, "--details", "--out", str(folder / "sim")],
        ["plan", *SIM],
        ["calibrate", str(folder / "busy"), "--out", str(folder / "calibrated.json")],
        ["compare", *pair, "--details", "--gate", str(folder / "gate.toml"), "--out",
         str(folder / "compared")],
        *(["simulate", "--list", what] for what in ("models", "gpus", "policies", "presets")),
    ):  # fmt: skip
        yield lambda words=words: _done(main([*words, "--lang", lang]))


def _done(code: int) -> None:
    assert code in (ExitCode.OK, ExitCode.GATE)


@pytest.fixture(scope="module", params=LANGUAGES)
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """The tables of all commands in a language."""
    found: list[Table] = []
    render = Table.__rich_console__

    def seen(table: Table, *where: object) -> object:
        found.append(table)
        return render(table, *where)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "__rich_console__", seen)
        for show in printed(request.param, tmp_path_factory.mktemp("tables")):
            before = len(found)
            with redirect_stdout(io.StringIO()) as text:
                show()
            assert len(found) > before or not re.search("─{8}", text.getvalue())
    assert len(found) > 60
    return found


def shown(table: Table, width: int, ascii_only: bool) -> str:
    text = io.StringIO()
    file = AsciiFile(text) if ascii_only else text
    Console(file=file, width=width, highlight=False).print(table)  # type: ignore[arg-type]
    return text.getvalue()


def check(table: Table, width: int, ascii_only: bool = False) -> None:
    """No line is too long, no word is lost or torn apart, no closing mark begins a line."""
    text = shown(table, width, ascii_only)
    lines = text.splitlines()
    assert max(map(cell_len, lines), default=0) <= width, text
    whole = [row for row in table.rows if len(row) == len(table.heads)]
    used = {0} | {index for row in whole for index, cell in enumerate(row) if cell.plain}
    cells = [head for index, head in enumerate(table.heads) if index in used]
    plain = [cell.plain for row in (cells, *table.rows) for cell in row]
    plain = [cell.translate(ASCII) for cell in plain] if ascii_only else plain
    wholes = [whole for cell in plain for whole in [*WORDS.findall(cell), *NUMBERS.findall(cell)]]
    for word, count in Counter(wholes).items():
        # A mark of two cells may have to stay with it.
        if cell_len(word) <= width - 2:
            assert text.count(word) >= count, (word, text)
    for line in lines:
        for part in re.split(r"\s\s+", line.strip()):
            assert not part.startswith(CLOSING), text


@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_fits_and_is_whole(tables: list[Table], width: int) -> None:
    for table in tables:
        check(table, width)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_end_of_a_run_fits(
    tmp_path: Path,
    lang: str,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ConsoleReporter(lang).show_results(evaluate(ladder(tmp_path / "run")), [])
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= width


@settings(max_examples=4, deadline=None)
@given(width=st.integers(40, 200), ascii_only=st.booleans())
@example(width=40, ascii_only=True)
@example(width=80, ascii_only=True)
def test_every_table_fits_any_width(tables: list[Table], width: int, ascii_only: bool) -> None:
    for table in tables:
        check(table, width, ascii_only)


LATIN = st.text("abcdefgXYZ0189_", min_size=1, max_size=14)
PATH = st.lists(LATIN, min_size=3, max_size=14).map(lambda parts: "/" + "/".join(parts))
NUMBER = st.builds("{:,} {}".format, st.integers(0, 10**12), st.sampled_from(("MiB", "ms", "%")))
CHINESE = st.text("分页缓存浪费了请求的块", min_size=1, max_size=30).flatmap(
    lambda text: st.sampled_from((text, text + "。", f"（{text}）", f"“{text}”，"))
)
CELL = st.lists(st.one_of(LATIN, LATIN, PATH, NUMBER, CHINESE), max_size=12).map(" ".join)


@st.composite
def random_tables(draw: st.DrawFn) -> Table:
    columns = draw(st.integers(1, 7))
    table = Table(
        Translator(draw(st.sampled_from(LANGUAGES))),
        *draw(st.lists(CELL, min_size=columns, max_size=columns)),
        right=draw(st.sets(st.integers(0, columns))),
    )
    for row in draw(st.lists(st.lists(CELL, min_size=1, max_size=columns), min_size=1, max_size=5)):
        table.add_row(*row)
    return table


@settings(max_examples=30, deadline=None)
@given(table=random_tables(), width=st.integers(40, 200))
def test_any_table_fits_and_is_whole(table: Table, width: int) -> None:
    check(table, width)


def test_where_columns_have_no_room_rows_are_blocks() -> None:
    table = Table(Translator("en"), "arm", "rate", "what differs", right=(1,))
    table.add_row("contiguous.growing", "1,234.5 tokens/s\n(5)", "scheduling, kernels")
    assert shown(table, 40, False).split("\n") == [
        "",
        "arm",
        "contiguous.growing",
        "  rate:         1,234.5 tokens/s (5)",
        "  what differs: scheduling, kernels",
        "",
    ]


TEXT = "分页缓存浪费了 10.9 %（21 KiB）。请求可用 HF_ENDPOINT 指定镜像，或用 --model 给出目录。"


@pytest.mark.parametrize("width", range(20, 80))
def test_lines_fit_and_nothing_is_lost_or_torn_apart(width: int) -> None:
    """No line begins with a closing mark; units stay with their number, options stay whole."""
    told = "请提高 --max-length，或用 --long-prefill-token-threshold 给出较小的值。"
    for text in (TEXT, told):
        lines = wrap(text, width).split("\n")
        assert all(cell_len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert not any(line.startswith(("，", "。", "）", "%", "KiB")) for line in lines)
    assert sum("--max-length" in line for line in lines) == 1
    assert not any(line.endswith("-") for line in lines)


def test_english_breaks_at_spaces() -> None:
    assert wrap("one two three", 8) == "one two\nthree"


def test_a_word_is_broken_only_where_it_fits_no_line_and_no_line_begins_with_its_mark() -> None:
    assert wrap("路径 /data/runs，见下", 9) == "路径\n/data/run\ns，见下"
    assert wrap("a /12345678/x", 12) == "a\n/12345678/x"


def test_both_ends_of_a_range_stay_together() -> None:
    assert wrap("rate 1.25 GiB … 2.50 GiB here", 22) == "rate\n1.25 GiB … 2.50 GiB\nhere"
