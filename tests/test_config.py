"""Configs: what is accepted, what is refused, and whether the refusal helps."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.config.reading import load_config, parse_assignment
from experiment.config.schema import SIZES, Config, config_keys, expand_arms, make_config
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.sizes import parse_bytes

CONFIGS = Path(__file__).parent.parent / "configs"


def refusal(path: Path | None = None, **overrides: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        load_config(path, {key.replace("__", "."): value for key, value in overrides.items()})
    for lang in LANGUAGES:
        assert "\n" not in Translator(lang).message(caught.value.text)
    return caught.value


# Grids of simulations and gates have a form and tests of their own.
RUNS = sorted(
    path for path in CONFIGS.glob("*.toml") if not path.stem.startswith(("gate-", "sweep-"))
)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path: Path) -> None:
    load_config(path, {})


def test_the_default_file_says_what_the_defaults_are() -> None:
    assert load_config(CONFIGS / "default.toml", {}) == Config()


def test_the_default_file_names_every_key_and_its_examples_are_values() -> None:
    text = (CONFIGS / "default.toml").read_text(encoding="utf-8")
    data = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    named = {f"{section}.{name}" for section, table in data.items() for name in table}
    assert named == set(config_keys())
    assert make_config(data) != Config()


@pytest.mark.parametrize(
    ("text", "size"),
    [("144MiB", 144 << 20), ("1.5 GiB", 3 << 29), ("32768", 32768), ("2k", 2048), ("7 B", 7)],
)
def test_sizes_are_read_in_binary_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12 XB", "-3MiB", "1,5GiB", "144MB", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_bytes(text)
    assert refusal(cache__budget=text).text.key == "error.not_a_size"


@pytest.mark.parametrize("key", SIZES)
def test_a_number_that_cannot_be_bytes_is_refused(key: str, tmp_path: Path) -> None:
    section, name = key.split(".")
    path = tmp_path / "run.toml"
    for value in ("4", '"4"', "4.0", "8192"):
        path.write_text(f"[{section}]\n{name} = {value}\n", encoding="utf-8")
        bare = value.strip('"')
        assert refusal(path).text.params == {"config_key": key, "value": bare}
    for value, size in (("150994944", 150_994_944), ('"150994944"', 150_994_944), ('"4B"', 4)):
        path.write_text(f"[{section}]\n{name} = {value}\n", encoding="utf-8")
        config = load_config(path, {})
        assert getattr(getattr(config, section), name) == size


def test_an_unknown_key_names_the_nearest_right_one() -> None:
    error = refusal(cache__blocksize=32)
    assert error.text.params["near"] == "cache.block_size"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cache.block_size", 0, "error.limit_ge"),
        ("cache.block_size", "many", "error.kind.whole"),
        ("cache.block_size", 1.5, "error.kind.whole"),
        ("cache.block_size", [16], "error.kind.whole"),
        ("cache.block_size", True, "error.kind.whole"),
        ("run.arm_timeout_s", True, "error.kind.number"),
        ("cache.budget", True, "error.not_a_size"),
        ("engine.swap_space", True, "error.not_a_size"),
        ("model.dtype", True, "error.not_a_choice"),
        ("run.threads", "some", "error.kind.whole"),
        ("run.arm_timeout_s", "long", "error.kind.number"),
        ("model.init_range", float("nan"), "error.kind.number"),
        ("model.offline", "perhaps", "error.kind.yes_no"),
        ("model.offline", 3, "error.kind.yes_no"),
        ("model.name", 7, "error.kind.text"),
        ("model.name", "", "error.empty"),
        ("workload.prompts", "Hello", "error.kind.list"),
        ("workload.prompts", [7], "error.kind.text"),
        ("run.device", "tpu", "error.not_a_choice"),
        ("model.dtype", "fp7", "error.not_a_choice"),
        ("model.init_range", 0.5, "error.limit_le"),
        ("run.arms", ["pagd"], "error.what.arm"),
        ("run.arms", [], "error.no_arms"),
        ("workload.max_new_tokens", 0, "error.limit_ge"),
        ("sampling.top_p", 0, "error.limit_gt"),
        ("sampling.top_p", 1.5, "error.limit_le"),
        ("sampling.n", 0, "error.limit_ge"),
        ("sampling.seed", 2**32, "error.limit_lt"),
        ("sampling.stop_token_ids", [3, -1], "error.limit_ge"),
        ("sampling.stop_token_ids", 3, "error.kind.list"),
        ("sampling.temperature", "hot", "error.kind.number"),
        ("sampling.temperature", 0.001, "error.low_temperature"),
        ("sampling.min_new_tokens", 51, "error.above_other"),
        ("engine.admission", "half", "error.not_a_choice"),
        ("engine.scheduler", "vllm-0.1", "error.not_a_choice"),
        ("engine.max_num_active_seqs", 257, "error.above_other"),
        ("engine.max_num_scheduled_tokens", 4096, "error.above_other"),
        ("engine.long_prefill_token_threshold_adaptive", True, "error.needs_flag"),
        ("cache", 3, "error.kind.section"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_one_line(
    key: str, value: Any, expected: str
) -> None:
    error = refusal(**{key: value})
    kind = error.text.params.get("kind")
    assert expected == (error.text.key if kind is None else kind.key)
    assert error.text.params.get("config_key", key) == key


def test_an_interval_that_a_scheduler_does_not_know_is_refused() -> None:
    both = {"engine__prefill_schedule_interval": 2, "engine__scheduler": "vllm-0.32"}
    assert refusal(**both).text.key == "error.needs_flag"


def test_a_choice_lists_the_choices() -> None:
    assert refusal(run__device="tpu").text.params["choices"] == "auto, cpu, cuda"


def test_numbers_may_come_as_text_from_the_command_line() -> None:
    assert load_config(None, {"cache.block_size": "32"}).cache.block_size == 32


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[cache]\nblock_size = 8\nmax_length = 64\n", encoding="utf-8")
    config = load_config(path, {"cache.block_size": 4})
    assert (config.cache.block_size, config.cache.max_length) == (4, 64)


def test_a_mark_that_editors_put_in_front_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text("[cache]\nblock_size = 8\n", encoding="utf-8-sig")
    assert load_config(path, {}).cache.block_size == 8


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml").text.key == "error.file_missing"
    assert refusal(tmp_path).text.key == "error.file_unreadable"
    bad = tmp_path / "bad.toml"
    bad.write_text("[cache\nblock_size = 1", encoding="utf-8")
    assert refusal(bad).text.params["line"] == 1
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert refusal(binary).text.key == "error.file_unreadable"
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (2 << 20))
    assert refusal(large).text.key == "error.file_too_large"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[cache]\nblock_size =", 2),
        ("[workload]\nprompts = [\n  'a',\n\n\n", 3),  # never closed: seen at the end
        ('model = """\nline 9 of a text', 2),
        ("[cache]\nblock_size = 1\nblock_size = 2\nmax_length = 64\n", 3),
        ("x = " + "[" * 5000, None),
        ("x = 0x" + "f" * 5000, None),
        ("x = " + "9" * 5000, None),
    ],
)
def test_toml_that_cannot_be_read_names_the_line_where_there_is_one(
    text: str, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    error = refusal(path)
    assert error.text.params.get("line") == line
    for lang in LANGUAGES:
        said = Translator(lang).message(error.text)
        assert "—" not in said
        assert (str(line) if line else "TOML") in said.replace(str(path), "")


def test_groups_of_arms_unfold_in_order_and_once() -> None:
    names = expand_arms(["paged", "contiguous.batch", "contiguous"])
    assert names == ("paged", "contiguous.batch", "contiguous.sequential", "contiguous.growing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cache.block_size=32", ("cache.block_size", 32)),
        ("model.name=gpt2", ("model.name", "gpt2")),
        ("model.offline=true", ("model.offline", True)),
        ('workload.prompts=["a", "b"]', ("workload.prompts", ["a", "b"])),
    ],
)
def test_assignments_are_toml_where_they_can_be(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


# What TOML and the command line can give: no other type ever reaches a config.
SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.dates())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(config_keys()) | st.text(), VALUES, max_size=3))
def test_no_override_ever_ends_in_another_error(overrides: dict[str, Any]) -> None:
    try:
        config = load_config(None, overrides)
    except UserError as error:
        Translator("zh").message(error.text)
    else:
        assert Config.model_validate(json.loads(config.model_dump_json())) == config
