"""``bench``: compare the engines by measurement, or show recorded results."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.arms.launch import VLLM_PYTHON
from experiment.bench.plan import Options
from experiment.bench.workloads import NAMES, ON_GPU
from experiment.commands.parser import make_parser, parse
from experiment.commands.values import choice, number, whole
from experiment.config.schema import expand_arms
from experiment.files.bounded_reading import evaluating
from experiment.process.interrupts import rendering_started
from experiment.record.directories import shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode

if TYPE_CHECKING:
    from experiment.report.console.bench import BenchConsole

OUT = Path("reports/bench")
_DTYPES = ("auto", "float32", "float16", "bfloat16")
OPTIONS = {
    "--workloads": "A,B,C,D", "--arms": "ARM,...", "--rounds": "N", "--minutes": "N",
    "--threads": "N", "--device": "auto|cpu|cuda", "--dtype": "TYPE", "--model": "NAME|DIR",
    "--vllm-python": "PATH", "--vllm-mode": "auto|eager|compiled", "--quick": None,
    "--profile": None, "--out": "DIR", "--show": "FILE", "--markdown": "FILE",
}  # fmt: skip


def bench(words: list[str], t: Translator) -> int:
    """Measure and show; show a file; or write its tables into a page.

    Raises:
        UserError: invalid command, model or device.
    """
    asked = parse(make_parser(t, "bench", OPTIONS), words)
    from experiment.bench.data import read_data
    from experiment.report.console.bench import BenchConsole

    console = BenchConsole(t.lang, asked.ascii)
    out = Path(asked.out) if asked.out else OUT
    kept = Path(asked.show) if asked.show else out
    if asked.markdown is not None:
        from experiment.report.files.markdown import write_bench

        data = read_data(kept)
        with evaluating(kept):
            write_bench(Path(asked.markdown), data)
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
    from experiment.report.files.write import write_listed
    from experiment.report.pages.bench import bench_reports

    measured = Bench(options, console.say, console.handle, console.row)
    code = ExitCode.OK
    try:
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
        kept = read_data(measured.written)  # without what is private
        reports = bench_reports(kept, options.lang)
        files = write_listed(measured.written.parent, reports, options.lang)
        console.written(measured.written, *files)
    return code


def options_of(asked: argparse.Namespace, out: Path, lang: str = "en") -> Options:
    """Convert parsed words to options.

    Raises:
        UserError: invalid value.
    """
    if asked.vllm_python:
        os.environ[VLLM_PYTHON] = asked.vllm_python
    return Options.create(
        out,
        workloads=_workloads(asked.workloads),
        arms=None if asked.arms is None else expand_arms(_parts(asked.arms)),
        rounds=whole("--rounds", asked.rounds, most=100),
        minutes=number("--minutes", asked.minutes, above=0, most=10_000),
        threads=whole("--threads", asked.threads, most=4096),
        tiny=bool(asked.quick),
        profile=bool(asked.profile),
        device=choice("--device", asked.device or "auto", ("auto", "cpu", "cuda")),
        dtype=choice("--dtype", asked.dtype or "auto", _DTYPES),
        model=asked.model,
        vllm_mode=choice("--vllm-mode", asked.vllm_mode or "auto", ("auto", "eager", "compiled")),
        command=tuple(sys.argv[1:]),
        lang=lang,
    )


def _workloads(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(part.upper() for part in _parts(text)))
    for name in names or (text,):
        choice("--workloads", name, (*NAMES, *ON_GPU))
    return names


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
