"""Text in both languages, for HTML reports."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from experiment.report.facts.texts import Keyed
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, arm_message, message

# No line break between number and unit.
UNIT = re.compile(r"(?<=\d) (?=%|×|m?s\b|B\b|[KMG]iB\b)")
# No line break within an option, after whose hyphens browsers break.
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


class Bilingual:
    """Renders every text as one ``<span lang>`` per language, that of the run first.

    Unknown keys are shown as they are, so that records of other versions can be opened.
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.order = (lang, *(other for other in LANGUAGES if other != lang))
        self._translators = {name: Translator(name) for name in LANGUAGES}

    def __call__(self, key: str, **params: Any) -> Markup:
        """Both renderings of a key, as escaped markup."""
        return self.message(message(key, **params))

    def message(self, text: Message) -> Markup:
        """Both renderings of a message, as escaped markup."""
        return Markup("").join(
            Markup('<span lang="{}">{}</span>').format(lang, unbroken(self.plain(lang, text)))
            for lang in self.order
        )

    def at(self, text: str | Message, key: str | None) -> Any:
        """A text with its data path, a message in both languages; ``key`` None: no path."""
        if key is None:
            return self.words(text)
        about = Markup(' data-key="{}"').format(key)
        if isinstance(text, str):
            return Markup("<span{}>{}</span>").format(about, UNIT.sub("\u00a0", text))
        return Markup("").join(
            Markup('<span lang="{}"{}>{}</span>').format(
                lang, about, unbroken(self.plain(lang, text))
            )
            for lang in self.order
        )

    def words(self, value: Any) -> Any:
        """Render a value for a template: text unchanged, messages and numbers as markup."""
        if isinstance(value, Keyed):
            return self.at(value.text, value.key)
        if isinstance(value, str) and not isinstance(value, Markup):
            return UNIT.sub("\u00a0", value)
        return self.message(value) if isinstance(value, Message) else value

    def plain(self, lang: str, text: Message) -> str:
        """A message in one language, not escaped."""
        translator = self._translators[lang]
        try:
            return UNIT.sub("\u00a0", translator.message(text))
        except (KeyError, ValueError, IndexError):
            return f"{text.key} {text.params}" if text.params else text.key

    def has(self, key: str) -> bool:
        """Whether the catalogues have ``key``."""
        return self._translators[self.lang].has(key)

    def arm(self, arm: str) -> Markup:
        """Name of an arm."""
        named = arm_message(arm)
        return self.message(named) if self.has(named.key) else escape(arm)

    def titles(self, key: str, *behind: str) -> dict[str, str]:
        """Title of a page by language, with a common suffix."""
        return {lang: ", ".join([self.text(lang, key), *behind]) for lang in self.order}

    def text(self, lang: str, key: str, **params: Any) -> str:
        """The text of a key in one language."""
        return self.plain(lang, message(key, **params))


def unbroken(text: str) -> Markup:
    """Escape a text, without line breaks in options such as ``--max-length``."""
    option = Markup('<span class="option">{}</span>').format
    pieces = enumerate(_OPTION.split(text))
    return Markup("").join(option(piece) if at % 2 else escape(piece) for at, piece in pieces)
