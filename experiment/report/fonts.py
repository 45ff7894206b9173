"""Which font can write Chinese in a plot, and what to do where none can."""

from __future__ import annotations

from matplotlib import font_manager

LATIN = "DejaVu Sans"  # comes with matplotlib
CHINESE = (
    "Noto Sans CJK SC",
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


def chinese_font() -> str | None:
    """The first installed font that writes simplified Chinese."""
    installed = set(font_manager.fontManager.get_font_names())
    return next((name for name in CHINESE if name in installed), None)


def plot_language(lang: str) -> tuple[str, list[str], bool]:
    """Language of a plot, its fonts, and whether it had to fall back to English."""
    if lang != "zh":
        return lang, [LATIN], False
    font = chinese_font()
    if font is None:
        return "en", [LATIN], True
    return lang, [LATIN, font], False
