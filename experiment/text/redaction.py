"""What a record does not keep: the home directory, names, secrets of the environment.

A record may be sent on. The texts in its events are cleaned before they are encoded, so that
numbers and encoded bytes stay as they are; logs of processes are cleaned as a whole:

    home directory       ~
    user and host name   $USER $HOST    as whole parts of paths (see ``text.personal_names``)
                         <user> <host>  as words of logs and failures, which libraries write
    secret variables     ***    values of HF_TOKEN, API_KEY and the like, of 6 characters or more
    user and password    nothing    of any URL; such a password elsewhere is ***
    tokens of services   ***    by their form, such as hf_ and 20 characters

Values that consist of up to three common words (``password``, ``float32``) are no secrets:
replacing them would make a record unreadable.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from experiment.text import URL_USER, catalogue
from experiment.text.personal_names import (
    COMMON,
    ROOTED,
    host_names,
    marks,
    part_of_path,
    user_names,
)
from kvsim.files import whole_file

_SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|(?<!^OLD)(?<!^)PWD|(^|_)(PAT|AUTH))$"
    r"|(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)(_|$)"
)
_URL_PASSWORD = re.compile(r"(?:^|//)[^\s/@:]*:([^\s/]+)@")
# How tokens of services begin, and what follows.
_TOKENS = {
    "hf_": "[A-Za-z0-9]{20}", "ghp_": "[A-Za-z0-9]{20}", "gho_": "[A-Za-z0-9]{20}",
    "ghs_": "[A-Za-z0-9]{20}", "github_pat_": r"\w{20}", "glpat-": r"[\w-]{20}",
    "sk-": r"[\w-]{20}", "AKIA": "[A-Z0-9]{16}", "xox": r"[a-z]-[\w-]{10}",
    "eyJ": r"[\w-]{17}\.eyJ",
}  # fmt: skip
_LEAST = 6  # shorter values are found in any text
_FEW_WORDS = re.compile(r"[a-z]{2,}(?:[-_. ]?(?:[a-z]{2,}|\d{1,2})){0,2}")
_LEAST_WORD = 4  # shorter names are words of any log
_PIECE = 1 << 20
# A text that is looked for, the pattern of where it counts, and what stands for it.
Told = tuple[str, str, str]


def cleaner() -> Callable[[str], str]:
    """Takes the home directory, names in paths and secrets, as set now, out of texts."""
    secrets = [(text, _pattern(text), "***") for text in _secrets(os.environ)]
    tokens = [(begin, rf"(?<!\w){begin}{more}[\w.-]*", "***") for begin, more in _TOKENS.items()]
    return _without([("://", URL_USER, "://"), *secrets, *tokens, *_places()])


def without_names(text: str) -> str:
    """``text`` without the home directory and without names in paths."""
    return _without(_places())(text)


def without_private(text: str) -> str:
    """``text`` without the home directory, names in paths and the values of secret variables."""
    return cleaner()(text)


def without_words(value: Any) -> Any:
    """``value`` with its texts, however deep, without the names of the person and the machine.

    For what libraries say when they fail: a host that could not be reached, whose file it is.
    """
    names = _names()
    if names is None:
        return value
    return in_values(value, lambda text: names.sub(_by_kind, without_names(text)))


def in_values(value: Any, clean: Callable[[str], str]) -> Any:
    """``value`` with ``clean`` applied to its texts, however deep; all else stays.

    Keys of mappings stay, and so does the ``key`` of a message.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        kept = "key" if value.keys() == {"key", "params"} else None
        return {k: each if k == kept else in_values(each, clean) for k, each in value.items()}
    return [in_values(each, clean) for each in value] if isinstance(value, list | tuple) else value


def cleaned_json(text: str, clean: Callable[[str], str]) -> str:
    """A JSON text with ``clean`` applied to its values that are texts; see :func:`in_values`."""
    if clean(text) == text:  # nearly always, and faster than looking at each value
        return text
    return json.dumps(in_values(json.loads(text), clean), ensure_ascii=False, separators=(",", ":"))


