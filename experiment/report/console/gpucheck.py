"""Console of ``gpucheck``: a line for each finished part, then the paths of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from experiment.gpucheck.parts import Part
from experiment.gpucheck.result import PAGE, GpuCheck, PartResult
from experiment.report.console.lines import Console
from experiment.report.console.wrap import fold
from experiment.report.facts.texts import ASCII
from experiment.report.pages.gpucheck import about_cpu, verdict_text
from experiment.text import DASH, format_seconds

_STYLES = {"pass": "green", "fail": "bold red", "skipped": "dim"}
_GAP = "  "
_SECONDS = 7
_MIN_WIDTH = 20  # minimum cells of a reason


class GpuCheckConsole(Console):
    """Prints the parts in columns: name, verdict, seconds, reason."""

    @contextmanager
    def progress(
        self, parts: Sequence[Part], minutes: float
    ) -> Iterator[Callable[[PartResult], None]]:
        """Return a function that prints a finished part; a terminal also shows progress."""
        self.console.print(Text(self.t("gpucheck.title"), style="bold cyan"))
        self.paragraph(self.t("gpucheck.about_limit", minutes=minutes), "dim")
        names = [self.t(f"gpucheck.part_{part.name}") for part in parts]
        first, *others = names
        with self.bar(first, len(parts)) as advance:

            def ended(part: PartResult) -> None:
                self._line(part, self._widest(names))
                advance(others.pop(0) if others else "")

            yield ended

    def show_end(self, data: GpuCheck, directory: Path, archive: Path) -> None:
        """Print the overall verdict, and the paths of page and archive."""
        style = "bold green" if data.is_complete else "bold yellow"
        failed = any(part.verdict == "fail" for part in data.parts)
        self.console.print()
        headline = self.t.message(data.headline)
        self.paragraph(headline, "bold red" if failed else style)
        if data.device == "cpu":
            self.paragraph(about_cpu(self.t, data))
        self.written(directory / PAGE)
        self.console.print(self.t("gpucheck.archive", path=str(archive)), soft_wrap=True)

    def _line(self, part: PartResult, name_cells: int) -> None:
        t = self.t
        words = [t(f"gpucheck.verdict_{verdict}") for verdict in _STYLES]
        ran = [t("gpucheck.verdict_interpreted", verdict=word) for word in words[:2]]
        verdict_cells = self._widest([*words, *ran])
        seconds = DASH if part.seconds is None else format_seconds(part.seconds)
        head = Text.assemble(
            set_cell_size(t(f"gpucheck.part_{part.part}"), name_cells), _GAP,
            (set_cell_size(verdict_text(t, part), verdict_cells), _STYLES[part.verdict]), _GAP,
            _plain(self.console.options.ascii_only, seconds).rjust(_SECONDS), _GAP,
        )  # fmt: skip
        room = max(_MIN_WIDTH, self.console.width - cell_len(head.plain))
        first, *others = fold(Text(t.message(part.reason)), room)
        self.console.print(Text.assemble(head, first), soft_wrap=True)
        for line in others:
            self.console.print(Text(" " * cell_len(head.plain)) + line, soft_wrap=True)

    @staticmethod
    def _widest(texts: Iterator[str] | Sequence[str]) -> int:
        return max(map(cell_len, texts))


def _plain(ascii_only: bool, text: str) -> str:
    return text.translate(ASCII) if ascii_only else text
