"""Find a Chinese font for plots, or fall back to English."""

from __future__ import annotations

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
