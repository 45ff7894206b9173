"""Charts of a run as image files, drawn by matplotlib in the language of the run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from experiment.analysis.results import ArmResult, Results, common_bytes
from experiment.report.facts.series import Series
from experiment.report.facts.texts import arm_name
from experiment.report.html.svg import binary_ticks
from experiment.text import Translator, format_bytes, readable
from kvsim.accounting.slots import ALLOCATED_STATES, OTHER_STATES, SlotState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


import contextlib
from pathlib import Path

LATIN = "DejaVu Sans"  # included in matplotlib
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",  # the collection by the name of its first face
    "Source Han Sans SC",
    "Source Han Sans CN",
    "Noto Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "SimHei",
    "Heiti SC",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)
# Prefixes of their files, in lower case and without separators.
_FILES = (
    "notosanscjk", "notosanssc", "sourcehansans", "pingfang", "hiraginosansgb", "msyh", "wqy",
    "simhei", "stheiti", "droidsansfallback", "arialunicode",
)  # fmt: skip


def chinese_font() -> str | None:
    """The first installed font with simplified Chinese; None if there is none."""
    font = _known()
    if font is None:
        # matplotlib's cached list of fonts lacks later installations.
        _refresh_fonts()
        font = _known()
    return font


def plot_language(lang: str) -> tuple[str, list[str], bool]:
    """Language of a plot, its fonts, and whether English is a fallback."""
    if lang != "zh":
        return lang, [LATIN], False
    font = chinese_font()
    if font is None:
        return "en", [LATIN], True
    return lang, [LATIN, font], False


def _known() -> str | None:
    from matplotlib import font_manager  # late, as in experiment.report.files.plots

    installed = set(font_manager.fontManager.get_font_names())
    return next((name for name in CHINESE if name in installed), None)


def _refresh_fonts() -> None:
    from matplotlib import font_manager

    for path in font_manager.findSystemFonts():
        name = Path(path).stem.lower().replace("-", "").replace("_", "").replace(" ", "")
        if name.startswith(_FILES):
            with contextlib.suppress(OSError, RuntimeError):  # a damaged file
                font_manager.fontManager.addfont(path)


# Okabe and Ito's colours, distinguishable with any colour vision, and hatches for grey print.
PAINT: dict[str, tuple[str, str]] = {
    SlotState.LIVE: ("#0072B2", ""),
    SlotState.PADDING: ("#CC79A7", ".."),
    SlotState.FINISHED: ("#D55E00", "xx"),
    SlotState.UNWRITTEN: ("#E69F00", "//"),
    SlotState.ROUNDING: ("#F0E442", "--"),
    SlotState.CACHED: ("#009E73", "||"),
    SlotState.HOLE: ("#56B4E9", "++"),
    SlotState.ENGINE: ("#999999", "xx"),
    SlotState.WATERMARK: ("#DDDDDD", "\\\\"),
    SlotState.FREE: ("#FFFFFF", ""),
}
_INK = "#22252a"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pagedkv-lab",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "axes.edgecolor": "#8a8d92",
    "axes.labelcolor": _INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "font.size": 9.5,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_MAX_ROWS = 1000
# Formats, and metadata to omit, so that files are reproducible.
_SUFFIXES = {"svg": ("Date", "Creator"), "png": ("Software",)}
_MAX_MOMENTS = 24


@dataclass(frozen=True, slots=True)
class Pen:
    """Language and fonts of a plot; ``fallback``: not the requested language."""

    t: Translator
    fonts: list[str]
    fallback: bool


def draw_plots(
    series: Callable[[], Sequence[Series]], results: Results, lang: str
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name of each file and the function that draws it, which may call ``series``."""
    for name, draw in (
        ("slots-over-time", lambda pen: _over_time(pen, series())),
        ("slots-at-peak", lambda pen: _at_peak(pen, results.arms)),
    ):
        files = cache(partial(_render, draw, lang))
        for suffix in _SUFFIXES:
            yield f"{name}.{suffix}", partial(_of, files, suffix)


def _of(files: Callable[[], dict[str, bytes]], suffix: str) -> bytes:
    return files()[suffix]


def _render(draw: Callable[[Pen], Figure], lang: str) -> dict[str, bytes]:
    """Draw a figure once; return it in each format."""
    import matplotlib as mpl  # late: slow to import

    language, fonts, fallback = plot_language(lang)
    # Few Chinese fonts have a bold face, and a title should not mix weights.
    weight = "bold" if len(fonts) == 1 else "normal"
    weights = {"axes.titleweight": weight, "figure.titleweight": weight}
    with mpl.rc_context({**_STYLE, **weights, "font.family": fonts}):
        figure = draw(Pen(Translator(language), fonts, fallback))
        if fallback:
            note = Translator("en")("plot.no_chinese_font")
            figure.text(0.99, 0.005, note, ha="right", va="bottom", fontsize=7.5)
        images = {}
        for suffix, blank in _SUFFIXES.items():
            out = io.BytesIO()
            figure.savefig(out, format=suffix, dpi=160, metadata=dict.fromkeys(blank))
            images[suffix] = out.getvalue()
        images["svg"] = readable(images["svg"].decode()).encode()
        return images


