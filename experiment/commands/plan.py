"""``plan``: what fits a model, a GPU and lengths of requests, in sentences, a table, arguments."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import attribute, make_parser, parse
from experiment.commands.values import number, whole
from experiment.files.bounded_reading import check_replaceable
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.simulate.plan import plan as make_plan
from experiment.simulate.trace import TraceOptions
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

OPTIONS = {
    **words.MODEL, "--prompt-tokens": "N", "--new-tokens": "N", **words.TRACE,
    "--skip-bad-rows": None, "--out": "FILE",
}  # fmt: skip


def plan(arguments: list[str], t: Translator) -> int:
    """Run the command; returns the exit code.

    Raises:
        UserError: a word does not fit, or nothing does.
    """
    options = parse(make_parser(t, "plan", OPTIONS), arguments)
    if words.shows_list(options, t):
        return ExitCode.OK
    check_replaceable(options.out, "plan", "--out")
    words.check_needed(options, *(() if options.trace else ("--prompt-tokens", "--new-tokens")))
    rate = number("--rate", options.rate, above=0) if options.trace is None else None
    data = make_plan(
        options.model, options.gpu, _requests(options), words.memory_of(options), rate=rate,
        **words.sizes_of(options),
    )  # fmt: skip
    from experiment.report.console.plan import show_plan

    show_plan(data, t.lang, options.ascii)
    if options.out:
        _write(Path(options.out), data)
    return ExitCode.OK


def _requests(options: argparse.Namespace) -> TraceOptions | list[tuple[int, int]]:
    prompt, new = options.prompt_tokens, options.new_tokens
    if options.trace:
        if prompt is not None or new is not None:
            raise user_error("error.sim.plan_both")
        return words.trace_of(options)
    for flag in (*words.TRACE, "--skip-bad-rows"):
        if flag != "--rate" and getattr(options, attribute(flag)):
            raise user_error("error.sim.unused", flag=flag, other="--trace")
    return [(whole("--prompt-tokens", prompt) or 1, whole("--new-tokens", new) or 1)]


def _write(path: Path, data: dict[str, Any]) -> None:
    with writing(path):
        write_atomic(path, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
