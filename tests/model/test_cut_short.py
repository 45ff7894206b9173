"""Models whose files are cut short, replaced, or of another model: one line says what to mend."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from arms_here import Gathered
from safetensors.torch import load_file, save_file

from experiment.children import prepare
from experiment.config.schema import Config
from experiment.model.builtin import build_model
from experiment.model.load import load_model
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode, UserError

WEIGHTS = "model.safetensors"
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
GARBAGE = (b"", b"\xff\xfe{}", b"null", b'{"a":' * 3000)
TENSOR = "transformer.h.1.attn.c_attn.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as somebody downloaded it."""
    place = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_CACHE", str(place))
        built = build_model("tiny-gpt2", 0, 0.08)
    return Path(shutil.copytree(built, place / "mine"))


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A copy to be broken; links do for files that are only read."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for file in whole.iterdir():
        (mine / file.name).symlink_to(file)
    return mine


def replace(file: Path, content: bytes) -> None:
    """Put other bytes into the place of a file of the model."""
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def configure(model: Path, values: dict[str, Any]) -> None:
    """Change fields of the config of the model."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    replace(model / "config.json", json.dumps(config | values).encode())


def prepared(model: Path) -> None:
    """Prepare a run of the model as its process does."""
    config = Config.model_validate({"model": {"name": str(model)}})
    task = {"config": config.model_dump(mode="json"), "device": "cpu", "prompts": ["Hello!"],
            "arms": ["paged"]}  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        prepare.main(Gathered(), task)  # type: ignore[arg-type]


def refusal(model: Path) -> str:
    """The key of what was said; it is one line in either language, and the person's to mend."""
    with pytest.raises(UserError) as caught:
        prepared(model)
    lines = [Translator(lang).message(caught.value.text) for lang in LANGUAGES]
    assert all(line and "\n" not in line and "Traceback" not in line for line in lines)
    assert len(set(lines)) == len(LANGUAGES)
    assert str(model) in lines[0]
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.text.key


@pytest.mark.parametrize("part", [0.3, 0.99])
@pytest.mark.parametrize("name", [WEIGHTS, *SMALL])
def test_a_file_that_is_cut_short_is_one_line(
    name: str, part: float, whole: Path, model: Path
) -> None:
    content = (whole / name).read_bytes()
    end = len(content.rstrip()) - 1  # without its last brace, if nothing else
    replace(model / name, content[: min(int(len(content) * part), end)])
    assert refusal(model).startswith("error.model.")


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize("name", [WEIGHTS, *SMALL])
def test_garbage_in_the_place_of_a_file_is_one_line(name: str, content: bytes, model: Path) -> None:
    replace(model / name, content)
    assert refusal(model).startswith("error.model.")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", [WEIGHTS, *SMALL])
def test_a_directory_or_a_pipe_in_the_place_of_a_file_is_one_line(
    name: str, make: Callable[[Path], None], model: Path
) -> None:
    (model / name).unlink()
    make(model / name)
    assert refusal(model).startswith("error.")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        *(
            (values, "error.model.")
            for values in (
                {"n_layer": 10**12}, {"n_layer": -1}, {"n_layer": "two"}, {"n_embd": 7},
                {"n_embd": -64}, {"vocab_size": -1}, {"vocab_size": 10**30}, {"architectures": 5},
                {"architectures": [5]}, {"n_positions": "many"}, {"n_head": 0}, {"layer_types": 3},
                {"sliding_window": "wide"}, {"activation_function": "none such"},
                {"model_type": ["gpt2"]},
            )
        ),
        # No part of a config chooses an implementation.
        ({"text_config": [{"x_implementation": "evil/kernel"}]}, "error.model.implementation"),
        ({"text_config": [{"transformers_weights": "other"}]}, "error.model.implementation"),
        # Layers of a nested config are counted before they are built.
        ({"vision_config": {"num_hidden_layers": 50_000}}, "error.model.unbuildable"),
        ({"vision_config": {"depth": 50_000}}, "error.model.unbuildable"),
        # Transformers makes a table of that many names.
        ({"num_labels": 10**7}, "error.memory"),
    ],
)  # fmt: skip
def test_a_config_that_makes_no_sense_is_one_line(
    values: dict[str, Any], key: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_MEMORY", "64MiB")
    configure(model, values)
    assert refusal(model).startswith(key)


def changed(model: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Write the weights anew with something else in them."""
    tensors = load_file(model / WEIGHTS)
    change(tensors)
    (model / WEIGHTS).unlink()
    save_file(tensors, model / WEIGHTS, {"format": "pt"})


def test_a_tensor_of_another_shape_is_named_before_any_arm(model: Path) -> None:
    changed(model, lambda some: some.update({TENSOR: torch.zeros(64, 191)}))
    assert refusal(model) == "error.model.tensor_shape"
    with pytest.raises(UserError) as caught, contextlib.redirect_stderr(io.StringIO()):
        load_model(str(model), "float32", "cpu", "sdpa")  # and where it was changed meanwhile
    assert caught.value.text.key == "error.model.unreadable"


def test_weights_of_more_layers_than_the_config_has_are_named(model: Path) -> None:
    layer = "transformer.h.2.mlp.c_fc.weight"
    changed(model, lambda some: some.update({layer: torch.zeros(64, 256)}))
    assert refusal(model) == "error.model.surplus_layers"
    configure(model, {"num_nextn_predict_layers": 1})
    prepared(model)


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_a_tensor_of_numbers_that_are_none_is_named(kind: torch.dtype, model: Path) -> None:
    changed(model, lambda some: some.update({TENSOR: torch.zeros(64, 192).to(kind)}))
    assert refusal(model) == "error.model.tensor_kind"


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_loaded(kind: torch.dtype, model: Path) -> None:
    changed(model, lambda some: some.update({n: t.to(kind) for n, t in some.items()}))
    prepared(model)


def test_a_tensor_that_is_missing_is_named(model: Path) -> None:
    changed(model, lambda some: some.pop(TENSOR))
    assert refusal(model) == "error.model.weights_missing"


def test_names_without_the_outer_part_are_known(model: Path) -> None:
    """As GPT-2's own file has them, with a mask that no model has any more."""

    def as_published(some: dict[str, torch.Tensor]) -> None:
        for name in list(some):
            some[name.removeprefix("transformer.")] = some.pop(name)
        some["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    changed(model, as_published)
    prepared(model)
    changed(model, lambda some: some.pop("h.1.mlp.c_fc.weight"))
    assert refusal(model) == "error.model.weights_missing"


@pytest.mark.parametrize(
    "index",
    [
        {}, {"weight_map": 5}, {"weight_map": {"a": 5}}, {"weight_map": {"a": ["b"]}},
        {"weight_map": {}}, {"weight_map": {"a": "none.safetensors"}}, [1],
    ],
)  # fmt: skip
def test_an_index_that_names_no_files_is_one_line(index: Any, model: Path) -> None:
    (model / WEIGHTS).unlink()
    replace(model / f"{WEIGHTS}.index.json", json.dumps(index).encode())
    assert refusal(model) == "error.model.no_safetensors"


def test_weights_in_several_files_are_checked_as_one(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, some in halves.items():
        save_file({name: tensors[name] for name in some}, model / file, {"format": "pt"})
    places = {name: file for file, some in halves.items() for name in some}
    index = model / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": places}), "utf-8")
    prepared(model)
    save_file({names[0]: tensors[names[0]]}, model / "model-2.safetensors", {"format": "pt"})
    assert refusal(model) == "error.model.weights_missing"
