"""``run``: parse the options of a run, and start or resume it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from experiment.commands.parser import attribute, make_parser, parse
from experiment.config.reading import load_config, parse_assignment
from experiment.files.shipped import find_config
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError, unknown, user_error
from experiment.text.messages import message

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
OPTIONS = {
    "--yes": None, "--config": "FILE", "--quick": None, "--list-experiments": None,
    "--list": "families",
    "--set+": "KEY=VALUE", "--arms": "ARM,...", "--prompt+": "TEXT",
    **{flag: metavar for flag, (_, metavar) in _CONFIG_FLAGS.items()},
    "--vllm-python": "PATH", "--offline": None, "--profile": None, "--out": "DIR",
    "--resume": "RUN", "--baseline": "RUN|FILE", "--gate": "FILE", "--details": None,
    "--quiet": None,
}  # fmt: skip


def run(words: list[str], t: Translator) -> int:
    """Measure and show a run, or the missing part of one; return the exit code.

    Raises:
        UserError: before anything was measured, or a file cannot be written.
    """
    options = parse(make_parser(t, "run", OPTIONS), words)
    from experiment.arms.launch import VLLM_PYTHON
    from experiment.commands.menu import list_experiments, list_families
    from experiment.commands.walkthrough import RunOptions, resume, run_walkthrough
    from experiment.compare.checks import read_checks

    if options.list is not None:
        if options.list != "families":
            raise unknown("list", options.list, ("families",))
        list_families(t)
        return ExitCode.OK
    if options.list_experiments:
        list_experiments(t)
        return ExitCode.OK
    path = find_config(options.config) if options.config else None
    overrides = _overrides(options)
    if options.vllm_python:
        os.environ[VLLM_PYTHON] = options.vllm_python
    how = RunOptions(
        lang=t.lang,
        yes=options.yes,
        quiet=options.quiet,
        ascii=options.ascii,
        out=Path(options.out) if options.out else None,
        command=tuple(sys.argv[1:]),
        checks=read_checks(options.baseline, options.gate),
        details=options.details,
    )
    try:
        config = load_config(path, overrides)
    except UserError as error:
        raise _as_typed(error, options) from error
    if options.quick and config.experiment.name is None:
        raise user_error("error.quick_alone")
    if options.resume is None:
        return run_walkthrough(config, how)
    if options.out:
        raise user_error("error.resume.out")
    return resume(Path(options.resume), config if path else None, overrides, how)


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Dotted keys of the config set by ``--set``, then by other flags."""
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
    """Replace a config key in an error by the flag that set it."""
    params = error.text.params
    for flag, (key, _) in _CONFIG_FLAGS.items():
        if params.get("config_key") == key and getattr(options, attribute(flag)) is not None:
            return UserError(message(error.text.key, **{**params, "config_key": flag}))
    return error
