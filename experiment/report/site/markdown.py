"""Markdown of the repository as HTML of the site.

A link to ``x.md#a`` leads to ``x.html#a``, one to the Chinese ``x.zh.md#a`` to
``x.html?lang=zh#zh-a``: both texts are in one page, so headings of the Chinese one begin with
``zh-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

_MARKDOWN = MarkdownIt("commonmark").enable("table")
# The line with which a page and its translation name each other.
_LANGUAGES = re.compile(r"(\[?English\]?(\([^)]*\))?) \| (\[?中文\]?(\([^)]*\))?)")

_SENTENCE = re.compile(r"(?<=[.:])\s|(?<=[。：])")


@dataclass(slots=True)
class Page:
    """A page in one language.

    Attributes:
        title: of its first heading; ``lead``: first sentence of its first paragraph.
        links: relative paths that it links to, as in the Markdown.
    """

    html: Markup
    title: str
    lead: str = ""
    links: list[str] = field(default_factory=list)


def page_of(text: str, lang: str) -> Page:
    """Render a page of the repository, which is trusted: HTML in it is kept."""
    tokens = [*_without_language_line(_MARKDOWN.parse(text))]
    prefix = "" if lang == "en" else f"{lang}-"
    title, lead, links, taken, heading = "", "", list[str](), dict[str, int](), ""
    for token, inline in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and inline is not None:
            name = _text(inline)
            heading = prefix + _anchor(name, taken)
            token.attrSet("id", heading)
            title = title or name
        elif token.type == "paragraph_open" and inline is not None:
            lead = lead or _SENTENCE.split(_text(inline))[0]
        elif token.type in ("fence", "code_block"):  # it may be wider than a telephone
            code = escape(token.content)
            _write(token, f'<pre class="code" tabindex="0">{code}</pre>\n')
        elif token.type == "table_open":
            group = f'class="scroll" tabindex="0" role="group" aria-labelledby="{heading}"'
            _write(token, f"<div {group}><table>\n")
        elif token.type == "table_close":
            _write(token, "</table></div>\n")
        elif token.attrs.pop("style", "") == "text-align:right":  # of a cell; no style is allowed
            token.attrSet("class", "right")
        for link in token.children or ():
            links += _turn(link, prefix)
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return Page(Markup(html), title, lead, links)  # noqa: S704 - of the repository


def _write(token: Token, html: str) -> None:
    """Let a token stand for this HTML."""
    token.type, token.content = "html_block", html


def _without_language_line(tokens: list[Token]) -> Iterator[Token]:
    """Leave out the paragraph that links to the page's other language."""
    is_line = [t.type == "inline" and bool(_LANGUAGES.fullmatch(t.content)) for t in tokens]
    near = zip([*is_line[1:], False], is_line, [False, *is_line[:-1]], strict=True)
    return (token for token, hits in zip(tokens, near, strict=True) if not any(hits))


def _turn(token: Token, prefix: str) -> list[str]:
    """Let a link lead within the site; return the path that it names, if any."""
    name = "src" if token.type == "image" else "href"
    target = token.attrs.get(name)
    if not isinstance(target, str) or ":" in target:
        return []
    path, sharp, anchor = target.partition("#")
    query = ""
    if path.endswith(".zh.md"):
        html, query, prefix = path.removesuffix(".zh.md") + ".html", "?lang=zh", "zh-"
    elif path.endswith(".md"):
        html, prefix = path.removesuffix(".md") + ".html", ""
    else:
        html = path
    token.attrSet(name, html + query + (sharp + prefix + anchor if sharp else ""))
    return [unquote(path)] if path else []


def _text(inline: Token) -> str:
    """Text of a heading or paragraph, without markup."""
    return "".join(
        " " if child.type == "softbreak" else child.content for child in inline.children or ()
    )


def _anchor(title: str, taken: dict[str, int]) -> str:
    """GitHub's id of a heading; a repeated one has a number."""
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_")
    name = kept.strip().replace(" ", "-")
    taken[name] = again = taken.get(name, -1) + 1
    return f"{name}-{again}" if again else name
