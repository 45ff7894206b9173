"""Tables of a documentation page: speeds of a benchmark, GPUs checked by ``gpucheck``."""

from __future__ import annotations

from pathlib import Path

from experiment.bench.data import BenchData
from experiment.gpucheck.result import GpuCheck
from experiment.report.facts.bench import facts
from experiment.report.facts.bench_tables import speed_tables
from experiment.report.facts.texts import date_text
from experiment.report.files.markup import items, plain, put_between
from experiment.report.files.tables_markdown import cells_markdown
from experiment.text import Translator
from experiment.text.errors import user_error

BENCH, GPUS = "bench", "gpucheck"
NONE_YET = "No GPU has been checked yet."
_HEADS = (
    "| GPU | compute capability | driver | torch | checked | result |\n|---|---|---|---|---|---|"
)


def write_bench(path: Path, data: BenchData) -> None:
    """Write the tables of speed into a page, in English; a missing page is created.

    Raises:
        UserError: the page lacks the marks, or cannot be read or written.
    """
    t = Translator("en")
    parts = [items(facts(t, data)), *map(cells_markdown, speed_tables(t, data))]
    put_between(path, BENCH, lambda _: "\n\n".join(parts) + "\n", is_new=True)


def write_gpus(path: Path, data: GpuCheck) -> None:
    """Add the GPU of a check to the table of a page, or replace its row.

    Raises:
        UserError: the check has no GPU; the page lacks the marks, or cannot be read or written.
    """
    row = gpu_row(data)
    if row is None:
        raise user_error("gpucheck.no_gpu_seen")
    put_between(path, GPUS, lambda kept: gpus_markdown([*_rows(kept), row]) + "\n")


def gpus_markdown(rows: list[str]) -> str:
    """The table; the last row of each GPU is used."""
    if not rows:
        return NONE_YET
    by_name = {row.split("|")[1]: row for row in rows}
    return "\n".join([_HEADS, *sorted(by_name.values())])


def gpu_row(data: GpuCheck) -> str | None:
    """Row of a check, in English; None without a GPU."""
    gpu = data.environment.gpu if data.environment else None
    if gpu is None or data.environment is None:
        return None
    t = Translator("en")
    cells = [gpu.name, gpu.compute_capability, gpu.driver_version, data.environment.torch.version]
    day, _, _ = date_text(data.wall_ns, data.utc_offset_s).partition(" ")
    cells += [day, t.message(data.headline)]
    return f"| {' | '.join(plain(cell or t('gpucheck.unknown')) for cell in cells)} |"


def _rows(region: str) -> list[str]:
    """Rows of the existing table, without its two lines of heads."""
    return [line for line in region.splitlines() if line.startswith("| ")][1:]
