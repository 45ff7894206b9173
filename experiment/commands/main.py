"""Words on the command line → a Config and a call. Exit codes are those of docs/commands.md.

Help and errors are in the user's language, so argparse only splits the words: every value is
taken as text and checked by :mod:`experiment.config.schema`, which knows how to say what is wrong.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from experiment.commands.parser import COMMANDS
from experiment.files.os_errors import os_reason, unwritable
from experiment.files.parse_memory import shared_budget
from experiment.files.shipped import config_names, program
from experiment.files.user_cache import cache_directory, home_cache, is_writable
from experiment.process.interrupts import Interrupts
from experiment.process.streams import ignore_broken_pipe, reopen_closed_fds
from experiment.text import LANGUAGES, Translator, detect_language
from experiment.text.errors import ExitCode, UserError, unknown, user_error

Command = Callable[[list[str], Translator], int]
# Why nobody can even say whether something of a name is there.
_NO_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code. Errors a person can mend are one line."""
    words = list(arguments)
    reopen_closed_fds()
    lang = _language(words)
    _prepare_streams(lang, explicit=_asked_language(words) in LANGUAGES)
    interrupts = Interrupts()
    lost: list[OSError] = []
    try:
        with interrupts, ignore_broken_pipe(lost), shared_budget():
            code = _answer(words, Translator(lang))
    except KeyboardInterrupt:  # in its last moment
        code = ExitCode.INTERRUPTED
    except SystemExit:  # a help text was printed
        if not lost:
            raise
        code = ExitCode.OK
    if lost:
        error = unwritable(Path("stdout"), lost[0])
        with ignore_broken_pipe():  # errors may be led there as well
            _complain(Translator(lang), error)
        code = code or error.exit_code
    # A command that keeps what it has found says that it was ended, and not by which signal.
    return (interrupts.exit_code or code) if code in ExitCode.ENDED else code


def _answer(words: list[str], t: Translator) -> int:
    """Do what the words say; whatever a person can mend is one line."""
    try:
        _check_words(words)
        if not is_writable(home_cache()):  # Matplotlib would print two lines
            os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
        return _dispatch(words, t)
    except UserError as error:
        _complain(t, error)
        return error.exit_code
    except OSError as error:
        # Names that a person gave are looked for in many places.
        if error.errno not in _NO_NAMES or error.filename is None:
            raise
        wrong = user_error("error.bad_name", path=str(error.filename), why=os_reason(error))
        _complain(t, wrong)
        return wrong.exit_code
    except KeyboardInterrupt:
        print(t("error.interrupted"), file=sys.stderr)
        return ExitCode.INTERRUPTED


def _check_words(words: Sequence[str]) -> None:
    """Names of other bytes than UTF-8 could be read, but written into no record and no page.

    Raises:
        UserError: there is one.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            path = word.encode(errors="replace").decode()
            why = os_reason(OSError(errno.EILSEQ, ""))
            raise user_error("error.bad_name", path=path, why=why) from error


def _dispatch(words: list[str], t: Translator, asked: bool = False) -> int:
    command = words.pop(0) if words and not words[0].startswith("-") else "run"
    if command in config_names():
        sweep = command.startswith("sweep-")
        words = [command, *words] if sweep else ["--config", command, *words]
        command = "sweep" if sweep else "run"
    if command not in COMMANDS:
        raise unknown("command", command, (*COMMANDS, *config_names(), "--help"))
    if command == "run" and not asked and _asks_for_nothing(words):
        return _from_menu(words, t)
    # A module of its name is imported when a command is given.
    handler: Command = getattr(import_module(f"experiment.commands.{command}"), command)
    return handler(words, t)


def _asks_for_nothing(words: Sequence[str]) -> bool:
    """Whether a person sits at a terminal and has not said what to run."""
    rest = iter(words)
    said = [
        word
        for word in rest
        if word not in ("--ascii", "--details")
        and not word.startswith("--lang=")
        and not (word == "--lang" and next(rest, None))
    ]
    return not said and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")


def _from_menu(words: list[str], t: Translator) -> int:
    """Run what is chosen from the menu, as if it had been typed."""
    from experiment.commands.menu import choose

    chosen = choose(t)
    if chosen is None:
        return ExitCode.OK
    if chosen:
        sys.argv[1:] = words = [*chosen, *words]
        print(t("menu.same", command=shlex.join([*program(), *words])))
    return _dispatch(words, t, asked=True)


def _asked_language(words: Sequence[str]) -> str | None:
    """Value of ``--lang``, looked for before anything else: help and errors need it."""
    for index, word in enumerate(words):
        if word == "--lang" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--lang="):
            return word.partition("=")[2]
    return None


def _language(words: Sequence[str]) -> str:
    asked = _asked_language(words)
    if asked in LANGUAGES:
        return asked
    detected = detect_language()
    if asked not in (None, "auto"):
        t = Translator(detected)
        _prepare_streams(detected, explicit=False)
        choices = ", ".join((*LANGUAGES, "auto"))
        error = user_error("error.not_a_choice", config_key="--lang", value=asked, choices=choices)
        _complain(t, error)
        sys.exit(ExitCode.USAGE)
    if detected == "zh" and not _can_encode(sys.stdout, "显存"):
        return "en"  # nobody asked for Chinese, and this terminal cannot show it
    return detected


def _prepare_streams(lang: str, *, explicit: bool) -> None:
    """No character may end the program because a terminal cannot show it."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        utf8 = lang == "zh" and explicit and not stream.isatty() and not _can_encode(stream, "显存")
        reconfigure(encoding="utf-8" if utf8 else None, errors="replace")


def _can_encode(stream: Any, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _complain(t: Translator, error: UserError) -> None:
    print(t("error.prefix") + t.message(error.text), file=sys.stderr)
