"""Built models: the same seed gives the same bytes, and a damaged one is built again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiment.model import builtin, tokenizer
from experiment.model.builtin import TINY, build_model, is_complete, recorded_sha256
from experiment.model.load import load_model, load_tokenizer
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.text.errors import UserError

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


def test_a_whole_model_is_not_built_again() -> None:
    place = build_model("tiny-gpt2", 0, 0.08)
    stamp = (place / "model.safetensors").stat().st_mtime_ns
    calls: list[str] = []
    build_model("tiny-gpt2", 0, 0.08, lambda: calls.append("built"))
    assert (calls, (place / "model.safetensors").stat().st_mtime_ns) == ([], stamp)


@pytest.mark.parametrize("damage", ["flip", "remove", "bad manifest"])
def test_a_damaged_model_is_built_again(damage: str) -> None:
    place = build_model("tiny-gpt2", 0, 0.08)
    sound = recorded_sha256(place)
    weights = place / "model.safetensors"
    if damage == "flip":
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data)
    elif damage == "remove":
        (place / "tokenizer.json").unlink()
    else:
        (place / "manifest.json").write_text("[]", encoding="utf-8")
    assert not is_complete(place)
    calls: list[str] = []
    assert build_model("tiny-gpt2", 0, 0.08, lambda: calls.append("built")) == place
    assert calls == ["built"]
    assert is_complete(place)
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


def test_what_a_killed_build_left_is_removed_by_a_later_one_and_a_living_one_is_not() -> None:
    process, place = _half_a_build("time.sleep(600)")
    try:
        assert is_complete(build_model("tiny-gpt2", 1, 0.08))
        assert (place / "model.safetensors").is_file()
    finally:
        process.kill()
        process.communicate()
    old = time.time() - builtin.STALE_S - 1
    os.utime(place, (old, old))
    build_model("tiny-gpt2", 1, 0.08)  # it is there; what is left lies there all the same
    assert not place.exists()
    assert [path.name[0] for path in builtin.cache_root().iterdir()] == ["t"]


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


# Ids as published for GPT-2.
KNOWN = {
    "Hello!": [15496, 0],
    "Hello world": [15496, 995],
    " Hello world": [18435, 995],
    "<|endoftext|>": [50256],
}


@pytest.mark.parametrize("text", KNOWN)
def test_ids_are_gpt2s(text: str) -> None:
    assert gpt2_tokenizer()(text)["input_ids"] == KNOWN[text]


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    made = gpt2_tokenizer()
    made.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = "It's 12 o'clock — naïve café; 你好，世界 🙂\n\n  tabs\tand   spaces"
    assert loaded(text)["input_ids"] == made(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token_id, loaded.bos_token_id, len(loaded)) == (50256, 50256, 50257)


def test_without_the_package_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_PACKAGE", "no_such_package_here")
    with pytest.raises(UserError) as caught:
        gpt2_tokenizer()
    assert caught.value.text.key == "error.model.no_vocabulary"
