"""What is fuzzed, and what must hold: a right result or one clear line, whatever the bytes are.

bytes ─► target ─► a value, or a UserError that both languages can say in one line
              └──► anything else is a finding: another exception, a traceback, 10 s, 1 GiB
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import seeds

from experiment.commands.main import main
from experiment.compare.baseline import read_baseline
from experiment.compare.facts import read_side
from experiment.compare.gate import judge, read_gate
from experiment.compare.sides import compare_sides
from experiment.config.reading import load_config, parse_assignment
from experiment.files.parse_memory import memory_limit
from experiment.gpucheck.result import read_result
from experiment.report.console.compare import CompareConsole
from experiment.report.files.markdown import GPUS
from experiment.report.files.markup import marks
from experiment.simulate.latency_file import latency_to_json, read_latency
from experiment.simulate.sweep import make_cells, read_grid
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode, UserError
from experiment.workload.kvsim_errors import translate_errors
from experiment.workload.requests import check_prompts, choose_prompts, read_prompts
from kvsim.latency.clock import StepClock
from kvsim.latency.roofline import StepWork
from kvsim.planning.speed import Traffic, speed
from kvsim.traces import Head, ReadOptions, TraceFile
from kvsim.traces.parse import UNITS

Run = Callable[[bytes, Path], None]
# Of every hundred commands two or three go far; nothing heavier than these few may begin.
_MOST_ROWS = 50
DOCUMENTED = {code for name, code in vars(ExitCode).items() if name.isupper()} - {ExitCode.INTERNAL}


@dataclass(frozen=True)
class Target:
    """One entrance for foreign data: what takes it, right examples, and how it is mutated."""

    run: Run
    seeds: Callable[[], list[bytes]]
    form: str = "text"


class FindingError(AssertionError):
    """Something that must not happen, and did."""


def check(name: str, data: bytes) -> str:
    """Give ``data`` to a target; returns ``accepted`` or ``refused``.

    Raises:
        Exception: whatever else came of it is a finding.
    """
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_scratch()))
    try:
        TARGETS[name].run(data, place)
    except UserError as error:
        _said_well(error)
        return "refused"
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return "accepted"


def _scratch() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _said_well(error: UserError) -> None:
    for lang in LANGUAGES:
        text = Translator(lang).message(error.text)
        if not text.strip() or "\n" in text.strip() or len(text) > 3000:
            raise FindingError(f"not one clear line: {text[:200]!r}") from error


def _file(place: Path, data: bytes, name: str = "input") -> Path:
    path = place / name
    path.write_bytes(data)
    return path


def _program(*words: str) -> None:
    """Run the program in this process; it must end with a known code and, if wrong, one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _nothing_heavy():
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    printed = err.getvalue().strip()
    if "Traceback" in printed or code not in DOCUMENTED:
        raise FindingError(f"code {code}: {printed[-300:]}")
    if code == ExitCode.UNWRITABLE and words[0] == "render":
        raise FindingError(f"a file that cannot be made of it: {printed[-300:]}")
    if code == ExitCode.USAGE and len(printed.splitlines()) != 1:
        raise FindingError(f"not one line: {printed[-300:]!r}")


def _run(config: Any, _: object) -> int:
    check_prompts(choose_prompts(config))
    return 0


# Commands go as far as they can without a model; plots are drawn by other tests.
REPLACED: dict[str, Any] = {
    "experiment.commands.walkthrough.run_walkthrough": _run,
    "experiment.commands.selfcheck.selfcheck": lambda *_: 0,
    "experiment.bench.run.Bench.run": lambda _: None,
    "experiment.gpucheck.run.Examination.run": lambda _: None,
    "experiment.report.files.write.draw_plots": lambda *_: (),
    "experiment.simulate.sweep._computed": lambda *_: (),
    "kvsim.paper.result.PARTS": (),
    "huggingface_hub.constants.HF_HUB_OFFLINE": True,
}


@contextlib.contextmanager
def _nothing_heavy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, instead in REPLACED.items():
            patch.setattr(name, instead)
        yield


