"""Which texts of the catalogues code can ask for, found in its own words.

    t("plan.title")                    the key itself
    f"claim.{claim.id}.title"          claim. and a word and .title
    "report.unknown." ~ status         the same in a template
    f"{key}_near"                      a key that is asked for, and _near
    teller.say("choose")               player.choose, in the player's script

What stands for ``{claim.id}`` must be a word that code, a template or a shipped config holds: a
string, or the name of a field. A text under a key that no such pattern gives, or that needs a word
that nobody says, is dead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

HOLE = "\0"
QUOTED = r"\"[^\"\n]*\"|'[^'\n]*'"
# How a key goes on that begins with another one.
SUFFIX = re.compile(rf"{HOLE}([._][a-z_]+)")
# Put together in two goes: of a claim's parts.
TWICE = (f"claims.part.swing_{HOLE}",)
JINJA = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
# Words are written with _ in keys; names of arms and policies have other signs as well.
SIGNS = re.compile(r"[^a-z0-9]+")


class Sources:
    """What the product's code and templates say, of all files below some folders."""

    def __init__(self, *folders: Path) -> None:
        self.literal: set[str] = set()
        self.patterns = set(TWICE)
        self.suffixes: set[str] = set()
        self.words: set[str] = set()
        for folder in folders:
            for path in folder.rglob("*.py"):
                self._python(ast.parse(path.read_text(encoding="utf-8")))
            for path in folder.rglob("*.j2"):
                self._template(path.read_text(encoding="utf-8"))
            for path in folder.rglob("player*.js"):
                self._player(path.read_text(encoding="utf-8"))
            for path in folder.glob("*.toml"):
                self.words.update(re.findall(r"\"(\w+)\"", path.read_text(encoding="utf-8")))

    def asks_for(self, key: str) -> bool:
        """Whether code names ``key``, or puts it together from words that it has."""
        shorter = (key.removesuffix(end) for end in self.suffixes if key.endswith(end))
        return self._gives(key) or any(map(self._gives, shorter))

    def _gives(self, key: str) -> bool:
        return key in self.literal or any(
            matches(key, pattern.split(HOLE), self.words) for pattern in self.patterns
        )

    def _add(self, parts: Sequence[str | None]) -> None:
        """A string put together from constants, and from what is not known (None)."""
        text = "".join(HOLE if part is None else part for part in parts)
        if suffix := SUFFIX.fullmatch(text):
            self.suffixes.add(suffix[1])
        elif HOLE in text and "." in text and not text.startswith(HOLE):
            self.patterns.add(text)

    def _say(self, text: str) -> None:
        self.literal.add(text)
        if len(text) < 60:
            self.words |= {text, as_word(text)}

    def _python(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._say(node.value)
            elif isinstance(node, ast.JoinedStr):
                self._add([value_of(part) for part in node.values])
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                self._add([value_of(node.left), value_of(node.right)])
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.words.add(node.target.id)
            elif isinstance(node, ast.keyword) and node.arg:
                self.words.add(node.arg)

    def _template(self, text: str) -> None:
        for code in JINJA.findall(text):
            for quoted in re.findall(QUOTED, code):
                self._say(quoted[1:-1])
            for chain in re.findall(rf"(?:{QUOTED})(?:\s*~\s*(?:{QUOTED}|[^~,()\"']+))+", code):
                pieces = [piece.strip() for piece in chain.split("~")]
                self._add([p[1:-1] if re.fullmatch(QUOTED, p) else None for p in pieces])

    def _player(self, text: str) -> None:
        """Its script is given the texts under ``player.`` and names them without that."""
        for quoted, goes_on in re.findall(r"\"([a-z_.]+)\"(\s*\+)?", text):
            self.words.add(quoted)
            if goes_on:
                self._add(["player.", quoted, None])
            else:
                self.literal.add(f"player.{quoted}")


def value_of(node: ast.AST) -> str | None:
    """The text of a constant; None for anything else."""
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if constant else None  # type: ignore[attr-defined]


@cache
def as_word(text: str) -> str:
    """A word as a key has it: ``fcfs+prefix`` is fcfs_prefix there."""
    return SIGNS.sub("_", text.lower()).strip("_")


def matches(key: str, parts: Sequence[str], words: set[str]) -> bool:
    """Whether words between ``parts`` give ``key``."""
    if not key.startswith(parts[0]):
        return False
    rest = key[len(parts[0]) :]
    if len(parts) == 1:
        return not rest
    ends = (end for end in range(1, len(rest) + 1) if rest[:end] in words)
    return any(matches(rest[end:], parts[1:], words) for end in ends)