def _over_time(pen: Pen, series: Sequence[Series]) -> Figure:
    count = max(1, len(series))
    figure = _figure(figsize=(9.2, 1.1 + 1.75 * count))
    figure.suptitle(pen.t("plot.time.title"), x=0.01, ha="left")
    axes = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    if not series:
        axes[0].text(0.5, 0.5, pen.t("report.nothing"), ha="center", transform=axes[0].transAxes)
    top = max((row.reserved for one in series for row in one.rows), default=1)
    for axis, one in zip(axes, series, strict=False):
        _panel(pen, axis, one.thinned(_MAX_ROWS), top)
    marked = any(one.marks for one in series)
    axes[-1].set_xlabel(pen.t("chart.time.axis" if marked else "chart.life.axis"))
    if series:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=4)
    return figure


def _figure(figsize: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=figsize, layout="constrained")


def _panel(pen: Pen, axis: Any, one: Series, top: float) -> None:
    t = pen.t
    rows = [*one.rows, one.rows[-1]]  # a value for each edge
    live = [row.live for row in rows]
    allocated = [row.allocated for row in rows]
    reserved = [row.reserved for row in rows]
    colour, _ = PAINT[SlotState.LIVE]
    waste, hatch = PAINT[SlotState.UNWRITTEN]
    axis.fill_between(
        one.edges, live, step="post", color=colour, linewidth=0, label=t("term.live.name")
    )
    axis.fill_between(
        one.edges, live, allocated, step="post", facecolor=waste, edgecolor=_INK, hatch=hatch,
        linewidth=0, label=t("term.wasted.name"),
    )  # fmt: skip
    axis.step(
        one.edges, allocated, where="post", color=_INK, linewidth=0.9,
        label=t("term.allocated.name"),
    )  # fmt: skip
    axis.step(
        one.edges, reserved, where="post", color=_INK, linewidth=1.2, linestyle=(0, (4, 2)),
        label=t("term.reserved.name"),
    )  # fmt: skip
    for mark in one.marks[:_MAX_MOMENTS]:
        axis.axvline(mark.seconds, color="#8a8d92", linewidth=0.5, linestyle=":")
    axis.set_title(arm_name(t, one.arm))
    axis.set_ylim(0, top * 1.06)
    axis.set_yticks(binary_ticks(top, 4))
    axis.set_ylabel(t("chart.slots"))
    _bytes_axis(axis, one.slot_bytes, vertical=True)


def _bytes_axis(axis: Any, slot_bytes: float, vertical: bool) -> None:
    """Add ticks in bytes on the other side."""
    side = axis.secondary_yaxis("right") if vertical else axis.secondary_xaxis("top")
    ticks = axis.get_yticks() if vertical else axis.get_xticks()
    side.set_ticks(ticks, [format_bytes(float(tick) * slot_bytes) for tick in ticks])
    side.tick_params(labelsize=8.5)


def _at_peak(pen: Pen, arms: Sequence[ArmResult]) -> Figure:
    shown = [arm for arm in arms if arm.peak]
    figure = _figure(figsize=(9.2, 1.9 + 0.62 * max(1, len(shown))))
    figure.suptitle(pen.t("plot.peak.title"), x=0.01, ha="left")
    axis = figure.subplots()
    if not shown:
        axis.text(0.5, 0.5, pen.t("report.nothing"), ha="center", transform=axis.transAxes)
        return figure
    states = [s for s in (*ALLOCATED_STATES, *OTHER_STATES) if _largest(shown, s)]
    starts = [0.0] * len(shown)
    for state in states:
        widths = [getattr(arm.peak, state.value) for arm in shown]
        colour, hatch = PAINT[state]
        axis.barh(
            range(len(shown)), widths, left=starts, height=0.58, color=colour, hatch=hatch,
            edgecolor=_INK, linewidth=0.5, label=pen.t(f"term.{state.value}.name"),
        )  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _brackets(pen.t, axis, shown)
    _finish_peak(pen, figure, axis, shown)
    return figure


def _finish_peak(pen: Pen, figure: Figure, axis: Any, shown: Sequence[ArmResult]) -> None:
    top = max(arm.peak.reserved for arm in shown if arm.peak)
    axis.set_yticks(range(len(shown)), [arm_name(pen.t, arm.arm) for arm in shown])
    axis.invert_yaxis()
    axis.set_xlim(0, top * 1.02)
    axis.set_xticks(binary_ticks(top, 4))
    axis.set_xlabel(pen.t("chart.slots"))
    slot_bytes = common_bytes(shown)
    if slot_bytes:
        _bytes_axis(axis, slot_bytes, vertical=False)
    figure.legend(loc="outside lower left", ncols=5)


def _largest(arms: Sequence[ArmResult], state: SlotState) -> float:
    return max((getattr(arm.peak, state.value) for arm in arms), default=0.0)


def _brackets(t: Translator, axis: Any, arms: Sequence[ArmResult]) -> None:
    """Mark the allocated part of each bar by a thick line."""
    for index, arm in enumerate(arms):
        if arm.peak and arm.peak.allocated:
            axis.plot(
                [0, arm.peak.allocated], [index + 0.37] * 2, color=_INK, linewidth=2.2,
                solid_capstyle="butt", label=None if index else t("term.allocated.name"),
            )  # fmt: skip
