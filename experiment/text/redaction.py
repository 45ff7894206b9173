"""Redact the home directory, names and secrets before anything is recorded.

Texts in events are redacted before encoding, so that numbers and encoded bytes are unchanged.
Process logs are redacted as a whole:

    home directory       ~
    user and host name   $USER $HOST    as whole path components (see ``text.personal_names``)
                         <user> <host>  as words of logs and failures, written by libraries
    secret variables     ***    values of HF_TOKEN, API_KEY and the like, of 6 characters or more
    user and password    removed from any URL; elsewhere the password is ***, and each part of
                         one with characters that no URL may have there
    queries of URLs      ?***   where a name in them is that of a secret
    service tokens       ***    by their form, such as hf_ and 20 characters

Values of up to three common words (``password``, ``float32``) are not treated as secrets: redacting
them would make a record unreadable.
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
    path_part_pattern,
    placeholders,
    user_names,
)
from kvsim.base.files import whole_file

_SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|(?<!^OLD)(?<!^)PWD|(^|_)(PAT|AUTH))$"
    r"|(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)(_|$)"
)
_URL_PASSWORD = re.compile(r"(?:^|//)[^\s/@:]*:([^\s/]+)@")
# User and password of an address that is a variable's value, whatever characters they have.
_ADDRESS_USER = re.compile(r"\w[\w+.-]*://([^@:/?#]*:.*)@", re.DOTALL)
_PARTS = re.compile(r"[\s/?#\"'<>]+")  # where a program may take such an address apart
_QUERY_NAME = "(?i:token|secret|passw|key|signature|auth|credential)"
_QUERY_SECRET = re.compile(rf"[?&][^=&\s]*{_QUERY_NAME}[^=&\s]*=([^&#\s]+)")
_QUERY = rf"\?[^\s\"'<>?]{{0,200}}{_QUERY_NAME}[^\s\"'<>?=]{{0,200}}=[^\s\"'<>]*"
# Prefixes of service tokens, and what follows them.
_TOKENS = {
    "hf_": "[A-Za-z0-9]{20}", "ghp_": "[A-Za-z0-9]{20}", "gho_": "[A-Za-z0-9]{20}",
    "ghs_": "[A-Za-z0-9]{20}", "github_pat_": r"\w{20}", "glpat-": r"[\w-]{20}",
    "sk-": r"[\w-]{20}", "AKIA": "[A-Z0-9]{16}", "xox": r"[a-z]-[\w-]{10}",
    "eyJ": r"[\w-]{17}\.eyJ",
}  # fmt: skip
_MIN_SECRET_LENGTH = 6  # shorter values occur in any text
_FEW_WORDS = re.compile(r"[a-z]{2,}(?:[-_. ]?(?:[a-z]{2,}|\d{1,2})){0,2}")
_MIN_WORD_LENGTH = 4  # shorter names are words of any log
_CHUNK_BYTES = 1 << 20
# The text to find, the pattern that must match at its position, and the replacement.
Rule = tuple[str, str, str]


def cleaner() -> Callable[[str], str]:
    """Return a function that redacts the home directory, names in paths and secrets, as set now."""
    secrets = [(text, _pattern(text), "***") for text in _secrets(os.environ)]
    tokens = [(begin, rf"(?<!\w){begin}{more}[\w.-]*", "***") for begin, more in _TOKENS.items()]
    urls = [("://", URL_USER, "://"), ("?", _QUERY, "?***")]
    return _redactor([*urls, *secrets, *tokens, *_path_rules()])


def without_names(text: str) -> str:
    """Redact the home directory and names in paths."""
    return _redactor(_path_rules())(text)


def without_private(text: str) -> str:
    """Redact the home directory, names in paths and values of secret variables."""
    return cleaner()(text)


def without_words(value: Any) -> Any:
    """Redact user and host names in all strings of ``value``, at any depth.

    For error messages of libraries, which name hosts and file owners.
    """
    names = _name_pattern()
    if names is None:
        return value
    return in_values(value, lambda text: names.sub(_name_kind, without_names(text)))


def in_values(value: Any, clean: Callable[[str], str]) -> Any:
    """Apply ``clean`` to all strings of ``value``, at any depth.

    Keys of mappings and the ``key`` of a message are unchanged.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        kept = "key" if value.keys() == {"key", "params"} else None
        return {k: each if k == kept else in_values(each, clean) for k, each in value.items()}
    return [in_values(each, clean) for each in value] if isinstance(value, list | tuple) else value


