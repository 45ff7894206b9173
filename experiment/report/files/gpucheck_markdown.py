"""The GPUs that ``gpucheck`` has seen, as a table between two marks of a Markdown page."""

from __future__ import annotations

from pathlib import Path

from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import read_bounded
from experiment.files.os_errors import writing
from experiment.gpucheck.result import GpuCheck
from experiment.record.log import write_atomic
from experiment.report.facts.texts import date_text
from experiment.report.files.markdown import plain
from experiment.text import Translator
from experiment.text.errors import user_error

BEGIN, END = "<!-- gpucheck: begin -->", "<!-- gpucheck: end -->"
NONE_YET = "No GPU has been checked yet."
_HEADS = (
    "| GPU | compute capability | driver | torch | checked | result |\n|---|---|---|---|---|---|"
)


def write_gpus(path: Path, data: GpuCheck) -> None:
    """Add the GPU of a check to the table of a page, in place of an earlier row of the same GPU.

    Raises:
        UserError: the check saw no GPU; the page lacks the marks, or cannot be read or written.
    """
    row = gpu_row(data)
    if row is None:
        raise user_error("gpucheck.no_gpu_seen")
    if not path.is_file():  # a pipe would be waited for without end
        raise user_error("error.file_unreadable", path=str(path))
    with writing(path):
        page = read_bounded(path, MAX_CONFIG_BYTES).decode("utf-8", errors="replace")
        before, begin, rest = page.partition(BEGIN)
        kept, end, after = rest.partition(END)
        if not begin or not end:
            raise user_error("error.bench.no_marks", path=str(path), begin=BEGIN, end=END)
        write_atomic(
            path, f"{before}{BEGIN}\n\n{gpus_markdown([*_rows(kept), row])}\n\n{END}{after}"
        )


def gpus_markdown(rows: list[str]) -> str:
    """The table; a later row replaces an earlier one of the same GPU."""
    if not rows:
        return NONE_YET
    by_name = {row.split("|")[1]: row for row in rows}
    return "\n".join([_HEADS, *sorted(by_name.values())])


def gpu_row(data: GpuCheck) -> str | None:
    """The row of a check, in English as the page is; None where it saw no GPU."""
    gpu = data.environment.gpu if data.environment else None
    if gpu is None or data.environment is None:
        return None
    t = Translator("en")
    cells = [gpu.name, gpu.compute_capability, gpu.driver_version, data.environment.torch.version]
    day, _, _ = date_text(data.wall_ns, data.utc_offset_s).partition(" ")
    cells += [day, t.message(data.headline)]
    return f"| {' | '.join(plain(cell or t('gpucheck.unknown')) for cell in cells)} |"


def _rows(region: str) -> list[str]:
    """Rows of the table that is there; the first two lines of it are heads."""
    return [line for line in region.splitlines() if line.startswith("| ")][1:]
