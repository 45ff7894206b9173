"""Files are read up to a limit, which the message names; what is nested too deeply is no crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from texts import fixed

from experiment.commands.main import main
from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files import bounded_reading as foreign
from experiment.text.errors import ExitCode

DEEP = "[" * 200_000

READERS: dict[str, Callable[[Path], list[str]]] = {
    "config": lambda file: ["--yes", "--config", str(file)],
    "gate": lambda file: ["--yes", "--gate", str(file)],
    "baseline": lambda file: ["--yes", "--baseline", str(file)],
    "sweep": lambda file: ["sweep", str(file)],
    "latency": lambda file: [
        "simulate", "--trace", "sharegpt-like", "--model", "gpt2", "--gpu", "a100-80gb",
        "--latency", str(file),
    ],
    "bench": lambda file: ["bench", "--show", str(file)],
    "prompts": lambda file: ["--yes", "--prompts", str(file)],
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_a_file_without_end_is_refused(reader: str, refused: Callable[..., str]) -> None:
    words = READERS[reader](Path("/dev/zero"))
    refusal = fixed("error.no_record" if reader == "baseline" else "error.file_too_large")
    assert refusal in refused(*words)


@pytest.mark.parametrize("reader", READERS)
def test_deep_nesting_is_refused(reader: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / "deep"
    file.write_text(
        ("limits = " if reader in ("config", "gate", "sweep") else "") + DEEP, encoding="utf-8"
    )
    assert str(file) in refused(*READERS[reader](file))


# What looks like the end of a text, and is none, or the other way round.
HIDDEN = [
    'x = """a"""" # """"\n{key} = 1\n# """\n',
    "x = '''a'''' # ''''\n{key} = 1\n",
    'x = {{ "y" = 1, {key} = 2 }}\n',
    "[{key}]\n",
    "[[{key}]]\n",
    '"a".{key} = 1\n',
]


@pytest.mark.parametrize("text", HIDDEN)
@pytest.mark.parametrize("reader", ["config", "gate", "sweep"])
def test_a_key_of_many_parts_is_refused_wherever_it_stands(
    reader: str, text: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = tmp_path / "keys.toml"
    key = ".".join(['"a"', "a"] * 10_000)
    file.write_text(text.format(key=key), encoding="utf-8")
    assert str(file) in refused(*READERS[reader](file))


def test_a_line_without_end_is_no_trace(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / "sparse.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,5,5\n", encoding="utf-8"
    )
    os.truncate(file, 60 << 30)
    words = ["simulate", "--trace", str(file), "--model", "gpt2", "--gpu", "a100-80gb"]
    before = psutil.Process().io_counters().read_chars
    assert "longer than 8 MiB" in refused(*words)
    # The rest of the file is not read.
    assert psutil.Process().io_counters().read_chars - before < 1 << 30


def test_a_grid_of_more_requests_than_memory_holds_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = tmp_path / "grid.toml"
    grid = 'policy=["paged"]\nmodel="gpt2"\ngpu="a100-80gb"\ntrace="sharegpt-like"\n'
    file.write_text(f"[sweep]\n{grid}requests=1000000000\n", encoding="utf-8")
    assert "requests" in refused("sweep", str(file))


def test_the_limit_of_a_config_is_named(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / "large.toml"
    file.write_text("#" * (MAX_CONFIG_BYTES + 1), encoding="utf-8")
    assert "1 MiB" in refused("--config", str(file))


def test_a_large_simulation_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    with (tmp_path / "sim.json").open("wb") as file:
        file.truncate(foreign.MAX_JSON_BYTES + 1)
    assert "32 MiB" in refused("render", str(tmp_path))


def test_a_log_without_lines_is_refused(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MAX_LINE_BYTES", 1 << 20)
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert "1 MiB" in refused("render", str(tmp_path))
    monkeypatch.setattr(foreign, "MAX_LOG_BYTES", 1 << 20)
    assert "1 MiB" in refused("render", str(tmp_path))


def test_a_trace_of_more_requests_than_memory_is_allowed_for_is_refused(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.csv"
    rows = ("2023-11-16 18:17:05,5,3\n" for _ in range(11))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows), encoding="utf-8")
    words = ["plan", "--trace", str(trace), "--model", "gpt2", "--gpu", "a100-80gb"]
    monkeypatch.setenv("PAGEDKV_MEMORY", "2560B")
    line = refused(*words)
    assert "10 requests" in line
    assert "--head" in line
    assert main([*words, "--head", "10", "--lang", "en"]) == ExitCode.OK


@pytest.mark.parametrize("text", ["NaN", "[1, Infinity]", '"\\ud800"', '{"a": "\\uD834"}', "\xff"])
def test_what_cannot_be_written_again_is_no_json(text: str) -> None:
    data = text.encode("latin-1") if text == "\xff" else text.encode()
    with pytest.raises(ValueError, match=r"."):
        foreign.parse_json(data)
