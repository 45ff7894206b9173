"""``plan``: recommend a configuration for a model, a GPU and lengths of requests."""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import given, refuse_given
from experiment.commands.values import choice, number, several, size, whole
from experiment.files.bounded_reading import check_replaceable, is_replaceable
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.simulate.alternatives import AXES, choose, compare, plan_or_remedy
from experiment.simulate.fit import Question
from experiment.simulate.from_log import plan_from_log
from experiment.simulate.names import check_given, gpu_of, model_of
from experiment.simulate.plan import with_requests
from experiment.simulate.setup import Memory
from experiment.simulate.trace import TraceOptions
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error
from kvsim.sizing.gpus import GPUFacts, custom_gpu

_SLO = re.compile(r"(ttft|tpot) *= *([0-9.]+) *(ms|s)")
_CUSTOM = ("--gpu-memory", "--bandwidth", "--tflops")
_LENGTHS = ("--prompt-tokens", "--new-tokens")


def _prices(flag: str, text: str) -> float | dict[str, float]:
    """USD an hour of the GPU, or of each one that is named."""
    read = partial(number, flag, above=0, most=10**6)
    if "=" not in text:
        return read(text)
    pairs = (each.partition("=") for each in text.split(","))
    return {gpu_of(name.strip()).name: read(price.strip()) for name, _, price in pairs}


def _targets(flag: str, text: str) -> dict[str, float]:
    """Times in seconds by field of the question."""
    found = {}
    for each in text.split(","):
        match = _SLO.fullmatch(each.strip())
        if match is None:
            params = {"value": each.strip()[:60], "example": "ttft=1s,tpot=50ms"}
            raise user_error("error.not_like", config_key=flag, **params)
        name, value, unit = match.groups()
        found[f"{name}_s"] = number(flag, value, above=0) * (1e-3 if unit == "ms" else 1.0)
    return found


OPTIONS = {
    **words.MODEL,
    **{f"--{kind}-parallel-size": ("N", words.PARALLEL) for kind in ("tensor", "pipeline", "data")},
    "--enable-expert-parallel": None,
    "--gpu-memory": ("SIZE", size),
    "--bandwidth": ("GB/S", partial(number, above=1, most=10**6)),
    "--tflops": ("N", partial(number, above=0.1, most=10**6)),
    "--from-log": "FILE",
    "--users": ("N", whole),
    "--context": ("N", partial(whole, least=2)),
    "--shared-prefix": ("N", partial(whole, least=0)),
    "--prompt-tokens": ("N", whole),
    "--new-tokens": ("N", whole),
    **words.TRACE,
    "--slo": ("ttft=1s,tpot=50ms", _targets),
    "--price": ("USD|GPU=USD,...", _prices),
    "--compare": (",".join(AXES), partial(several, read=partial(choice, choices=tuple(AXES)))),
    "--skip-bad-rows": None,
    "--max-num-batched-tokens": ("N", whole),
    "--max-num-seqs": ("N", whole),
    "--max-loras": ("N", partial(whole, most=4096)),
    "--max-lora-rank": ("N", partial(whole, most=1024)),
    "--enforce-eager": None,
    "--language-model-only": None,
    "--no-async-scheduling": None,
    "--no-enable-prefix-caching": None,
    "--details": None,
    "--check": None,
    "--vllm-python": "PATH",
    "--json": None,
    "--out": "FILE",
}


