"""``bench``: compare the engines by measurement, or show recorded results."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.bench.plan import Options
from experiment.bench.workloads import NAMES, ON_GPU
from experiment.commands.values import choice, number, several, split, whole
from experiment.config.schema import expand_arms
from experiment.files.bounded_reading import evaluating
from experiment.process.interrupts import rendering_started
from experiment.record.directories import shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode

if TYPE_CHECKING:
    from experiment.report.console.bench import BenchConsole

OUT = Path("reports/bench")


def _workload(flag: str, text: str) -> str:
    return choice(flag, text.upper(), (*NAMES, *ON_GPU))


OPTIONS = {
    "--workloads": ("A,B,C,D", partial(several, read=_workload)),
    "--arms": "ARM,...",
    "--rounds": ("N", partial(whole, most=100)),
    "--minutes": ("N", partial(number, above=0, most=10_000)),
    "--threads": ("N", partial(whole, most=4096)),
    "--device": ("auto|cpu|cuda", partial(choice, choices=("auto", "cpu", "cuda"))),
    "--dtype": (
        "TYPE",
        partial(choice, choices=("auto", "float32", "float16", "bfloat16")),
    ),
    "--model": "NAME|DIR",
    "--vllm-python": "PATH",
    "--vllm-mode": (
        "auto|eager|compiled",
        partial(choice, choices=("auto", "eager", "compiled")),
    ),
    "--quick": None,
    "--profile": None,
    "--out": "DIR",
    "--show": "FILE",
    "--markdown": "FILE",
}


def bench(options: argparse.Namespace, t: Translator) -> int:
    """Measure and show; show a file; or write its tables into a page.

    Raises:
        UserError: invalid command, model or device.
    """
    from experiment.bench.data import read_data
    from experiment.report.console.bench import BenchConsole

    console = BenchConsole(t.lang, options.ascii)
    out = Path(options.out) if options.out else OUT
    kept = Path(options.show) if options.show else out
    if options.markdown is not None:
        from experiment.report.files.markdown import write_bench

        data = read_data(kept)
        with evaluating(kept):
            write_bench(Path(options.markdown), data)
        console.written(Path(options.markdown))
        return ExitCode.OK
    if options.show is not None:
        data = read_data(kept)
        with evaluating(kept):
            console.show(data)
        return ExitCode.OK
    plan = plan_of(options, out, t.lang)
    with shared_directory(out):
        return _measure(plan, console)


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


def plan_of(options: argparse.Namespace, out: Path, lang: str = "en") -> Options:
    """What to measure.

    Raises:
        UserError: invalid value.
    """
    return Options.create(
        out,
        workloads=options.workloads,
        arms=None if options.arms is None else expand_arms(split(options.arms)),
        rounds=options.rounds,
        minutes=options.minutes,
        threads=options.threads,
        tiny=options.quick,
        profile=options.profile,
        device=options.device or "auto",
        dtype=options.dtype or "auto",
        model=options.model,
        vllm_mode=options.vllm_mode or "auto",
        command=tuple(sys.argv[1:]),
        lang=lang,
    )
