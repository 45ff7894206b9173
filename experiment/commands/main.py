"""Entry point of the command line; docs/commands.md lists the exit codes.

Help and errors are in the user's language, so argparse only splits the words. Values are validated
by readers, or by :mod:`experiment.config.schema`.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from experiment.commands.parser import COMMANDS, make_parser, parse
from experiment.files.os_errors import os_reason, unwritable
from experiment.files.parse_memory import shared_budget
from experiment.files.shipped import config_names, program
from experiment.files.user_cache import cache_directory, home_cache, is_writable
from experiment.process.interrupts import Interrupts
from experiment.process.streams import ignore_broken_pipe, reopen_closed_fds
from experiment.text import LANGUAGES, Translator, detect_language
from experiment.text.errors import ExitCode, UserError, unknown, user_error

Command = Callable[[argparse.Namespace, Translator], int]
# Errors of looking up a path that is too long or not accessible.
_NO_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code. User errors are printed in one line."""
    words = list(arguments)
    reopen_closed_fds()
    lang = _language(words)
    _prepare_streams(lang, explicit=_asked_language(words) in LANGUAGES)
    interrupts = Interrupts()
    lost: list[OSError] = []
    try:
        with interrupts, ignore_broken_pipe(lost), shared_budget():
            code = _run_command(words, Translator(lang))
    except KeyboardInterrupt:  # while exiting
        code = ExitCode.INTERRUPTED
    except SystemExit:  # after --help or --version
        if not lost:
            raise
        code = ExitCode.OK
    if lost:
        error = unwritable(Path("stdout"), lost[0])
        with ignore_broken_pipe():  # stderr may be the same pipe
            _print_error(Translator(lang), error)
        code = code or error.exit_code
    # Commands return INTERRUPTED for any signal.
    return (interrupts.exit_code or code) if code in ExitCode.ENDED else code


def _run_command(words: list[str], t: Translator) -> int:
    """Run the command; print a user error in one line."""
    try:
        _check_words(words)
        if not is_writable(home_cache()):  # Matplotlib would print two lines
            os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
        return _dispatch(words, t)
    except UserError as error:
        _print_error(t, error)
        return error.exit_code
    except OSError as error:
        # Paths from the command line are looked up in many places.
        if error.errno not in _NO_NAMES or error.filename is None:
            raise
        wrong = user_error("error.bad_name", path=str(error.filename), why=os_reason(error))
        _print_error(t, wrong)
        return wrong.exit_code
    except KeyboardInterrupt:
        print(t("error.interrupted"), file=sys.stderr)
        return ExitCode.INTERRUPTED


def _check_words(words: Sequence[str]) -> None:
    """Refuse words that are not UTF-8, which cannot be written to a record or page.

    Raises:
        UserError: a word is not UTF-8.
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
    if command == "run" and not asked and _needs_menu(words):
        return _from_menu(words, t)
    # Each command is a function in a module of the same name.
    module = import_module(f"experiment.commands.{command}")
    handler: Command = getattr(module, command)
    options = parse(make_parser(t, command, getattr(module, "OPTIONS", {})), words)
    if getattr(options, "list", None) is not None:
        from experiment.commands.lists import show_list

        show_list(options, t)
        return ExitCode.OK
    if getattr(options, "vllm_python", None):
        os.environ["PAGEDKV_VLLM_PYTHON"] = options.vllm_python
    return handler(options, t)


def _needs_menu(words: Sequence[str]) -> bool:
    """Whether to show the menu: an interactive terminal, and no words about what to run."""
    rest = iter(words)
    others = [
        word
        for word in rest
        if word not in ("--ascii", "--details")
        and not word.startswith("--lang=")
        and not (word == "--lang" and next(rest, None))
    ]
    return not others and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")


def _from_menu(words: list[str], t: Translator) -> int:
    """Run the command chosen from the menu."""
    from experiment.commands.menu import choose

    chosen = choose(t)
    if chosen is None:
        return ExitCode.OK
    if chosen:
        sys.argv[1:] = words = [*chosen, *words]
        print(t("menu.same", command=shlex.join([*program(), *words])))
    return _dispatch(words, t, asked=True)


def _asked_language(words: Sequence[str]) -> str | None:
    """Value of ``--lang``, found before parsing because help and errors need it."""
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
        _print_error(t, error)
        sys.exit(ExitCode.USAGE)
    if detected == "zh" and not _can_encode(sys.stdout, "显存"):
        return "en"  # the terminal cannot show Chinese
    return detected


def _prepare_streams(lang: str, *, explicit: bool) -> None:
    """Replace characters that a terminal cannot show, instead of raising."""
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


def _print_error(t: Translator, error: UserError) -> None:
    print(t("error.prefix") + t.message(error.text), file=sys.stderr)