def _commands(file: str, *lines: str) -> Run:
    """A target that writes a file and runs commands; ``{at}`` is its place, ``{file}`` its path."""

    def run(data: bytes, place: Path) -> None:
        path = _file(place, data, file)
        for line in lines:
            _program(*line.format(at=place, file=path).split())

    return run


def _config(data: bytes, place: Path) -> None:
    config = load_config(_file(place, data), {})
    with contextlib.chdir(place):
        check_prompts(choose_prompts(config))
    assert config.arm_names


def _set(data: bytes, place: Path) -> None:
    lines = data.decode("utf-8", "replace").split("\n")[:8]
    config = load_config(None, dict(parse_assignment(line) for line in lines))
    assert load_config(None, {}) or config


def _gate(data: bytes, place: Path) -> None:
    limits = read_gate(_file(place, data))
    judged = judge(limits, seeds.side(), seeds.side())
    with contextlib.redirect_stdout(io.StringIO()):
        for lang in LANGUAGES:
            CompareConsole(lang, True).gate(judged)


def _baseline(data: bytes, place: Path) -> None:
    comparison = compare_sides(read_baseline(_file(place, data)), seeds.side())
    with contextlib.redirect_stdout(io.StringIO()):
        CompareConsole("zh", True).show(comparison)


def _trace(data: bytes, place: Path) -> None:
    path = _file(place, data)
    options = [ReadOptions(policy="skip", count_tokens=len, output_tokens=3, turns="all")]
    options += [ReadOptions(unit=unit, count_tokens=len) for unit in UNITS]
    refusals = []
    for each in options:
        try:
            with translate_errors():
                read = Head(TraceFile(path, each), _MOST_ROWS)
                rows = list(read)
                assert read.info.accepted == len(rows)
                assert all(row.prompt_tokens > 0 and row.output_tokens > 0 for row in rows)
                assert all(row.arrival_s >= 0 for row in rows)
        except UserError as error:
            _said_well(error)
            refusals.append(error)
    if len(refusals) == len(options):
        raise refusals[0]


def _record(data: bytes, place: Path) -> None:
    _file(place, data, "events.jsonl")
    side, limits = read_side(place), read_gate(_file(place, seeds.gates()[1], "gate.toml"))
    with contextlib.redirect_stdout(io.StringIO()):
        for pair in ((side, seeds.side()), (seeds.side(), side)):
            CompareConsole("en", True).show(compare_sides(*pair))
            judge(limits, *pair)


def _summary(data: bytes, place: Path) -> None:
    _file(place, seeds.logs()[0], "events.jsonl")
    reports = place / "reports"
    (reports / "one").mkdir(parents=True)
    _file(reports / "one", data, "run.json")
    _file(reports / "one", b"", "report.html")
    _file(place, data, "run.json")
    from experiment.record.log import read_record
    from experiment.report.pages.index import entries

    assert read_record(place).events
    assert len(entries(reports)) == 1


def _gpucheck(data: bytes, place: Path) -> None:
    _file(place, data, "gpucheck.json")
    page = _file(place, "\n".join(marks(GPUS)).encode(), "page.md")
    _program("gpucheck", "--out", str(place), "--markdown", str(page))
    read_result(place)


def _latency(data: bytes, place: Path) -> None:
    latency = read_latency(_file(place, data))
    clock = StepClock(latency)
    for tokens in (1, 300, 1 << 40):  # as plan and simulate price it
        found = speed(latency, Traffic.of([(tokens, tokens)]), 3.0)
        assert found is not None
        assert 0 < found.rate < math.inf
        chunks = [(0, tokens, False), (tokens, 1, True)]
        assert clock.step(StepWork.of(chunks)) > 0
        assert clock.decode_run(3, tokens, 300).duration >= 0
    assert json.dumps(latency_to_json(latency), allow_nan=False)


def _sweep(data: bytes, place: Path) -> None:
    make_cells(read_grid(str(_file(place, data)), ()))


