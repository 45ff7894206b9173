"""Words on the command line → a Config and a call. Exit codes are those of docs/commands.md.

Help and errors are in the user's language, so argparse only splits the words: every value is
taken as text and checked by :mod:`experiment.config.schema`, which knows how to say what is wrong.
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

from experiment.commands.parser import attribute, make_parser, parse
from experiment.config.reading import load_config, parse_assignment
from experiment.files.os_errors import os_reason, unwritable
from experiment.files.parse_memory import counted
from experiment.files.shipped import config_names, find_config, program
from experiment.files.user_cache import cache_directory, home_cache, is_writable
from experiment.process.interrupts import Interrupts
from experiment.process.streams import ignore_broken_pipe, reopen_closed_fds
from experiment.text import LANGUAGES, Translator, detect_language
from experiment.text.errors import ExitCode, UserError, unknown, user_error
from experiment.text.messages import message

Command = Callable[[list[str], Translator], int]
# Where each command is done; a module is imported when its command is given.
_COMMANDS = {
    "run": "experiment.commands.main:_run",
    "render": "experiment.commands.render:render",
    "selfcheck": "experiment.commands.selfcheck:selfcheck",
    "simulate": "experiment.commands.simulate:simulate",
    "plan": "experiment.commands.plan:plan",
    "paper": "experiment.commands.paper:paper",
    "calibrate": "experiment.commands.calibrate:calibrate",
    "sweep": "experiment.commands.sweep:sweep",
    "claims": "experiment.commands.claims:claims",
    "bench": "experiment.commands.bench:bench",
    "compare": "experiment.commands.compare:compare",
    "gpucheck": "experiment.commands.gpucheck:gpucheck",
}
COMMANDS = tuple(_COMMANDS)
# Why nobody can even say whether something of a name is there.
_NO_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)
# Flags that set one key of the config.
_CONFIG_FLAGS = {
    "--device": ("run.device", "auto|cpu|cuda"),
    "--model": ("model.name", "NAME|DIR"),
    "--dtype": ("model.dtype", "TYPE"),
    "--prompts": ("workload.prompts_file", "FILE"),
    "--max-new-tokens": ("workload.max_new_tokens", "N"),
    "--max-length": ("cache.max_length", "N"),
    "--block-size": ("cache.block_size", "N"),
    "--kv-budget": ("cache.budget", "SIZE"),
    "--seed": ("run.seed", "N"),
    "--threads": ("run.threads", "N"),
}


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code. Errors a person can mend are one line."""
    words = list(arguments)
    reopen_closed_fds()
    lang = _language(words)
    _prepare_streams(lang, explicit=_asked_language(words) in LANGUAGES)
    interrupts = Interrupts()
    lost: list[OSError] = []
    try:
        with interrupts, ignore_broken_pipe(lost), counted():
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


def _dispatch(words: list[str], t: Translator) -> int:
    command = words.pop(0) if words and not words[0].startswith("-") else "run"
    if command in config_names():
        sweep = command.startswith("sweep-")
        words = [command, *words] if sweep else ["--config", command, *words]
        command = "sweep" if sweep else "run"
    if command not in COMMANDS:
        raise unknown("command", command, (*COMMANDS, *config_names(), "--help"))
    module, _, name = _COMMANDS[command].partition(":")
    handler: Command = getattr(import_module(module), name)
    return handler(words, t)


