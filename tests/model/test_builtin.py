"""Built models: the same seed gives the same bytes, and a damaged one is built again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from moments import each_step

from experiment.model import builtin
from experiment.model.builtin import RECIPES, TINY, build_model, is_whole, recorded_sha256
from experiment.model.load import load_model, load_tokenizer
from experiment.text.errors import UserError
from kvsim.files import file_sha256

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_same_seed_gives_same_bytes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = recorded_sha256(build_model("tiny-gpt2", 7, 0.08))
    monkeypatch.setenv("PAGEDKV_CACHE", str(cache / "other"))
    assert recorded_sha256(build_model("tiny-gpt2", 7, 0.08)) == first


def test_seed_and_range_change_the_weights_and_the_place() -> None:
    built = [build_model("tiny-gpt2", *args) for args in ((0, 0.08), (1, 0.08), (0, 0.06))]
    assert len(set(built)) == 3
    assert len({recorded_sha256(place) for place in built}) == 3


def test_range_reaches_every_weight_and_the_residual_scaling_stays() -> None:
    model = load_model(str(build_model("tiny-gpt2", 0, 0.1)), "float32", "cpu", "eager")
    weights = dict(model.named_parameters())
    assert weights["transformer.wte.weight"].std().item() == pytest.approx(0.1, rel=0.02)
    assert weights["transformer.h.0.attn.c_attn.weight"].std().item() == pytest.approx(0.1, rel=0.1)
    scaled = 0.1 / (2 * 2) ** 0.5  # Transformers' own: divided by the root of 2 x layers
    assert weights["transformer.h.0.mlp.c_proj.weight"].std().item() == pytest.approx(
        scaled, rel=0.1
    )


@pytest.mark.parametrize("recipe", TINY)
def test_every_tiny_model_loads_and_generates(recipe: str) -> None:
    import torch

    place = str(build_model(recipe, 0, 0.08))
    model = load_model(place, "float16", "cpu", "sdpa")
    ids = load_tokenizer(place)("Hello!", return_tensors="pt").input_ids
    assert ids.tolist() == [[15496, 0]]
    parameters = list(model.parameters())
    assert {parameter.dtype for parameter in parameters} == {torch.float16}
    assert not model.training
    assert not any(parameter.requires_grad for parameter in parameters)
    assert model(input_ids=ids).logits.shape == (1, 2, 50257)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # slow on a GPU for new shapes


@pytest.mark.parametrize("recipe", [name for name in TINY if name != "tiny-gpt2"])
def test_rotary_models_share_kv_heads_and_have_no_window(recipe: str) -> None:
    config = RECIPES[recipe]()
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert not getattr(config, "sliding_window", None)
    assert config.max_position_embeddings == (4096 if recipe == "tiny-qwen2" else 1024)


def test_gpt2_recipe_is_the_124m_model() -> None:
    config = RECIPES["gpt2"]()
    assert (config.n_layer, config.n_head, config.n_embd, config.vocab_size) == (12, 12, 768, 50257)


def test_the_llama_for_gpus_has_a_billion_parameters_and_shares_kv_heads() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    config = RECIPES["llama-1b-random"]()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1.08e9, rel=0.01)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (32, 8, 64)


def test_a_whole_model_is_not_built_again() -> None:
    place = build_model("tiny-gpt2", 0, 0.08)
    stamp = (place / "model.safetensors").stat().st_mtime_ns
    calls: list[str] = []
    build_model("tiny-gpt2", 0, 0.08, lambda: calls.append("built"))
    assert (calls, (place / "model.safetensors").stat().st_mtime_ns) == ([], stamp)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no manifest", "bad manifest"])
def test_a_damaged_model_is_built_again(damage: str) -> None:
    place = build_model("tiny-gpt2", 0, 0.08)
    sound = recorded_sha256(place)
    weights = place / "model.safetensors"
    if damage == "truncate":
        os.truncate(weights, 1000)
    elif damage == "flip":
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data)
    elif damage == "remove":
        (place / "tokenizer.json").unlink()
    elif damage == "no manifest":
        (place / "manifest.json").unlink()
    else:
        (place / "manifest.json").write_text("[]", encoding="utf-8")
    assert not is_whole(place)
    calls: list[str] = []
    assert build_model("tiny-gpt2", 0, 0.08, lambda: calls.append("built")) == place
    assert calls == ["built"]
    assert is_whole(place)
    assert recorded_sha256(place) == sound


@pytest.mark.parametrize("asked", [False, True])
def test_a_crash_leaves_no_model_and_no_rubbish(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does being asked to end, as the runner does it: of the largest one it were gigabytes."""

    def crash() -> None:
        if asked:
            signal.raise_signal(signal.SIGTERM)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)

    monkeypatch.setattr(builtin, "gpt2_tokenizer", crash)
    with pytest.raises(KeyboardInterrupt):
        build_model("tiny-gpt2", 0, 0.08)
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL
    assert list(builtin.cache_root().iterdir()) == []