def clean_log(path: Path) -> None:
    """Rewrite a process's log without what is private; the process must have ended.

    Raises:
        OSError: it cannot be read or written.
    """
    if path.is_symlink() or not path.is_file():
        return
    without, names = cleaner(), _names()

    def told(piece: bytes) -> bytes:
        text = without(piece.decode("utf-8", errors="surrogateescape"))
        text = names.sub(_by_kind, text) if names else text
        return text.encode("utf-8", errors="surrogateescape")

    if all(told(piece) == piece for piece in _pieces(path)):
        return
    with whole_file(path) as clean:
        for piece in _pieces(path):
            clean.write(told(piece))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.readline(_PIECE):
            yield piece


def _without(told: Iterable[Told]) -> Callable[[str], str]:
    compiled = [(what, re.compile(pattern), instead) for what, pattern, instead in told]

    def clean(text: str) -> str:
        for what, pattern, instead in compiled:
            if what in text:  # nearly never, and a pattern alone takes a second for two megabytes
                text = "".join(_replaced(text, what, pattern, instead))
        return text

    return clean


def _replaced(text: str, what: str, pattern: re.Pattern[str], instead: str) -> Iterator[str]:
    """Parts of ``text``, and ``instead`` for each ``what`` that stands where its pattern allows."""
    begin, at = 0, text.find(what)
    while at >= 0:
        if found := pattern.match(text, at):
            yield text[begin:at]
            yield instead
            begin = found.end()
        at = text.find(what, max(begin, at + 1))
    yield text[begin:]


def _places() -> list[Told]:
    """The home, as it is named and where its links lead, and names in paths.

    The root of all is nobody's, a home of /home/al is no part of /home/alice, and /root is none of
    /mnt/root.
    """
    places: list[Told] = []
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        if len(home) > 1:
            led = os.path.realpath(home) if Path(home).is_absolute() else ""
            longest = sorted({home, led} if len(led) > 1 else {home}, key=len, reverse=True)
            places += [(each, rf"{ROOTED}{re.escape(each)}(?![\w-])", "~") for each in longest]
    return places + [(name, part_of_path(name), mark) for name, mark in marks().items()]


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET.search(name.upper()) is not None


def _secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Their values as they are and as JSON writes them, the longest first."""
    found = {value for name, value in environ.items() if is_secret_name(name)}
    found |= {password for value in environ.values() for password in _URL_PASSWORD.findall(value)}
    found |= set(map(unquote, found))
    found = {value for value in found if len(value) >= _LEAST and not _is_common(value)}
    found |= {json.dumps(value, ensure_ascii=False)[1:-1] for value in found}
    return tuple(sorted(found, key=len, reverse=True))


def _pattern(secret: str) -> str:
    """A number counts where no digit stands beside it."""
    return rf"(?<!\d){secret}(?!\d)" if secret.isdigit() else re.escape(secret)


def _is_common(value: str) -> bool:
    """Whether it consists of a few words that are in this program's own texts and names."""
    words = re.findall(r"[a-z]+", value.lower())
    return _FEW_WORDS.fullmatch(value.lower()) is not None and _vocabulary().issuperset(words)


@cache
def _vocabulary() -> frozenset[str]:
    texts = catalogue("en")
    return COMMON | frozenset(re.findall(r"[a-z]+", " ".join([*texts, *texts.values()]).lower()))


def _names() -> re.Pattern[str] | None:
    """The names of the machine and of the person, as words."""
    parts = []
    for kind, names in (("host", host_names()), ("user", user_names())):
        words = sorted((n for n in names if len(n) >= _LEAST_WORD), key=len, reverse=True)
        if words:
            parts.append(f"(?P<{kind}>{'|'.join(map(re.escape, words))})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(parts)})(?![\w-])") if parts else None


def _by_kind(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
