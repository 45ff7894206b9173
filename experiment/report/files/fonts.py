"""Which font can write Chinese in a plot, and what to do where none can."""

from __future__ import annotations

import contextlib
from pathlib import Path

LATIN = "DejaVu Sans"  # comes with matplotlib
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",  # the same collection under the name of its first face
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
# Beginnings of the files that hold them, in lower case and without separators.
_FILES = (
    "notosanscjk", "notosanssc", "sourcehansans", "pingfang", "hiraginosansgb", "msyh", "wqy",
    "simhei", "stheiti", "droidsansfallback", "arialunicode",
)  # fmt: skip


def chinese_font() -> str | None:
    """The first installed font that writes simplified Chinese."""
    found = _known()
    if found is None:
        # matplotlib keeps its list of fonts in a cache that does not see later installations.
        _look_again()
        found = _known()
    return found


def plot_language(lang: str) -> tuple[str, list[str], bool]:
    """Language of a plot, its fonts, and whether it had to fall back to English."""
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


def _look_again() -> None:
    from matplotlib import font_manager

    for path in font_manager.findSystemFonts():
        name = Path(path).stem.lower().replace("-", "").replace("_", "").replace(" ", "")
        if name.startswith(_FILES):
            with contextlib.suppress(OSError, RuntimeError):  # a damaged file is no font
                font_manager.fontManager.addfont(path)
