"""``run``: parse the options of a run, and start or resume it."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from experiment.commands.parser import given, refuse_given
from experiment.commands.values import known, split
from experiment.config.reading import load_config, parse_assignment
from experiment.files.shipped import find_config
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError, user_error
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
    "--offline": ("model.offline", None),
    "--profile": ("run.profile", None),
}
OPTIONS = {
    "--yes": None, "--config": "FILE", "--quick": None, "--list-experiments": None,
    "--list": ("families", partial(known, kind="list", names=("families",))),
    "--set+": "KEY=VALUE", "--arms": "ARM,...", "--prompt+": "TEXT",
    **{flag: metavar for flag, (_, metavar) in _CONFIG_FLAGS.items()},
    "--vllm-python": "PATH", "--out": "DIR",
    "--resume": "RUN", "--baseline": "RUN|FILE", "--gate": "FILE", "--details": None,
    "--quiet": None,
}  # fmt: skip


def run(options: argparse.Namespace, t: Translator) -> int:
    """Measure and show a run, or the missing part of one; return the exit code.

    Raises:
        UserError: before anything was measured, or a file cannot be written.
    """
    from experiment.commands.lists import list_experiments
    from experiment.commands.walkthrough import RunOptions, resume, run_walkthrough
    from experiment.compare.checks import read_checks

    if options.list_experiments:
        list_experiments(t)
        return ExitCode.OK
    path = find_config(options.config) if options.config else None
    overrides = _overrides(options)
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
        other = "--config NAME (--list-experiments)"
        raise user_error("error.needs_flag", flag="--quick", other=other)
    if options.resume is None:
        return run_walkthrough(config, how)
    refuse_given(options, ("--out",), beside="--resume")
    return resume(Path(options.resume), config if path else None, overrides, how)


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Dotted keys of the config set by ``--set``, then by other flags."""
    values: dict[str, Any] = dict(parse_assignment(text) for text in options.set or ())
    if options.quick:
        values["experiment.size"] = "quick"
    values |= {_CONFIG_FLAGS[flag][0]: value for flag, value in given(options, *_CONFIG_FLAGS)}
    if options.prompt is not None:
        refuse_given(options, ("--prompts",), beside="--prompt")
        values |= {"workload.prompts": options.prompt, "workload.prompts_file": None}
    if options.arms is not None:
        values["run.arms"] = split(options.arms)
    return values


def _as_typed(error: UserError, options: argparse.Namespace) -> UserError:
    """Replace a config key in an error by the flag that set it."""
    params = error.text.params
    for flag, (key, _) in _CONFIG_FLAGS.items():
        if params.get("config_key") == key and given(options, flag):
            return UserError(message(error.text.key, **{**params, "config_key": flag}))
    return error
