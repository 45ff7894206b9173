"""Templates, styles and scripts of all pages.

A page is self-contained: everything is embedded, and a content security policy forbids loading
anything. Prompts and generated text are untrusted, and are always escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from experiment.report.facts import values
from experiment.report.facts.bilingual import UNIT, Bilingual, unbroken
from experiment.report.facts.texts import KeyedText, Words
from experiment.report.html.lines import line_swatch
from experiment.report.html.svg import fill, swatch
from experiment.text import format_bytes, readable

_NOTHING, _PLAIN, _IN_ONE = Markup(""), Markup("{}"), Markup("<span>{}</span>")


@cache
def templates(lang: str) -> jinja2.Environment:
    """Templates of this package for pages in ``lang`` first; the other language is there, too.

    All values are escaped, including control characters. A template is compiled once.
    """
    b = Bilingual(lang)
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("experiment.report", "templates"),
        autoescape=True,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.globals.update(line_swatch=line_swatch, at=b.at)
    env.globals.update(t=b, arm=b.arm, has=b.has, swatch=swatch, paint=fill)
    env.filters.update(
        words=b.words,
        unbroken=unbroken,
        size=format_bytes,
        percent=values.percent,
        count=values.count,
        decimal=values.decimal,
        rate=values.rate,
        seconds=values.seconds,
        text=text_markup,
        lines=_lines,
        cell=_cell,
    )
    return env


def _readable(value: Any) -> Any:
    if isinstance(value, Markup):
        return Markup(readable(value))  # noqa: S704 - was escaped before
    return readable(value) if isinstance(value, str) else value


def page_assets(
    *scripts: str, styles: tuple[str, ...] = (), stacked: Markup = _NOTHING
) -> dict[str, Markup]:
    """Common style and scripts, those of this page, and the content security policy.

    The policy allows only these, by digest, and no fetching. ``stacked`` are the rules of
    :func:`column_heads`.
    """
    style = Markup("\n").join([*(_asset(name) for name in ("report.css", *styles)), stacked])
    script = Markup("\n").join(_asset(name) for name in ("report.js", *scripts))
    early = _asset("early.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; "
        f"script-src {_digest(early)} {_digest(script)}; base-uri 'none'; form-action 'none'"
    )
    return {
        "style": style,
        "script": script,
        "early_script": early,
        "content_policy": Markup(policy),  # noqa: S704 - digests of files of ours
    }


def column_heads(b: Bilingual, **heads: Sequence[Words]) -> Markup:
    """CSS rules that show a column's head before its cells, which are stacked on narrow screens.

    ``heads`` are the heads after the first column of tables with the class ``by-<name>``.
    """
    rules = [
        f'html[lang="{lang}"] .by-{name} td:nth-child({place}):not(.nobody)::before'
        f'{{content:"{_css_text(head if isinstance(head, str) else b.plain(lang, head))}"}}'
        for name, columns in heads.items()
        for place, head in enumerate(columns, 2)
        for lang in b.order
    ]
    return Markup("@media screen and (max-width:44rem){\n%s\n}") % Markup("\n".join(rules))  # noqa: S704 - texts are escaped


def _css_text(text: str) -> str:
    """Escape a text for a CSS string: all but letters, digits and spaces."""
    return re.sub(r"[^\w ]", lambda sign: f"\\{ord(sign[0]):x} ", text)


def _digest(text: str) -> str:
    """Source expression of a content security policy for the content of an element."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(name: str) -> Markup:
    """A style sheet or script of this package."""
    path = resources.files("experiment.report").joinpath("templates", name)
    return Markup(path.read_text(encoding="utf-8"))  # noqa: S704 - a file of ours


def _cell(text: str) -> Markup:
    """A cell with text in brackets and further lines in small letters."""
    head, behind, tail = text.partition(" (")
    if "\n" in text or not (head and behind and text.endswith(")") and "(" not in tail):
        return _lines(text)
    # One element, because a cell may be a grid.
    inside = Markup("{} {}").format(_unbroken(head), _small(behind[1:] + tail))
    return _keyed(text, inside, _IN_ONE)


def _lines(text: str) -> Markup:
    """The first line, and further lines in small letters."""
    first, *others = text.split("\n")
    return _keyed(text, _unbroken(first)) + Markup("").join(map(_small, others))


def text_markup(text: str) -> Markup:
    """A text in one language, with its path if it has one."""
    return _keyed(text, _unbroken(text))


def _keyed(text: str, inside: Markup, other: Markup = _PLAIN) -> Markup:
    """Markup of a text with its path; ``other`` is the form without path."""
    if isinstance(text, KeyedText):
        return Markup('<span data-key="{}">{}</span>').format(text.key, inside)
    return other.format(inside)


def _unbroken(text: str) -> Markup:
    """Text without line breaks between numbers and units."""
    return unbroken(UNIT.sub("\u00a0", text))


def _small(text: str) -> Markup:
    return Markup("<small>{}</small>").format(_unbroken(text))