_BUILDS = """
import os, signal, sys, time
from experiment.model import builtin
def then():
    print("half", flush=True)
    {}
builtin.gpt2_tokenizer = then
builtin.build_model("tiny-gpt2", 0, 0.08)
"""


def _half_a_build(then: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that has written the weights and then does something else, and its directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILDS.format(then)], stdout=subprocess.PIPE, encoding="utf-8",
        cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    (place,) = builtin.cache_root().glob(".*")
    assert (place / "model.safetensors").is_file()
    return process, place


def test_what_a_killed_build_left_is_removed_by_the_next_one_and_a_living_one_is_not() -> None:
    process, place = _half_a_build("time.sleep(600)")
    try:
        assert is_whole(build_model("tiny-gpt2", 1, 0.08))
        assert (place / "model.safetensors").is_file()
    finally:
        process.kill()
        process.communicate()
    build_model("tiny-gpt2", 1, 0.08)  # it is there; what is left lies there all the same
    assert not place.exists()
    assert [path.name[0] for path in builtin.cache_root().iterdir()] == ["t"]


def test_a_directory_that_was_taken_for_one_that_is_left_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another build looks in the moment between making it and having it."""
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def make(**words: Any) -> str:
        made.append(mkdtemp(**words))
        if len(made) == 1:
            builtin._remove_left(builtin.cache_root())
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    assert is_whole(build_model("tiny-gpt2", 0, 0.08))
    assert len(made) == 2
    assert not any(map(os.path.exists, made))


def _quickly(work: Path, *_: object) -> None:
    """A model of one file."""
    (work / "model.safetensors").write_bytes(b"weights")
    files = {"model.safetensors": file_sha256(work / "model.safetensors")}
    (work / builtin.MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_no_step_of_a_build_a_signal_leaves_half_a_model(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the build has its hands on it; before and behind it is what it was."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {each: signal.signal(each, handler) for each, handler in usual.items()}
    monkeypatch.setattr(builtin, "_write_model", _quickly)
    sent: list[int] = []

    def send() -> None:
        if signal.getsignal(number) is not usual[number]:
            sent.append(tried)
            signal.raise_signal(number)

    end = builtin._End
    parts = {build_model, builtin._work_directory, builtin._put_in_place}
    parts |= {end.__enter__, end.may_come_in, end.__exit__, end._take}
    tried = 0
    for tried, moment in enumerate(each_step(parts, send), 1):
        monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / str(tried)))
        ended = False
        with moment():
            try:
                build_model("tiny-gpt2", 0, 0.08)
            except KeyboardInterrupt:
                ended = True
        assert ended == (tried in sent), tried
        left = list(builtin.cache_root().glob("*")) + list(builtin.cache_root().glob(".*"))
        assert all(is_whole(path) and path.name[0] == "t" for path in left), tried
        assert left or ended
        assert {each: signal.getsignal(each) for each in usual} == usual
    for each, handler in before.items():
        signal.signal(each, handler)
    assert len(sent) > 50


def test_what_an_older_version_left_is_removed_once_it_is_old() -> None:
    build_model("tiny-gpt2", 0, 0.08)
    old, new = (builtin.cache_root() / name for name in (".old.abc", ".new.abc"))
    old.mkdir()
    new.mkdir()
    past = time.time() - 2 * builtin.STALE_S
    os.utime(old, (past, past))
    build_model("tiny-gpt2", 0, 0.08)  # it is there; what is left lies there all the same
    assert not old.exists()
    assert new.exists()


def test_a_faster_process_wins_and_its_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    write = builtin._write_model

    def write_after_another(work: Path, recipe: str, seed: int, init_range: float) -> None:
        monkeypatch.setattr(builtin, "_write_model", write)
        build_model(recipe, seed, init_range)  # what a second process does meanwhile
        write(work, recipe, seed, init_range)

    monkeypatch.setattr(builtin, "_write_model", write_after_another)
    place = build_model("tiny-gpt2", 0, 0.08)
    assert is_whole(place)
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_an_unwritable_cache_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError) as caught:
        build_model("tiny-gpt2", 0, 0.08)
    assert caught.value.text.key == "error.model.cache_unwritable"


def test_missing_tensors_are_refused_not_filled_at_random() -> None:
    from safetensors.torch import load_file, save_file

    place = build_model("tiny-llama", 0, 0.08)
    tensors = load_file(place / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        load_model(str(place), "float32", "cpu", "eager")
    assert caught.value.text.key == "error.model.weights_missing"
    assert caught.value.text.params["first"] == "model.layers.1.self_attn.k_proj.weight"
