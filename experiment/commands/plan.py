"""``plan``: recommend a configuration for a model, a GPU and lengths of requests."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import attribute, make_parser, parse
from experiment.commands.values import choice, number, size, whole
from experiment.files.bounded_reading import check_replaceable, is_replaceable
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.simulate.alternatives import AXES, choose, compare, plan_or_remedy
from experiment.simulate.fit import Question
from experiment.simulate.names import check_given, gpu_of, model_of
from experiment.simulate.plan import with_requests
from experiment.simulate.setup import Memory
from experiment.simulate.start_log import plan_from_log
from experiment.simulate.trace import TraceOptions
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error
from kvsim.sizing.gpus import GPUFacts, custom_gpu

OPTIONS = {
    **words.MODEL, "--tensor-parallel-size": "N", "--pipeline-parallel-size": "N",
    "--data-parallel-size": "N", "--enable-expert-parallel": None,
    "--gpu-memory": "SIZE", "--bandwidth": "GB/S", "--tflops": "N",
    "--from-log": "FILE", "--users": "N", "--context": "N", "--shared-prefix": "N",
    "--prompt-tokens": "N", "--new-tokens": "N", **words.TRACE, "--slo": "ttft=1s,tpot=50ms",
    "--price": "USD|GPU=USD,...", "--compare": ",".join(AXES),
    "--skip-bad-rows": None, "--max-num-batched-tokens": "N", "--max-num-seqs": "N",
    "--max-loras": "N", "--max-lora-rank": "N", "--enforce-eager": None,
    "--language-model-only": None, "--no-async-scheduling": None,
    "--no-enable-prefix-caching": None, "--details": None, "--check": None,
    "--vllm-python": "PATH", "--json": None, "--out": "FILE",
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
    if options.vllm_python:
        if not options.check:
            raise user_error("error.sim.unused", flag="--vllm-python", other="--check")
        from experiment.arms.launch import VLLM_PYTHON

        os.environ[VLLM_PYTHON] = options.vllm_python
    custom = _custom(options)
    prices = _prices(options.price)
    if isinstance(prices, dict) and (custom or options.gpu):
        raise user_error("error.sim.unused_beside", flag="--price GPU=USD", other="--gpu")
    chooses = not (custom or options.gpu or options.from_log) and (
        prices or options.users or options.rate
    )
    if options.from_log is None:
        words.check_needed(options, gpu_needed=custom is None and not chooses)
    memory, requests, axes = words.memory_of(options), _requests(options), _axes(options.compare)
    asked: dict[str, Any] = {
        "context": whole("--context", options.context, least=2),
        "users": whole("--users", options.users),
        "shared_prefix": whole("--shared-prefix", options.shared_prefix, least=0) or 0,
        "async_scheduling": not options.no_async_scheduling,
        "prefix_caching": not options.no_enable_prefix_caching,
        "rate": number("--rate", options.rate, above=0) if options.trace is None else None,
        "price": prices if isinstance(prices, float) else None,
        **_targets(options.slo),
        **words.sizes_of(options),
    }
    gpu = custom or options.gpu
    if chooses or axes:
        _check_rows(options, bool(chooses))
        question, _ = with_requests(Question(None, **asked), requests, options.model, memory)
        if chooses:
            given = options.gpus or options.tensor_parallel_size
            by_gpu = prices if isinstance(prices, dict) else None
            data = choose(options.model, memory, question, by_gpu, memory.gpus if given else None)
        else:
            data = compare(options.model, gpu, memory, question, axes)
    elif options.from_log is not None:
        for flag in ("--kv-budget", "--gpu-memory-utilization", "--overhead"):
            if getattr(options, attribute(flag)) is not None:
                raise user_error("error.sim.unused_beside", flag=flag, other="--from-log")
        for flag in ("--slo", "--price", "--rate"):  # a log says nothing of time
            if getattr(options, attribute(flag)) is not None and gpu is None:
                raise user_error("error.sim.unused", flag=flag, other="--gpu")
        data = plan_from_log(
            options.from_log, options.model, gpu, memory, requests=requests, **asked
        )
    else:
        data = plan_or_remedy(options.model, gpu, requests, memory, **asked)
    code = _check(data, options, memory, t) if options.check else ExitCode.OK
    if options.json:
        print(_json(data), end="")
    elif "plan" not in data and "log" not in data:
        from experiment.report.console.plan import show_rows

        show_rows(data, t.lang, options.ascii, options.details)
    else:
        from experiment.report.console.plan import show_plan

        show_plan(data, t.lang, options.ascii, options.details)
    if options.out:
        _write(Path(options.out), data, t.lang)
        print(t("console.written", path=options.out), file=sys.stderr)
    return code


def _check(data: dict[str, Any], options: argparse.Namespace, memory: Memory, t: Translator) -> int:
    """Let vLLM lay the planned cache out; return the exit code."""
    if "plan" not in data:
        return ExitCode.OK  # it is not the plan that is answered
    from experiment.simulate.vllm_check import check_plan

    print(t("plan.check.asking"), file=sys.stderr)
    model = model_of(options.model or data["setup"]["model"]["source"], memory.weights)
    data["check"] = check_plan(data, model)
    return ExitCode.OK if data["check"]["verdict"] == "same" else ExitCode.INCOMPLETE


def _axes(text: str | None) -> list[str]:
    """Options to compare.

    Raises:
        UserError: an unknown one.
    """
    found = [each.strip() for each in (text or "").split(",") if each.strip()]
    for each in found:
        choice("--compare", each, tuple(AXES))
    return list(dict.fromkeys(found))


def _prices(text: str | None) -> float | dict[str, float] | None:
    """USD an hour of the GPU, or of each one that is named.

    Raises:
        UserError: no such price, or no such GPU.
    """
    if text is None:
        return None
    if "=" not in text:
        return number("--price", text, above=0, most=1e6)
    found = {}
    for each in text.split(","):
        name, _, price = each.partition("=")
        found[gpu_of(name.strip()).name] = number("--price", price.strip(), above=0, most=1e6) or 0
    return found


_SLO = re.compile(r"(ttft|tpot) *= *([0-9.]+) *(ms|s)")


def _targets(text: str | None) -> dict[str, float]:
    """Times in seconds by field of the question.

    Raises:
        UserError: it is written in another way.
    """
    found = {}
    for each in (text or "").split(",") if text is not None else ():
        match = _SLO.fullmatch(each.strip())
        if match is None:
            raise user_error("error.sim.slo", value=each.strip()[:60])
        name, value, unit = match.groups()
        seconds = number("--slo", value, above=0) or 0.0
        found[f"{name}_s"] = seconds * (1e-3 if unit == "ms" else 1.0)
    return found


def _check_rows(options: argparse.Namespace, chooses: bool) -> None:
    """Refuse what tables of several plans do not use.

    Raises:
        UserError: an option without effect.
    """
    other = "--compare" if options.compare else "--price" if options.price else "--users"
    if chooses and options.compare:
        raise user_error("error.sim.needs", flags="--gpu (--list gpus)")
    if chooses and options.price and "=" not in options.price:
        raise user_error("error.sim.priced", price=options.price)
    if options.out and options.out.endswith(".html"):
        raise user_error("error.sim.unused_beside", flag="--out *.html", other=other)
    for flag in ("--from-log", "--check"):
        if getattr(options, attribute(flag)):
            raise user_error("error.sim.unused_beside", flag=flag, other=other)


def _custom(options: argparse.Namespace) -> GPUFacts | None:
    """A GPU that is not in the catalogue.

    Raises:
        UserError: one of its three figures is missing, or does not fit.
    """
    flags = ("--gpu-memory", "--bandwidth", "--tflops")
    given = {flag: getattr(options, attribute(flag)) for flag in flags}
    if not any(given.values()):
        return None
    if options.gpu:
        flag = next(flag for flag, value in given.items() if value)
        raise user_error("error.sim.unused_beside", flag=flag, other="--gpu")
    check_given(given)
    memory = size("--gpu-memory", options.gpu_memory) or 0
    bandwidth = number("--bandwidth", options.bandwidth, above=1, most=1e6) or 0
    tflops = number("--tflops", options.tflops, above=0.1, most=1e6) or 0
    return custom_gpu(memory, bandwidth * 1e9, tflops * 1e12)


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _requests(options: argparse.Namespace) -> TraceOptions | list[tuple[int, int]] | None:
    prompt, new = options.prompt_tokens, options.new_tokens
    if options.trace:
        if prompt is not None or new is not None:
            raise user_error("error.sim.plan_both")
        return words.trace_of(options)
    for flag in (*words.TRACE, "--skip-bad-rows"):
        if flag != "--rate" and getattr(options, attribute(flag)):
            raise user_error("error.sim.unused", flag=flag, other="--trace")
    if (prompt is None) != (new is None):
        raise user_error("error.sim.needs", flags=f"--{'new' if new is None else 'prompt'}-tokens")
    if prompt is None or new is None:
        if options.rate is not None:
            raise user_error("error.sim.needs", flags="--prompt-tokens, --new-tokens")
        return None
    if options.context is not None:
        raise user_error("error.sim.unused_beside", flag="--context", other="--prompt-tokens")
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
        text = _json(data)
    with writing(path):
        write_atomic(path, text)