def plan(options: argparse.Namespace, t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: invalid argument, or no configuration fits.
    """
    _check_out(options.out)
    if not options.check:
        refuse_given(options, ("--vllm-python",), without="--check")
    memory = words.memory_of(options)
    data = _answer(options, memory)
    code = ExitCode.OK
    if options.check and "plan" in data:
        from experiment.simulate.vllm_check import check_plan

        print(t("plan.check.asking"), file=sys.stderr)
        model = model_of(options.model or data["setup"]["model"]["source"], memory.weights)
        data["check"] = check_plan(data, model)
        code = ExitCode.OK if data["check"]["verdict"] == "same" else ExitCode.INCOMPLETE
    text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if options.json:
        print(text, end="")
    else:
        from experiment.report.console.plan import show_plan, show_rows

        show = show_plan if "plan" in data or "log" in data else show_rows
        show(data, t.lang, options.ascii, options.details)
    if options.out:
        path = Path(options.out)
        if path.suffix == ".html":
            from experiment.report.pages.plan import plan_html

            text = plan_html(data, t.lang)
        with writing(path):
            write_atomic(path, text)
        print(t("console.written", path=options.out), file=sys.stderr)
    return code


def _answer(options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    """The plan, rows of several plans, or what a log says."""
    prices, model, gpu = options.price, options.model, _custom(options) or options.gpu
    by_gpu = prices if isinstance(prices, dict) else None
    if by_gpu and gpu:
        raise user_error("error.either_flag", flag="--price GPU=USD", other="--gpu")
    chooses = not (gpu or options.from_log) and (prices or options.users or options.rate)
    if options.from_log is None:
        words.check_needed(options, *(() if gpu or chooses else ("--gpu",)))
    requests = _requests(options)
    rate, factor = options.rate or (None, None)
    if options.trace is None and factor is not None:
        raise user_error("error.sim.no_rate_to_scale", value=f"{factor:g}x")
    asked: dict[str, Any] = {
        "context": options.context,
        "users": options.users,
        "shared_prefix": options.shared_prefix or 0,
        "async_scheduling": not options.no_async_scheduling,
        "prefix_caching": not options.no_enable_prefix_caching,
        "rate": rate if options.trace is None else None,
        "price": None if by_gpu else prices,
        **(options.slo or {}),
        **words.sizes_of(options),
    }
    if chooses or options.compare:
        _check_rows(options, bool(chooses))
        question, _ = with_requests(Question(None, **asked), requests, model, memory)
        if not chooses:
            return compare(model, gpu, memory, question, options.compare)
        fixed = options.gpus or options.tensor_parallel_size
        return choose(model, memory, question, by_gpu, memory.gpus if fixed else None)
    if options.from_log is None:
        return plan_or_remedy(model, gpu, requests, memory, **asked)
    refuse_given(
        options, ("--kv-budget", "--gpu-memory-utilization", "--overhead"), beside="--from-log"
    )
    if gpu is None:  # a log says nothing of time
        refuse_given(options, ("--slo", "--price", "--rate"), without="--gpu")
    return plan_from_log(options.from_log, model, gpu, memory, requests=requests, **asked)


def _check_rows(options: argparse.Namespace, chooses: bool) -> None:
    """Refuse what tables of several plans do not use.

    Raises:
        UserError: an option without effect.
    """
    other = "--compare" if options.compare else "--price" if options.price else "--users"
    if chooses and options.compare:
        raise user_error("error.sim.needs", flags="--gpu (--list gpus)")
    if chooses and isinstance(options.price, float):
        params = {"value": f"{options.price:g}", "example": "h100=2.5,l40s=0.9"}
        raise user_error("error.not_like", config_key="--price", **params)
    if options.out and options.out.endswith(".html"):
        raise user_error("error.either_flag", flag="--out *.html", other=other)
    refuse_given(options, ("--from-log", "--check"), beside=other)


def _custom(options: argparse.Namespace) -> GPUFacts | None:
    """A GPU that is not in the catalogue.

    Raises:
        UserError: one of its three figures is missing.
    """
    figures = dict(given(options, *_CUSTOM))
    if not figures:
        return None
    if options.gpu:
        refuse_given(options, _CUSTOM, beside="--gpu")
    check_given({flag: figures.get(flag) for flag in _CUSTOM})
    return custom_gpu(options.gpu_memory, options.bandwidth * 1e9, options.tflops * 1e12)


def _requests(options: argparse.Namespace) -> TraceOptions | list[tuple[int, int]] | None:
    """The requests of a trace, or of one kind; None: all of ``--context`` tokens.

    Raises:
        UserError: missing options, or some without effect.
    """
    if options.trace:
        refuse_given(options, (*_LENGTHS, "--context"), beside="--trace")
        return words.trace_of(options)
    only = (flag for flag in (*words.TRACE, "--skip-bad-rows") if flag != "--rate")
    refuse_given(options, tuple(only), without="--trace")
    lengths = dict(given(options, *_LENGTHS))
    if not lengths and (options.rate is None or options.context):
        return None
    check_given({flag: lengths.get(flag) for flag in _LENGTHS})
    refuse_given(options, ("--context",), beside="--prompt-tokens")
    return [(options.prompt_tokens, options.new_tokens)]


def _check_out(path: str | None) -> None:
    """Refuse to overwrite a file that is no plan.

    Raises:
        UserError: the file exists and is no plan.
    """
    if path is None or not path.endswith(".html"):
        check_replaceable(path, "plan", "--out")
    elif not is_replaceable(Path(path), lambda data: b'"kind":"plan"' in data):
        raise user_error("error.other_file", path=path, flag="--out")
