"""``plan``: recommend a configuration for a model, a GPU and lengths of requests."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import attribute, make_parser, parse
from experiment.commands.values import number, whole
from experiment.files.bounded_reading import check_replaceable, is_replaceable
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.simulate.plan import plan as make_plan
from experiment.simulate.trace import TraceOptions
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

OPTIONS = {
    **words.MODEL, "--prompt-tokens": "N", "--new-tokens": "N", **words.TRACE,
    "--skip-bad-rows": None, "--max-num-batched-tokens": "N", "--max-num-seqs": "N",
    "--enforce-eager": None, "--no-async-scheduling": None,
    "--no-enable-prefix-caching": None, "--out": "FILE",
}  # fmt: skip


def plan(arguments: list[str], t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: invalid argument, or no configuration fits.
    """
    options = parse(make_parser(t, "plan", OPTIONS), arguments)
    if words.shows_list(options, t):
        return ExitCode.OK
    _check_out(options.out)
    words.check_needed(options, *(() if options.trace else ("--prompt-tokens", "--new-tokens")))
    rate = number("--rate", options.rate, above=0) if options.trace is None else None
    data = make_plan(
        options.model, options.gpu, _requests(options), words.memory_of(options), rate=rate,
        async_scheduling=not options.no_async_scheduling,
        prefix_caching=not options.no_enable_prefix_caching,
        **words.sizes_of(options),
    )  # fmt: skip
    from experiment.report.console.plan import show_plan

    show_plan(data, t.lang, options.ascii)
    if options.out:
        _write(Path(options.out), data, t.lang)
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


def _check_out(given: str | None) -> None:
    """Refuse to overwrite a file that is no plan.

    Raises:
        UserError: the file exists and is no plan.
    """
    if given is None or not given.endswith(".html"):
        check_replaceable(given, "plan", "--out")
    elif not is_replaceable(Path(given), lambda data: b'"kind":"plan"' in data):
        raise user_error("error.other_file", path=given, flag="--out")


def _write(path: Path, data: dict[str, Any], lang: str) -> None:
    """Write the plan as JSON, or as HTML for the suffix ``.html``."""
    if path.suffix == ".html":
        from experiment.report.pages.plan import plan_html

        text = plan_html(data, lang)
    else:
        text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    with writing(path):
        write_atomic(path, text)
