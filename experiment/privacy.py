"""What a record does not keep: the home directory, secrets of the environment, names in logs.

A record may be sent on. Its events and its logs are cleaned where they are written:

    home directory       ~
    secret variables     ***    values of HF_TOKEN, API_KEY and the like, 6 signs and longer
    host and user name   <host> <user>    in the logs of processes, where libraries print them
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kvsim.whole_files import whole_file

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)(_|$)")
_LEAST = 6  # shorter values are found in any text
# Names that are words of programs and machines as well.
_COMMON = frozenset({"root", "user", "admin", "python", "linux", "localhost", "runner", "ubuntu"})
_PIECE = 1 << 20


def cleaner() -> Callable[[str], str]:
    """Takes the home directory and the values of secret variables, as set now, out of texts."""
    homes = _homes()
    pairs = [(re.escape(secret), "***") for secret in _secrets(os.environ)]
    pairs += [(homes.pattern, "~")] if homes else []
    if not pairs:
        return lambda text: text
    pattern = re.compile("|".join(f"({what})" for what, _ in pairs))
    instead = [each for _, each in pairs]
    return lambda text: pattern.sub(lambda found: instead[(found.lastindex or 1) - 1], text)


def without_home(text: str) -> str:
    """``text`` without the home directory."""
    homes = _homes()
    return homes.sub("~", text) if homes else text


def without_private(text: str) -> str:
    """``text`` without the home directory and without the values of secret variables."""
    return cleaner()(text)


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


def _homes() -> re.Pattern[str] | None:
    """The home directory, as it is named and where its links lead; None where there is none.

    The root of all is nobody's, and a home of /home/al is no part of /home/alice.
    """
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        if len(home) > 1:
            led = os.path.realpath(home) if Path(home).is_absolute() else ""
            longest = sorted({home, led} if len(led) > 1 else {home}, key=len, reverse=True)
            return re.compile(rf"(?:{'|'.join(map(re.escape, longest))})(?![\w-])")
    return None


def _secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Their values as they are and as JSON writes them, the longest first."""
    found = {value for name, value in environ.items() if _SECRET.search(name.upper())}
    found = {value for value in found if len(value) >= _LEAST}
    found |= {json.dumps(value, ensure_ascii=False)[1:-1] for value in found}
    return tuple(sorted(found, key=len, reverse=True))


def _names() -> re.Pattern[str] | None:
    """The names of the machine and of the person, as words."""
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    groups = {"host": {socket.gethostname(), os.environ.get("HOSTNAME", "")}, "user": users}
    parts = []
    for kind, names in groups.items():
        words = sorted(name for name in names if len(name) > 3 and name.lower() not in _COMMON)
        if words:
            parts.append(f"(?P<{kind}>{'|'.join(map(re.escape, words))})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(parts)})(?![\w-])") if parts else None


def _by_kind(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