def _prompts(data: bytes, place: Path) -> None:
    found = read_prompts(_file(place, data))
    assert all(text.strip() for text in found)
    "".join(found).encode()


def _model(data: bytes, place: Path) -> None:
    from experiment.children.prepare import accepted_model
    from experiment.model.facts import eos_token_id
    from experiment.model.load import optional_tokenizer

    try:
        files = json.loads(data)
    except (ValueError, RecursionError):
        files = None
    files = files if isinstance(files, dict) else {"config.json": data.decode("utf-8", "replace")}
    for name in seeds.MODEL_FILES:
        content = files.get(name)
        text = content if isinstance(content, str) else json.dumps(content)
        _file(place, text.encode("utf-8", "replace"), name)
    with contextlib.redirect_stderr(io.StringIO()):
        config, _ = accepted_model(place, "mine", 64)
        eos_token_id(place, config.to_dict(), "mine")
        with memory_limit(place):
            optional_tokenizer(str(place))


def _layers(data: bytes, place: Path) -> None:
    from experiment.simulate.plan import plan
    from experiment.simulate.setup import Memory

    path = str(_file(place, data, "config.json"))
    for gpus in (1, 4):
        memory = Memory(budget=1 << 33, weights=1 << 30, gpus=gpus)
        assert plan(path, "h100", [(500, 300)], memory)["plan"]["blocks"] > 0


def _weights(data: bytes, place: Path) -> None:
    from experiment.model.tensors import headers

    found = headers(_file(place, data, "model.safetensors"))  # a file may hold no tensor
    assert all(isinstance(name, str) for name in found)


def _words(data: bytes, place: Path) -> None:
    words = data.decode("utf-8", "replace").replace("\0", "").split("\n")[:14]
    if "simulate" in words and "--list" not in words:
        words += ["--requests", "3", "--head", "3", "--tile", "1"]
    with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")  # asks nothing
        _program(*words)


TARGETS: dict[str, Target] = {
    "config": Target(_config, seeds.configs, "toml"),
    "set": Target(_set, seeds.assignments, "toml"),
    "words": Target(_words, seeds.command_lines, "words"),
    "gate": Target(_gate, seeds.gates, "toml"),
    "baseline": Target(_baseline, seeds.baselines, "json"),
    "trace": Target(_trace, seeds.traces, "rows"),
    "log": Target(_commands("events.jsonl", "render {at} --ascii"), seeds.logs, "rows"),
    "record": Target(_record, seeds.logs, "rows"),
    "summary": Target(_summary, lambda: [b'{"results": {}, "config": {}}'], "json"),
    "calibrate": Target(
        _commands("input", "calibrate {file} --folds 2"), seeds.request_records, "rows"
    ),
    "calibrate-log": Target(
        _commands("events.jsonl", "calibrate {at} --folds 2 --lang zh"), seeds.logs, "rows"
    ),
    "simulation": Target(_commands("sim.json", "render {at} --ascii"), seeds.simulations, "json"),
    "bench": Target(
        _commands("input", "bench --show {file} --ascii",
                  "bench --show {file} --markdown {at}/page.md"),
        seeds.benches, "json",
    ),
    "gpucheck": Target(_gpucheck, seeds.gpu_checks, "json"),
    "latency": Target(_latency, seeds.latencies, "json"),
    "sweep": Target(_sweep, seeds.sweeps, "toml"),
    "prompts": Target(_prompts, seeds.prompts, "rows"),
    "model": Target(_model, seeds.models, "json"),
    "layers": Target(_layers, seeds.layers, "json"),
    "start-log": Target(
        _commands("input", "plan --from-log {file} --ascii --details",
                  "plan --from-log {file} --json --lang zh"),
        seeds.start_logs,
    ),
    "weights": Target(_weights, seeds.weights),
}  # fmt: skip


@cache
def seeds_of(name: str) -> tuple[bytes, ...]:
    """Right examples of a target's input."""
    return tuple(TARGETS[name].seeds())
