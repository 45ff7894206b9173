"""``bench``: measures the engines against each other, or shows what was measured."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.arms.launch import VLLM_PYTHON
from experiment.bench.plan import ARMS, Options
from experiment.bench.workloads import NAMES, ON_GPU
from experiment.commands.parser import make_parser, parse
from experiment.config.schema import expand_arms
from experiment.files.bounded_reading import evaluating
from experiment.files.os_errors import disk_errors
from experiment.process.interrupts import rendering_started
from experiment.record.directories import shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.bench import BenchConsole

OUT = Path("reports/bench")
ROUNDS, TINY_ROUNDS, LEAST_ROUNDS, MINUTES = 5, 2, 2, 30.0


def bench(words: list[str], t: Translator) -> int:
    """Measure and show; or show a file; or write its tables into a page. A benchmark is no gate.

    Raises:
        UserError: something in the command, the model or the device must be mended.
    """
    asked = parse(_parser(t), words, ())
    from experiment.bench.data import read_data
    from experiment.report.console.bench import BenchConsole

    console = BenchConsole(t.lang, asked.ascii)
    out = Path(asked.out) if asked.out else OUT
    kept = Path(asked.show) if asked.show else out
    if asked.markdown is not None:
        from experiment.report.files.bench_markdown import write_page

        data = read_data(kept)
        with evaluating(kept):
            write_page(Path(asked.markdown), data)
        console.written(Path(asked.markdown))
        return ExitCode.OK
    if asked.show is not None:
        data = read_data(kept)
        with evaluating(kept):
            console.show(data)
        return ExitCode.OK
    options = options_of(asked, out, t.lang)
    with shared_directory(out):
        return _measure(options, console)


def _measure(options: Options, console: BenchConsole) -> int:
    from experiment.bench.data import read_data
    from experiment.bench.run import Bench
    from experiment.report.pages.bench import PAGE, bench_html
    from experiment.report.pages.index import write_listed

    measured = Bench(options, console.say, console.handle, console.row)
    code = ExitCode.OK
    try:
        with disk_errors(options.out):
            measured.run()
    except KeyboardInterrupt:
        if measured.written is None:
            raise
        code = ExitCode.INTERRUPTED
    finally:
        console.end()
    rendering_started()
    console.show(measured.data)
    if measured.written is not None:
        console.written(measured.written)
        kept = read_data(measured.written)  # without what is private
        page = {PAGE: bench_html(kept, options.lang)}
        for path in write_listed(measured.written.parent, page, options.lang):
            console.written(path)
    return code


def options_of(asked: argparse.Namespace, out: Path, lang: str = "en") -> Options:
    """What the words ask for.

    Raises:
        UserError: a value that does not fit.
    """
    if asked.vllm_python:
        os.environ[VLLM_PYTHON] = asked.vllm_python
    tiny, rounds = bool(asked.quick), _whole(asked.rounds, "--rounds", 100)
    minutes = _minutes(asked.minutes)
    limited = minutes is not None or rounds is None
    return Options(
        workloads=_workloads(asked.workloads),
        usual=asked.workloads is None,
        arms=_arms(asked.arms, tiny),
        named=asked.arms is not None,
        rounds=rounds or (TINY_ROUNDS if tiny else ROUNDS),
        least=1 if minutes is not None else LEAST_ROUNDS,
        limit_s=(minutes or MINUTES) * 60 if limited else None,
        threads=_whole(asked.threads, "--threads", 4096),
        tiny=tiny,
        profile=bool(asked.profile),
        out=out,
        device=_choice(asked.device or "auto", "--device", ("auto", "cpu", "cuda")),
        dtype=_choice(asked.dtype or "auto", "--dtype", ("auto", "float32", "float16", "bfloat16")),
        model=asked.model,
        vllm_mode=_choice(asked.vllm_mode or "auto", "--vllm-mode", ("auto", "eager", "compiled")),
        command=tuple(sys.argv[1:]),
        lang=lang,
    )


def _workloads(text: str | None) -> tuple[str, ...]:
    if text is None:
        return NAMES
    names = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",") if part.strip()))
    for name in names or (text,):
        _choice(name, "--workloads", (*NAMES, *ON_GPU))
    return names


def _arms(text: str | None, tiny: bool) -> tuple[str, ...]:
    if text is None:
        return tuple(arm for arm in ARMS if not (tiny and arm == "vllm"))
    return expand_arms(part.strip() for part in text.split(",") if part.strip())


def _whole(text: str | None, flag: str, most: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
        raise user_error("error.bench.whole", flag=flag, value=text, most=most)
    return int(text)


def _minutes(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10_000:
        raise user_error("error.bench.minutes", value=text)
    return value


def _choice(value: str, flag: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        listed = ", ".join(choices)
        raise user_error("error.not_a_choice", config_key=flag, value=value, choices=listed)
    return value


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "bench")
    add = parser.add_argument
    add("--workloads", metavar="A,B,C,D", help=t("help.bench_workloads"))
    add("--arms", metavar="ARM,...", help=t("help.bench_arms"))
    add("--rounds", metavar="N", help=t("help.bench_rounds"))
    add("--minutes", metavar="N", help=t("help.bench_minutes"))
    add("--threads", metavar="N", help=t("help.bench_threads"))
    add("--device", metavar="auto|cpu|cuda", help=t("help.device"))
    add("--dtype", metavar="TYPE", help=t("help.dtype"))
    add("--model", metavar="NAME|DIR", help=t("help.bench_model"))
    add("--vllm-python", metavar="PATH", help=t("help.vllm_python"))
    add("--vllm-mode", metavar="auto|eager|compiled", help=t("help.vllm_mode"))
    add("--quick", action="store_true", help=t("help.bench_quick"))
    add("--profile", action="store_true", help=t("help.bench_profile"))
    add("--out", metavar="DIR", help=t("help.bench_out"))
    add("--show", metavar="FILE", help=t("help.bench_show"))
    add("--markdown", metavar="FILE", help=t("help.bench_markdown"))
    return parser
