"""Text in both languages at once, as the HTML report carries it."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from experiment.report.facts.data_key import Keyed
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, arm_message, message

# A number and its unit belong on one line.
UNIT = re.compile(r"(?<=\d) (?=%|×|m?s\b|B\b|[KMG]iB\b)")
# So does an option: browsers break lines behind its hyphens.
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


class Bilingual:
    """Renders every text as one ``<span lang>`` per language, the language of the run first.

    A key that no catalogue holds is shown as it is: a record of another version must still open.
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
        """A text with its path, in both languages if it has words; None: it has none."""
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
        """What a template shows of a value: text as it is, messages and numbers as markup."""
        if isinstance(value, Keyed):
            return self.at(value.text, value.key)
        if isinstance(value, str) and not isinstance(value, Markup):
            return UNIT.sub("\u00a0", value)
        return self.message(value) if isinstance(value, Message) else value

    def plain(self, lang: str, text: Message) -> str:
        """One rendering of a message, not escaped."""
        translator = self._translators[lang]
        try:
            return UNIT.sub("\u00a0", translator.message(text))
        except (KeyError, ValueError, IndexError):
            return f"{text.key} {text.params}" if text.params else text.key

    def has(self, key: str) -> bool:
        """Whether the catalogues hold ``key``."""
        return self._translators[self.lang].has(key)

    def arm(self, arm: str) -> Markup:
        """Name of an arm."""
        named = arm_message(arm)
        return self.message(named) if self.has(named.key) else escape(arm)

    def titles(self, key: str, *behind: str) -> dict[str, str]:
        """What a page is called in each language, with what stands behind it in all of them."""
        return {lang: ", ".join([self.text(lang, key), *behind]) for lang in self.order}

    def text(self, lang: str, key: str, **params: Any) -> str:
        """One rendering of a key."""
        return self.plain(lang, message(key, **params))


def unbroken(text: str) -> Markup:
    """A text, escaped, whose options such as ``--max-length`` stay on one line."""
    option = Markup('<span class="option">{}</span>').format
    pieces = enumerate(_OPTION.split(text))
    return Markup("").join(option(piece) if at % 2 else escape(piece) for at, piece in pieces)