def cleaned_json(text: str, clean: Callable[[str], str]) -> str:
    """Apply ``clean`` to the string values of a JSON text; see :func:`in_values`."""
    if clean(text) == text:  # the common case, and faster than visiting each value
        return text
    return json.dumps(in_values(json.loads(text), clean), ensure_ascii=False, separators=(",", ":"))


def clean_log(path: Path) -> None:
    """Redact the log of a process that has ended, in place.

    Raises:
        OSError: the log cannot be read or written.
    """
    if path.is_symlink() or not path.is_file():
        return
    without, names = cleaner(), _name_pattern()

    def redact(chunk: bytes) -> bytes:
        text = without(chunk.decode("utf-8", errors="surrogateescape"))
        text = names.sub(_name_kind, text) if names else text
        return text.encode("utf-8", errors="surrogateescape")

    if all(redact(chunk) == chunk for chunk in _chunks(path)):
        return
    with whole_file(path) as clean:
        for chunk in _chunks(path):
            clean.write(redact(chunk))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.readline(_CHUNK_BYTES):
            yield chunk


def _redactor(rules: Iterable[Rule]) -> Callable[[str], str]:
    compiled = [(what, re.compile(pattern), instead) for what, pattern, instead in rules]

    def clean(text: str) -> str:
        for what, pattern, instead in compiled:
            if what in text:  # rare; a pattern alone takes a second for 2 MB
                text = "".join(_replaced(text, what, pattern, instead))
        return text

    return clean


def _replaced(text: str, what: str, pattern: re.Pattern[str], instead: str) -> Iterator[str]:
    """Yield ``text`` with each ``what`` whose pattern matches replaced by ``instead``."""
    begin, at = 0, text.find(what)
    while at >= 0:
        if found := pattern.match(text, at):
            yield text[begin:at]
            yield instead
            begin = found.end()
        at = text.find(what, max(begin, at + 1))
    yield text[begin:]


def _path_rules() -> list[Rule]:
    """Rules for the home directory, as named and with links resolved, and for names in paths.

    ``/`` is never redacted, /home/al does not match in /home/alice, and /root not in /mnt/root.
    """
    places: list[Rule] = []
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        if len(home) > 1:
            led = os.path.realpath(home) if Path(home).is_absolute() else ""
            longest = sorted({home, led} if len(led) > 1 else {home}, key=len, reverse=True)
            places += [(each, rf"{ROOTED}{re.escape(each)}(?![\w-])", "~") for each in longest]
    return places + [(name, path_part_pattern(name), mark) for name, mark in placeholders().items()]


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name contains a secret."""
    return _SECRET.search(name.upper()) is not None


def _secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Secret values, plain and as encoded in JSON, longest first."""
    found = {value for name, value in environ.items() if is_secret_name(name)}
    found |= {password for value in environ.values() for password in _URL_PASSWORD.findall(value)}
    for value in environ.values():
        found.update(_QUERY_SECRET.findall(value))
        if user := _ADDRESS_USER.match(value):
            password = user[1].partition(":")[2]
            found |= {user[1], password, *_PARTS.split(user[1]), *_PARTS.split(password)}
    found |= set(map(unquote, found))
    found = {value for value in found if len(value) >= _MIN_SECRET_LENGTH and not _is_common(value)}
    found |= {json.dumps(value, ensure_ascii=False)[1:-1] for value in found}
    return tuple(sorted(found, key=len, reverse=True))


def _pattern(secret: str) -> str:
    """Pattern of a secret; a number must not be part of a longer number."""
    return rf"(?<!\d){secret}(?!\d)" if secret.isdigit() else re.escape(secret)


def _is_common(value: str) -> bool:
    """Whether the value consists of a few words of this program's own texts and names."""
    words = re.findall(r"[a-z]+", value.lower())
    return _FEW_WORDS.fullmatch(value.lower()) is not None and _vocabulary().issuperset(words)


@cache
def _vocabulary() -> frozenset[str]:
    texts = catalogue("en")
    return COMMON | frozenset(re.findall(r"[a-z]+", " ".join([*texts, *texts.values()]).lower()))


def _name_pattern() -> re.Pattern[str] | None:
    """Pattern of host and user names as words; None if there are none."""
    parts = []
    for kind, names in (("host", host_names()), ("user", user_names())):
        words = sorted((n for n in names if len(n) >= _MIN_WORD_LENGTH), key=len, reverse=True)
        if words:
            parts.append(f"(?P<{kind}>{'|'.join(map(re.escape, words))})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(parts)})(?![\w-])") if parts else None


def _name_kind(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
