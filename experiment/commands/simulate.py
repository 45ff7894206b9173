"""``simulate``: a trace under every policy, and the reports of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment import __version__
from experiment.commands import simulation_options as words
from experiment.commands.parser import make_parser, parse
from experiment.events.wall_clock import wall_clock
from experiment.files.bounded_reading import evaluating
from experiment.files.locks import RENDER_WAIT_S, directory_lock
from experiment.files.os_errors import writing
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import run_directory
from experiment.record.simulation import SCHEMA_VERSION, SIM_FILE, read_simulation, write_simulation
from experiment.simulate.latency_file import read_latency
from experiment.simulate.names import policies_of
from experiment.simulate.run import Found, Question, parts_of, run
from experiment.simulate.setup import Memory, Setup, length_limit
from experiment.simulate.trace import Loaded, holds_texts, load
from experiment.simulate.values import number, several, size, whole
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import message
from experiment.text.redaction import without_private
from kvsim.sim.config import CONTIGUOUS, PolicyName
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts


def simulate(arguments: list[str], t: Translator) -> int:
    """Run the command; returns the exit code.

    Raises:
        UserError: a word, the trace, the model or the memory does not fit.
    """
    options = parse(_parser(t), arguments, ())
    if words.shows_list(options, t):
        return ExitCode.OK
    question = _question(options)
    from experiment.report.console.simulation import SimulationConsole

    console = SimulationConsole(t.lang, options.ascii, options.quiet, options.details)
    head = _head(question, t.lang)
    with run_directory(Path(options.out) if options.out else None, "simulate-") as directory:
        return _measure(question, head, directory, console)


def _measure(question: Question, head: dict[str, Any], directory: Path, console: Any) -> int:
    found = Found()
    try:
        console.show_question(head)
        with console.progress(parts_of(question)) as watcher:
            run(question, watcher, found)
    except KeyboardInterrupt:
        if not found.cells:
            directory.rmdir()
            raise
    return _finish(directory, head, found, console)


def render_simulation(directory: Path, lang: str, ascii_only: bool, details: bool) -> int:
    """Draw an old simulation again.

    Raises:
        UserError: there is none of this schema version, it contradicts itself, or its files cannot
            be written.
    """
    from experiment.report.console.simulation import SimulationConsole

    console = SimulationConsole(lang, ascii_only, details=details)
    with directory_lock(directory, RENDER_WAIT_S), evaluating(directory / SIM_FILE):
        data = read_simulation(directory)
        console.show_question(data)
        files = _written(directory, data, lang)
        console.show_simulation(data, files)
    return ExitCode.OK


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "simulate")
    words.add(parser, t, words.TRACE)
    parser.add_argument("--skip-bad-rows", action="store_true", help=t("help.sim.skip_bad_rows"))
    words.add(parser, t, words.MODEL)
    words.add(parser, t, {"--policy": "NAME,..."} | words.LIMITS | words.SWEEPS)
    words.add(parser, t, {"--out": "DIR"})
    parser.add_argument("--details", action="store_true", help=t("help.details"))
    parser.add_argument("--quiet", "-q", action="store_true", help=t("help.quiet"))
    return parser


def _question(options: argparse.Namespace) -> Question:
    """Everything that can be wrong before a simulation begins is found here."""
    model, gpu = words.model_and_gpu(options, "--trace")
    memory = words.memory_of(options)
    limit = length_limit(model, whole("--max-length", options.max_length))
    setup = _setup(options, model, gpu, memory, limit)
    _check_host(setup)
    policies = _policies(options, setup)
    budgets = several("--budgets", options.budgets, size) or ()
    for budget in budgets:
        replace(memory, budget=budget).kv(model, gpu)
    stream = load(words.trace_of(options, limit))
    if options.max_length is None:
        setup = setup.of_longest(stream.facts.longest)
    return Question(
        stream=stream,
        setup=setup,
        policies=policies,
        block_sizes=several("--block-sizes", options.block_sizes, whole) or (),
        budgets=budgets,
        samples=several("--sample-counts", options.sample_counts, whole) or (),
        capacities=several("--capacities", options.capacities, whole),
    )


def _setup(
    options: argparse.Namespace,
    model: ModelFacts,
    gpu: GPUFacts,
    memory: Memory,
    limit: int | None,
) -> Setup:
    geometry = memory.geometry(model)
    branching = number("--branching", options.branching, most=1)
    beams = whole("--beams", options.beams) or 1
    samples = whole("--samples", options.samples)
    if beams > 1 and (samples or 1) > 1:
        raise user_error("error.sim.unused_beside", flag="--samples", other="--beams")
    if branching is not None and beams == 1:
        raise user_error("error.sim.unused", flag="--branching", other="--beams")
    limits = words.limits_of(options)
    if beams > limits.max_num_seqs:
        raise user_error("error.limit_le", config_key="--beams", value=beams,
                         limit=limits.max_num_seqs)  # fmt: skip
    calibrated = options.latency is not None
    latency = read_latency(Path(options.latency)) if calibrated else memory.roofline(model, gpu)
    return Setup(
        model=model,
        gpu=gpu,
        gpus=memory.gpus,
        geometry=geometry,
        dtype=memory.dtype_of(model),
        kv_dtype=memory.kv_dtype_of(model),
        budget=memory.kv(model, gpu),
        block_size=whole("--block-size", options.block_size) or 16,
        max_length=limit or 0,
        max_length_source="declared",
        latency=latency,
        latency_source="file" if calibrated else "roofline",
        limits=limits,
        samples=samples,
        beams=beams,
        branching=0.5 if branching is None else branching,
        seed=whole("--seed", options.seed, 0) or 0,
    )


def _check_host(setup: Setup) -> None:
    """Host memory that holds no block would be recomputing under another name.

    Raises:
        UserError: it holds none.
    """
    block, room = setup.block_size * setup.slot_bytes, setup.limits.swap_bytes
    if setup.limits.preemption == "swap" and room < block:
        raise user_error("error.sim.swap_small", size=room, block=block)


def _policies(options: argparse.Namespace, setup: Setup) -> Sequence[PolicyName]:
    """Those that were named; of the usual ones, those that can generate so many sequences."""
    found = policies_of(options.policy)
    several_each = setup.beams > 1 or (setup.samples or 1) > 1
    if options.policy is None and several_each:
        return [policy for policy in found if policy not in CONTIGUOUS]
    return found


def _head(question: Question, lang: str) -> dict[str, Any]:
    """What is known before anything runs."""
    stream: Loaded = question.stream
    return {
        "kind": "simulation",
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        **wall_clock(),
        "lang": lang,
        "command": [without_private(word) for word in sys.argv[1:]],
        "trace": stream.info.to_json(),
        "facts": stream.facts.to_json(),
        "texts": holds_texts(stream.info),
        "setup": question.setup.to_json(),
    }


def _finish(directory: Path, head: dict[str, Any], found: Found, console: Any) -> int:
    if not any(cell["result"] for cell in found.cells):
        directory.rmdir()
        if found.interrupted:
            raise KeyboardInterrupt
        raise UserError(found.failed[0])
    data = head | found.to_json()
    try:
        with shielded(), writing(directory, ExitCode.UNWRITABLE):  # it may have taken an hour
            write_simulation(directory, data)
            rendering_started()
        console.show_simulation(data, _written(directory, data, console.t.lang))
    except KeyboardInterrupt:
        console.warn(message("note.not_drawn", path=str(directory)))
        return ExitCode.INTERRUPTED
    if found.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INCOMPLETE if found.failed else ExitCode.OK


def _written(directory: Path, data: dict[str, Any], lang: str) -> list[str]:
    """Write every report; names of all files that are there."""
    from experiment.report.files.simulation import write_reports
    from experiment.report.pages.index import write_index

    with writing(directory, ExitCode.UNWRITABLE):
        files = write_reports(directory, data, lang)
        index = write_index(directory, lang)
    return [str(path) for path in (*files, directory / SIM_FILE, index) if path]
