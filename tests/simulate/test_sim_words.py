"""The simulator's words: what is wrong ends in one line that says where, and exit code 2."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from sim_runs import MODEL, hashed_trace, simulated
from texts import fixed

from experiment.commands.main import main
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.simulate import trace as traces
from experiment.simulate.names import LISTS
from experiment.simulate.trace import _Counter, _pieces
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from experiment.workload.kvsim_errors import cell_message, simulation_message, trace_message
from kvsim.sim.config import SimulationError
from kvsim.traces.types import TraceError

HAN = re.compile(r"[\u4e00-\u9fff]")
# A clause of English: Python's and the system's own words are none of ours.
PROSE = re.compile(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}|[A-Z][a-z]+Error|Expecting")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FILES = {
    "empty.csv": "",
    "other.csv": "a,b\n1,2\n",
    "backwards.csv": AZURE + "2023-11-16 18:15:46,10,5\n2023-11-16 18:15:40,10,5\n",
    "zero.csv": AZURE + "2023-11-16 18:15:46,0,5\n",
    "timed.jsonl": '{"timestamp": 1, "input_length": 5, "output_length": 3}\n',
    "texts.jsonl": '{"prompt": "Hello"}\n',
    "broken.json": '[{"conversations": []},',
    "torn.jsonl": '{"timestamp": 1, "input_length": 5, "output_length": 3}\n{"timestamp": 2, "in\n',
    "huge.csv": AZURE + "2023-11-16 18:15:46,99999999999999999999999,5\n",
    "picture.png": b"\x89PNG\r\n\x1a\n\x00\x00\xff\x07",
    "cut.csv.gz": gzip.compress((AZURE + "2023-11-16 18:15:46,10,5\n").encode())[:-9],
    "grid.toml": '[sweep]\npolicy = "paged"\nmodel = "opt-13b"\ngpu = "a100-40gb"\n'
    'trace = "alpaca-like"\nrequests = 3\nkv_budget = "1GiB"\n',
}
DRAWN = ("--trace", "alpaca-like")
# Words, and what the line must name.
WRONG = {
    "no model": (("simulate",), "--model"),
    "unknown model": (("simulate", "--model", "opt-13"), "opt-13b"),
    "far model": (("simulate", "--model", "xyzzy"), "--list models"),
    "unknown GPU": (("simulate", "--model", "opt-13b", "--gpu", "a100"), "a100-40gb"),
    "refused model": (("simulate", "--model", "t5", "--gpu", "h100"), "t5"),
    "no trace": (("simulate", *MODEL), "--trace"),
    "layers with states": (
        ("simulate", "--model", "falcon-h1-7b", "--gpu", "h100", *DRAWN), "falcon-h1-7b"),
    "no such trace": (("simulate", *MODEL, "--trace", "nothing.csv"), "nothing.csv"),
    "near preset": (("simulate", *MODEL, "--trace", "sharegpt"), "sharegpt-like"),
    "unknown policy": (("simulate", *MODEL, *DRAWN, "--policy", "paged+prefx"), "paged+prefix"),
    "unknown format": (("simulate", *MODEL, "--trace", "zero.csv", "--format", "azur"), "azure"),
    "unknown list": (("simulate", "--list", "model"), "models"),
    "empty file": (("simulate", *MODEL, "--trace", "empty.csv"), "empty.csv"),
    "other file": (("simulate", *MODEL, "--trace", "other.csv"), "other.csv"),
    "wrong format": (("simulate", *MODEL, "--trace", "zero.csv", "--format", "vidur"), "vidur"),
    "clock backwards": (("simulate", *MODEL, "--trace", "backwards.csv"), "3"),
    "zero length": (("simulate", *MODEL, "--trace", "zero.csv"), "2"),
    "nothing left": (("simulate", *MODEL, "--trace", "zero.csv", "--skip-bad-rows"), "2"),
    "no unit": (("simulate", *MODEL, "--trace", "timed.jsonl"), "--unit"),
    "bad unit": (("simulate", *MODEL, "--trace", "timed.jsonl", "--unit", "h"), "--unit"),
    "no output length": (("simulate", *MODEL, "--trace", "texts.jsonl"), "1"),
    "broken JSON": (("simulate", *MODEL, "--trace", "broken.json"), "broken.json"),
    "a directory": (("simulate", *MODEL, "--trace", "."), "."),
    "torn row": (("simulate", *MODEL, "--trace", "torn.jsonl", "--unit", "s"), '"timestamp": 2'),
    "huge length": (("simulate", *MODEL, "--trace", "huge.csv"), "9999"),
    "a picture": (("simulate", *MODEL, "--trace", "picture.png"), "UTF-8"),
    "half a file": (("simulate", *MODEL, "--trace", "cut.csv.gz"), "gzip"),
    "directory as latency": (("simulate", *MODEL, *DRAWN, "--latency", "."), "UTF-8"),
    "grid of no policy": (("sweep", "grid.toml", "--set", "policy=pagd"), "paged+prefix"),
    "grid of no model": (("sweep", "grid.toml", "--set", "model=xyzzy"), "--list models"),
    "grid of a refused model": (("sweep", "grid.toml", "--set", "model=t5"), "t5"),
    "grid of no GPU": (("sweep", "grid.toml", "--set", "gpu=a100"), "a100-40gb"),
    "small pool": (("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "1KiB"), "--kv-budget"),
    "nothing fits": (
        ("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "13MiB", "--policy", "paged",
         "--requests", "4"), "4"),
    "budget beyond": (("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "99GiB"), "40 GiB"),
    "beside weights": (("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "30GiB"), "40 GiB"),
    "no size": (("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "much"), "--kv-budget"),
    "beyond positions": (("simulate", *MODEL, *DRAWN, "--max-length", "9999"), "2,048"),
    "hardly fits": (("simulate", *MODEL, *DRAWN, "--max-length", "9"), "9"),
    "rate of nothing": (("simulate", *MODEL, *DRAWN, "--rate", "2x"), "2x"),
    "file's word": (("simulate", *MODEL, *DRAWN, "--unit", "s"), "--unit"),
    "preset's word": (("simulate", *MODEL, "--trace", "zero.csv", "--cv", "1"), "--cv"),
    "swap of no block": (
        ("simulate", *MODEL, *DRAWN, "--preemption", "swap", "--swap-space", "1MiB"), "12.5"),
    "swap space unused": (("simulate", *MODEL, *DRAWN, "--swap-space", "4GiB"), "--preemption"),
    "burst without a rate": (("simulate", *MODEL, *DRAWN, "--cv", "2"), "--rate"),
    "tokens of a drawn trace": (("simulate", *MODEL, *DRAWN, "--output-tokens", "9"), "--output-"),
    "branches of no beams": (("simulate", *MODEL, *DRAWN, "--branching", "0.2"), "--beams"),
    "samples of beams": (
        ("simulate", *MODEL, *DRAWN, "--samples", "3", "--beams", "2"), "--beams"),
    "overhead beside a budget": (
        ("simulate", *MODEL[:4], *DRAWN, "--kv-budget", "1GiB", "--overhead", "1GiB"), "--kv-b"),
    "plan of no trace": (
        ("plan", *MODEL, "--prompt-tokens", "9", "--new-tokens", "9", "--tile", "7"), "--trace"),
    "swap into nothing": (("simulate", *MODEL, *DRAWN, "--preemption", "swap"), "--swap-space"),
    "samples of max": (("simulate", *MODEL, *DRAWN, "--policy", "max", "--samples", "2"), "max"),
    "no number": (("simulate", *MODEL, *DRAWN, "--head", "few"), "--head"),
    "no latency": (("simulate", *MODEL, *DRAWN, "--latency", "timed.jsonl"), "timed.jsonl"),
    "unknown flag": (("simulate", "--blok-size", "16"), "--block-size"),
    "plan of half a request": (("plan", *MODEL, "--prompt-tokens", "9"), "--new-tokens"),
    "plan of a context and lengths": (
        ("plan", *MODEL, "--context", "99", "--prompt-tokens", "9", "--new-tokens", "9"),
        "--context"),
    "plan on a GPU with one figure": (
        ("plan", *MODEL[:2], "--gpu-memory", "24GiB"), "--bandwidth, --tflops"),
    "plan of no version": (("plan", *MODEL, "--vllm-version", "latest"), "latest"),
    "plan of both": (("plan", *MODEL, *DRAWN, "--new-tokens", "5"), "--trace"),
    "no room": (
        ("plan", "--model", "opt-66b", "--gpu", "a10", "--prompt-tokens", "5",
         "--new-tokens", "5"), "--gpus"),
    "all too long": (
        ("plan", *MODEL, "--prompt-tokens", "500", "--new-tokens", "5", "--max-length", "99"),
        "99"),
    "not one request": (
        ("plan", *MODEL[:4], "--kv-budget", "16MiB", "--prompt-tokens", "99",
         "--new-tokens", "5"), "104"),
    "no run": (("calibrate",), "calibrate"),
    "missing record": (("calibrate", "none"), "none"),
    "no records": (("calibrate", "timed.jsonl"), "timed.jsonl"),
    "word of runs": (("calibrate", "timed.jsonl", "--arm", "paged"), "--arm"),
    "half a bound": (("calibrate", "timed.jsonl", "--model", "opt-13b"), "--gpu"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_end_in_one_line_of_the_language(
    name: str, here: Path, refused: Callable[..., str]
) -> None:
    words, part = WRONG[name]
    english, chinese = (refused(*words, lang=lang) for lang in LANGUAGES)
    assert part in english
    assert part in chinese
    assert not HAN.search(english)
    assert HAN.search(chinese)
    assert not PROSE.search(chinese)
    assert {path.name for path in here.rglob("*")} <= {*FILES, "reports"}


NEEDED = {
    "plan": {"--model": "opt-13b", "--gpu": "h100"},
    "simulate": {"--model": "opt-13b", "--gpu": "h100", "--trace": "alpaca-like"},
}


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (command, given)
        for command, needed in NEEDED.items()
        for count in range(len(needed))
        for given in combinations(needed, count)
    ],
)
def test_all_options_that_are_missing_are_named_at_once(
    command: str, given: tuple[str, ...], refused: Callable[..., str]
) -> None:
    needed = NEEDED[command]
    line = refused(command, *(word for flag in given for word in (flag, needed[flag])))
    assert {flag for flag in needed if flag in line} == needed.keys() - {*given}
    assert ("--list models" in line) is ("--model" not in given)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("what", LISTS)
def test_every_command_that_points_to_a_list_prints_it(
    what: str, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = set()
    for command in ("simulate", "plan", "calibrate", "sweep"):
        assert main([command, "--list", what, "--lang", lang]) == ExitCode.OK
        printed.add(capsys.readouterr().out)
    (text,) = printed
    known = {"models": "llama-3.1-70b", "gpus": "h100", "policies": "oracle",
             "presets": "alpaca-like", "formats": "mooncake"}  # fmt: skip
    assert known[what] in text
    assert bool(HAN.search(text)) == (lang == "zh")


def test_errors_of_kvsim_are_rendered_with_file_line_and_reason() -> None:
    t = Translator("en")
    row = TraceError("bad_row", file="a.csv", line=7, reason="columns", value=3)
    assert f"a.csv, line 7: {fixed('trace_reason.columns')}" in t.message(trace_message(row))
    unread = TraceError("unreadable", file="a.csv")
    unread.__cause__ = PermissionError(13, "no")
    assert "permission" in t.message(trace_message(unread))
    none = SimulationError("nothing_fits", requests=3, reason="seqs", needed=8, available=4)
    assert "8 concurrent sequences" in t.message(simulation_message(none))
    stuck = SimulationError("livelock", steps=9, finished=1, waiting=2, seconds=1.0)
    assert "9 steps" in t.message(simulation_message(stuck))
    bad = SimulationError("bad_option", option="block_size", value=0)
    assert "--block-size" in t.message(simulation_message(bad))


def test_what_is_skipped_edited_and_refused_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = hashed_trace(tmp_path / "t.jsonl")
    lines = trace.read_text(encoding="utf-8").splitlines()
    lines[3] = '{"timestamp": 300, "input_length": -4, "output_length": 3}'
    lines.insert(8, "")
    long = {"timestamp": 9_000, "input_length": 2040, "output_length": 60}
    trace.write_text("\n".join([*lines, json.dumps(long)]) + "\n", encoding="utf-8")
    words = ("--trace", str(trace), "--unit", "ms", "--hash-block-size", "16", "--skip-bad-rows",
             "--tile", "100", "--rate", "3x", "--policy", "paged")  # fmt: skip
    data = simulated(tmp_path / "out", *MODEL, *words)
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        "61 read, 1 rejected, 100 requests simulated", "first: line 4, -4", "1 blank lines",
        "repeated to 100 requests", "request rate × 3", "ms (as given)", "16 tokens (as given)",
        "1 requests refused: 2,099 slots needed, maximum length 2,048",
    ):  # fmt: skip
        assert part in printed, part
    assert data["trace"]["sha256"][:40] in printed.replace(" ", "")
    assert [edit["kind"] for edit in data["trace"]["edits"]] == ["tile", "scale_rate"]


def test_a_policy_that_cannot_run_is_said_and_the_others_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*MODEL[:4], "--kv-budget", "1GiB", "--trace", "alpaca-like", "--requests", "20",
             "--max-length", "2048", "--policy", "static,paged")  # fmt: skip
    data = simulated(tmp_path / "out", *words, code=ExitCode.INCOMPLETE)
    static, paged = data["cells"]
    assert static["result"] is None
    assert static["error"]["key"] == "error.sim.pool_too_small"
    assert paged["result"]["requests"]["finished"] == 20
    assert "static: " in " ".join(capsys.readouterr().out.split())


def test_texts_are_counted_and_a_rate_is_drawn_for_a_trace_without_a_clock(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", "texts.jsonl", "--output-tokens", "4", "--rate", "2", "--seed", "5")
    simulated(here / "out", *MODEL, *words, "--policy", "paged")
    printed = " ".join(capsys.readouterr().out.split())
    assert fixed("sim.fact.gpt2_tokens") in printed
    assert "poisson, 2 per second, seed 5" in printed
    assert "ns (as given)" not in printed


SETTINGS = {"model": "opt-13b", "trace": "mine.csv", "policy": "max"}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("code", "params", "said"),
    [
        ("pool_too_small", {"budget": 1024, "needed": 2**21}, ("1 KiB", "2 MiB")),
        (
            "pool_too_large",
            {"budget": 2**40, "blocks": 2**25, "most": 2**24},
            ("1,024 GiB", "33,554,432", "16,777,216"),
        ),
        ("livelock", {"steps": 5000, "finished": 0, "waiting": 3, "seconds": 1.5}, ("5,000",)),
        (
            "nothing_fits",
            {"requests": 40, "reason": "blocks", "needed": 9, "available": 4},
            ("40", "9", "4"),
        ),
        ("bad_option", {"option": "policy", "value": "max"}, ("max",)),
        ("bad_option", {"option": "host_blocks", "value": -1}, ("-1",)),
        ("unsupported_geometry", {"reason": "recurrent"}, ("opt-13b",)),
        ("bad_row", {"line": 7, "reason": "time_not_a_number", "value": "x"}, ("mine.csv", "7")),
        ("of_another_version", {}, ("of_another_version",)),
    ],
)
def test_a_reason_names_what_it_is_about(
    lang: str, code: str, params: dict[str, Any], said: tuple[str, ...]
) -> None:
    text = Translator(lang).message(cell_message(code, params, SETTINGS))
    assert all(word in text for word in said), text
    assert not {"{", "}"} & set(text)


# Words, and what may lie between two pieces of a long text.
PARTS = (
    "it's", "a", "word", " ", "  ", "\n", "\n\n\t", "  \n ", "x_y", "_", "，", "_，", "。", "你好",
    "，你", "3", "12", "3，", "!", "!!", "...", "é", "e\u0301，", "🙂", "\u00a0", "\u3000", "²、",
    "'re", "<|endoftext|>", "+", "/", "」", "a'b", ".", "a<", "|", "a|b",
)  # fmt: skip


def test_pieces_have_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, counter, choose = gpt2_tokenizer(), _Counter(), random.Random(0)
    monkeypatch.setattr(traces, "_PIECE", 4)
    cut = 0
    for _ in range(400):
        text = "".join(choose.choices(PARTS, k=choose.randint(0, 40)))
        assert counter(text) == len(whole.encode(text)), repr(text)
        pieces = list(_pieces(text))
        assert "".join(pieces) == text
        cut += len(pieces) - 1
    assert cut > 1000