def _run(words: list[str], t: Translator) -> int:
    options = parse(_run_parser(t), words, (*COMMANDS, *config_names()))
    from experiment.arms.launch import VLLM_PYTHON
    from experiment.commands.menu import choose, list_experiments
    from experiment.commands.run import RunOptions, resume, run
    from experiment.compare.checks import read_checks

    if options.list_experiments:
        list_experiments(t)
        return ExitCode.OK
    path = find_config(options.config) if options.config else None
    overrides = _overrides(options)
    if options.vllm_python:
        os.environ[VLLM_PYTHON] = options.vllm_python
    command = tuple(sys.argv[1:])
    if _asked_for_nothing(options, overrides):
        chosen = choose(t)
        if chosen is None:
            return ExitCode.OK
        if chosen:
            sys.argv[1:] = given = [*chosen, *words]  # as if it had been typed
            print(t("menu.same", command=shlex.join([*program(), *given])))
            return _dispatch(given, t)
    checks = read_checks(options.baseline, options.gate)
    how = RunOptions(
        lang=t.lang,
        yes=options.yes,
        quiet=options.quiet,
        ascii=options.ascii,
        out=Path(options.out) if options.out else None,
        command=command,
        checks=checks,
        details=options.details,
    )
    try:
        config = load_config(path, overrides)
    except UserError as error:
        raise _as_typed(error, options) from error
    if options.quick and config.experiment.name is None:
        raise user_error("error.quick_alone")
    if options.resume is None:
        return run(config, how)
    if options.out:
        raise user_error("error.resume.out")
    return resume(Path(options.resume), config if path else None, overrides, how)


def _asked_for_nothing(options: argparse.Namespace, overrides: dict[str, Any]) -> bool:
    """Whether a person sits at a terminal and has not said what to run."""
    said = options.config or overrides or options.yes or options.quiet or options.out
    said = said or options.resume or options.vllm_python
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return not said and at_terminal and not os.environ.get("CI")


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Dotted keys of the config: first ``--set``, then the flags."""
    values: dict[str, Any] = dict(parse_assignment(text) for text in options.set or ())
    if options.quick:
        values["experiment.size"] = "quick"
    for flag, (key, _) in _CONFIG_FLAGS.items():
        value = getattr(options, attribute(flag))
        if value is not None:
            values[key] = value
    if options.prompt is not None and options.prompts is not None:
        raise user_error("error.both_prompts")
    if options.prompt is not None:
        values |= {"workload.prompts": options.prompt, "workload.prompts_file": None}
    if options.arms is not None:
        values["run.arms"] = [arm.strip() for arm in options.arms.split(",") if arm.strip()]
    if options.offline:
        values["model.offline"] = True
    if options.profile:
        values["run.profile"] = True
    return values


def _as_typed(error: UserError, options: argparse.Namespace) -> UserError:
    """The error with the flag that was given in place of the key that it sets."""
    params = error.text.params
    for flag, (key, _) in _CONFIG_FLAGS.items():
        if params.get("config_key") == key and getattr(options, attribute(flag)) is not None:
            return UserError(message(error.text.key, **{**params, "config_key": flag}))
    return error


def _run_parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "run")
    add = parser.add_argument
    add("--yes", "-y", action="store_true", help=t("help.yes"))
    add("--config", metavar="FILE", help=t("help.config"))
    add("--quick", action="store_true", help=t("help.quick"))
    add("--list-experiments", action="store_true", help=t("help.list_experiments"))
    add("--set", action="append", metavar="KEY=VALUE", help=t("help.set"))
    add("--arms", metavar="ARM,...", help=t("help.arms"))
    add("--prompt", action="append", metavar="TEXT", help=t("help.prompt"))
    for flag, (_, metavar) in _CONFIG_FLAGS.items():
        add(flag, metavar=metavar, help=t("help." + attribute(flag)))
    add("--vllm-python", metavar="PATH", help=t("help.vllm_python"))
    add("--offline", action="store_true", help=t("help.offline"))
    add("--profile", action="store_true", help=t("help.profile"))
    add("--out", metavar="DIR", help=t("help.out"))
    add("--resume", metavar="RUN", help=t("help.resume"))
    add("--baseline", metavar="RUN|FILE", help=t("help.baseline"))
    add("--gate", metavar="FILE", help=t("help.gate"))
    add("--details", action="store_true", help=t("help.details"))
    add("--quiet", "-q", action="store_true", help=t("help.quiet"))
    return parser


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
