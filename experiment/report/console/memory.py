"""Memory lines of the live console: one for each stage of an arm, and one for its peaks.

StageEntered ─ Reading ─ Reading ─ … ─ any other event: print the line
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from experiment.events import Channel, Reading, RunStarted, StageEntered
from experiment.machine.environment import Environment
from experiment.report.console.lines import Console
from experiment.report.facts.texts import clock
from experiment.text import format_bytes

_DEVICE_CHANNELS = (Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO, Channel.SYSTEM)
_HEADS = ("time", "moment", "kv", "process", "device")
_WIDTHS = (8, 22, 10, 10, 10)


class MemoryLines:
    """Collects the readings of a stage and prints them as one line, unless quiet.

    ``started`` and ``environment`` are set when known; they give the clock and the main channel.
    """

    def __init__(self, out: Console) -> None:
        self.started: RunStarted | None = None
        self.environment: Environment | None = None
        self._out = out
        self._stage: tuple[StageEntered, dict[Channel, Reading]] | None = None
        self._own: dict[
            Channel, Reading
        ] = {}  # by the arm itself, which sends them before the stage
        self._largest: dict[Channel, Reading] = {}

    def begin_arm(self) -> None:
        """Reset for the next arm."""
        self._own, self._largest = {}, {}

    def heads(self) -> None:
        """Print the heads of the columns."""
        self._line(*(self._out.t(f"console.head_{head}") for head in _HEADS), style="bold")

    def enter(self, stage: StageEntered) -> None:
        """Begin a stage; :meth:`flush` prints its line."""
        self._stage = (stage, self._own)
        self._own = {}

    def read(self, reading: Reading) -> None:
        """Add a reading of a stage, or a sample between stages."""
        largest = self._largest.get(reading.channel)
        if reading.bytes is not None and reading.bytes > ((largest and largest.bytes) or -1):
            self._largest[reading.channel] = reading
        if reading.stage is None:
            return
        if self._stage and self._stage[0].stage is reading.stage:
            self._stage[1][reading.channel] = reading
        else:
            self.flush()
            self._own[reading.channel] = reading

    def flush(self) -> None:
        """Print the line of the current stage."""
        if self._stage is None:
            return
        stage, readings = self._stage
        self._stage = None
        if self.started is None:
            return
        name = self._out.t(f"stage.{stage.stage.value}", request=stage.request)
        self._line(clock(self.started, stage.t_ns), name, *self._sizes(readings))

    def largest(self) -> None:
        """Print the maximum of each channel over all samples and readings of the arm."""
        self._line("", self._out.t("stage.maximum"), *self._sizes(self._largest))

    def _sizes(self, readings: dict[Channel, Reading]) -> tuple[str, str, str]:
        """Sizes of the KV cache, the processes (main channel) and the device."""
        primary = self.environment.primary.channel if self.environment else Channel.RSS
        sizes = {channel: reading.bytes for channel, reading in readings.items()}
        device = (sizes.get(channel) for channel in _DEVICE_CHANNELS)
        known = next((size for size in device if size is not None), None)
        return (
            format_bytes(sizes.get(Channel.TENSORS)),
            format_bytes(sizes.get(primary)),
            format_bytes(known),
        )

    def _line(self, *cells: str, style: str = "") -> None:
        if self._out.quiet:
            return
        parts = [
            Text(cell + " " * room if index < 2 else " " * room + cell)
            for index, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
            for room in [max(0, width - cell_len(cell))]
        ]
        # A narrow console continues below; sizes are never cut.
        self._out.paragraph(Text.assemble(Text("  ").join([Text(), *parts]), style=style))
