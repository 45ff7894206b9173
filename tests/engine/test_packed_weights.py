"""Packed weights: the same numbers for any number of rows, and no weight is held twice."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_engine import finish, geometry, solo
from transformers import GemmaConfig, GPT2Config, LlamaConfig
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from experiment.engine.attention.interface import ATTENTION, UnsupportedModelError
from experiment.engine.cpu import packed_layers, panels
from experiment.engine.cpu.mapped_pages import release_pages
from experiment.engine.cpu.packed_layers import PackedEmbedding, PackedLinear, _product_of
from experiment.engine.cpu.packed_weights import pack_weights
from experiment.engine.cpu.panels import pack
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner, plain_logits, probe
from experiment.gpucheck.tiny_models import (
    CONFIGS,
    FAMILIES,
    GROUPED,
    POSITIONS,
    VOCABULARY,
    build,
)
from experiment.memory.tensors import storage_bytes
from experiment.model.load import load_model
from kvsim.core.scheduler import SchedulerConfig

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch is without oneDNN"
)


def layer(kind: str, inputs: int, outputs: int) -> Any:
    """A linear layer with random weights, inside a model of its own."""
    torch.manual_seed(inputs)
    bias = kind != "no bias"
    made = Conv1D(outputs, inputs) if kind == "conv1d" else torch.nn.Linear(inputs, outputs, bias)
    if bias:
        torch.nn.init.normal_(made.bias)
    return torch.nn.Sequential(made).requires_grad_(False)


def weight_bytes(model: torch.nn.Module) -> int:
    return storage_bytes((*model.parameters(), *model.buffers()))


def packed_model(family: str) -> Any:
    model = build(CONFIGS[family]())
    assert pack_weights(model).layers
    return model


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 97), (48, 64), (33, 5), (768, 130)])
@pytest.mark.parametrize("kind", ["linear", "no bias", "conv1d"])
@torch.inference_mode()
def test_every_number_of_rows_gives_the_plain_product(kind: str, inputs: int, outputs: int) -> None:
    model = layer(kind, inputs, outputs)
    rows = torch.randn(40, inputs)
    expected = model(rows)
    assert pack_weights(model).layers == 1
    assert type(model[0]) is PackedLinear
    for count in range(41):
        ours = model(rows[:count])
        torch.testing.assert_close(ours, expected[:count], atol=1e-5 * inputs**0.5, rtol=0)
    shaped = model(rows.view(2, 4, 5, inputs))
    torch.testing.assert_close(shaped.view(40, outputs), model(rows), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_a_packed_model_are_those_of_transformers(family: str) -> None:
    pool = KVPool(geometry(family), 40, 4, torch.float32, CPU)
    engine = Engine(ModelRunner(packed_model(family), pool, "numba"))
    prompts = [list(range(3, 3 + length)) for length in (1, 40, 16, 5)]
    for request, prompt in enumerate(prompts):
        engine.add(request, prompt, 12)
    finish(engine)
    for request, prompt in enumerate(prompts):
        assert engine.generated(request) == solo(family, prompt, 12)


@torch.inference_mode()
def test_the_gelu_of_gpt2_is_the_same_function_in_one_operation() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), ACT2FN["gelu_new"]).requires_grad_(False)
    x = 4 * torch.randn(20, 16)
    expected = model(x)
    assert pack_weights(model).gelus == 1
    assert type(model[1]) is torch.nn.GELU
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=0)


def test_a_step_that_samples_nothing_has_no_logits() -> None:
    pool = KVPool(geometry("gpt2"), 8, 4, torch.float32, CPU)
    limits = SchedulerConfig(max_num_batched_tokens=4)
    engine = Engine(ModelRunner(packed_model("gpt2"), pool), limits)
    engine.add(0, list(range(10)), 2)
    assert engine.step()[0].tokens == {}
    finish(engine)
    assert engine.generated(0) == solo("gpt2", list(range(10)), 2)


def test_weights_are_held_once_and_counted_once() -> None:
    """Sizes that fill their panels, so that packing adds nothing."""
    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=POSITIONS, vocab_size=128,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = build(config)
    before = weight_bytes(model)
    table = weakref.ref(model.lm_head.weight)
    assert pack_weights(model).layers == 2 * 4 + 1
    assert weight_bytes(model) == before
    gc.collect()
    assert table() is None
    assert type(model.transformer.wte) is PackedEmbedding


@torch.inference_mode()
def test_a_tied_table_is_read_from_the_panels() -> None:
    plain = build(LlamaConfig(**GROUPED, tie_word_embeddings=True))
    packed = build(LlamaConfig(**GROUPED, tie_word_embeddings=True))
    pack_weights(packed)
    assert type(packed.model.embed_tokens) is PackedEmbedding
    ids = torch.arange(VOCABULARY).view(1, -1)
    assert torch.equal(packed.model.embed_tokens(ids), plain.model.embed_tokens(ids))
    assert packed.lm_head.packed is packed.model.embed_tokens.packed
    # Behind the last row the last panel is filled up: nobody's ids are read from there.
    assert not packed.model.embed_tokens(ids[:, :0]).numel()
    for wrong in (VOCABULARY, -1):
        with pytest.raises(IndexError, match=f"table of {VOCABULARY} rows"):
            packed.model.embed_tokens(torch.tensor([[0, wrong]]))


def test_subclasses_of_a_linear_layer_stay_as_they_are() -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = torch.nn.Sequential(Scaled(8, 8), torch.nn.Linear(8, 8)).requires_grad_(False)
    assert pack_weights(model).layers == 1
    assert type(model[0]) is Scaled


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_file_of_the_weights_is_let_go(tmp_path: Path) -> None:
    build(CONFIGS["gpt2"](), "sdpa").save_pretrained(tmp_path)
    model = load_model(str(tmp_path), "float32", "cpu", ATTENTION)

    def mapped() -> bool:
        gc.collect()
        return str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")

    assert mapped()
    pack_weights(model)
    assert not mapped()


# -- what nobody promised ------------------------------------------------------------------------


def noisy(packed: torch.Tensor) -> torch.Tensor:
    """The same weight with one number in a hundred of it changed."""
    plain = packed.to_dense()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(plain.shape, generator=generator) * plain.abs().max()
    return pack(plain + noise * (torch.rand(plain.shape, generator=generator) < 0.01))


@pytest.mark.parametrize("family", FAMILIES)
def test_wrongly_packed_weights_are_seen_by_the_plain_models_logits(family: str) -> None:
    model = build(CONFIGS[family]())
    expected = plain_logits(model)
    assert pack_weights(model).layers
    probe(model, geometry(family), expected=expected)
    layer = next(m for m in model.modules() if isinstance(m, PackedLinear))
    layer.packed, layer.few_rows = noisy(layer.packed), None
    # Held against itself the model is as it should be: nothing would be noticed.
    probe(model, geometry(family))
    with pytest.raises(UnsupportedModelError) as refused:
        probe(model, geometry(family), expected=expected)
    assert refused.value.feature == "logits"


class _Broken:
    """Operations of another torch: some are missing, some do something else."""

    def __init__(self, **changed: Any) -> None:
        self.changed = changed

    def __getattr__(self, name: str) -> Any:
        if name in self.changed:
            return self.changed[name]
        return getattr(torch.ops.mkldnn, name)


def _raise(*_: Any) -> Any:
    raise RuntimeError("no such\n operation")


@pytest.mark.parametrize(
    ("where", "changed", "key"),
    [
        (panels, {"_reorder_linear_weight": _raise}, "packing.fails"),
        (panels, {"_nbytes": _raise}, "packing.fails"),
        (packed_layers, _product_of(object()), "packing.fails"),
        (packed_layers, lambda x, *_: x.new_zeros(4, 97), "packing.wrong"),
    ],
    ids=["no order", "no size", "no product", "another product"],
)
def test_without_the_private_operations_weights_stay_and_the_reason_is_told(
    where: Any, changed: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where is packed_layers:
        monkeypatch.setattr(where, "_linear", changed)
    else:
        monkeypatch.setattr(where, "_ops", _Broken(**changed))
    model = build(CONFIGS["gpt2"]())
    done = pack_weights(model)
    assert done.layers == 0
    assert done.seconds is None
    assert done.reason is not None
    assert done.reason.key == key
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_what_was_packed_and_how_long_it_took_is_told() -> None:
    done = pack_weights(build(GemmaConfig(**GROUPED, tie_word_embeddings=True)))
    assert (done.layers, done.kept, done.reason) == (2 * 7, 1, None)  # Gemma's table scales rows
    assert done.seconds is not None
    assert done.seconds > 0
    assert done.bytes > 0
    assert done.embeddings == 0
    tied = build(LlamaConfig(**GROUPED, tie_word_embeddings=True))
    floats = {id(p): p.numel() for p in tied.parameters() if p.dim() == 2}
    done = pack_weights(tied)
    assert (done.embeddings, done.kept) == (1, 0)
    assert done.bytes >= 4 * sum(floats.values())  # the last panel is filled up
    other = pack_weights(layer("linear", 8, 8).to(torch.bfloat16))
    assert other.reason is not None
    assert other.reason.key == "packing.kind"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_than_the_weight_at_hand_is_held_twice(tmp_path: Path) -> None:
    """The mark of a fresh process, on a model of which no weight is large beside the whole."""
    config = LlamaConfig(
        **GROUPED | {"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 12}
    )
    build(config, "sdpa").save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    size, above = map(int, done.stdout.split())
    assert size > 60 << 20
    assert above < size // 8, f"{above >> 20} MiB above {size >> 20} MiB of weights"


# Weights are touched, as the probe does; then packed, watched by the kernel's own mark.
_PEAK = """
import sys, torch
from pathlib import Path
from experiment.engine.cpu.packed_weights import pack_weights
from experiment.model.load import load_model
from experiment.engine.attention.kernels import few_rows_module
from experiment.memory.tensors import storage_bytes, trim

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) * 1024 for l in lines if l.startswith(name))

torch.set_num_threads(1)
model = load_model(sys.argv[1], "float32", "cpu", "sdpa")
with torch.inference_mode():
    model(input_ids=torch.arange(1, 8)[None], use_cache=False)
few_rows_module()  # the memory of compiler and libraries is not the weights'
warm = torch.nn.Sequential(torch.nn.Linear(64, 320)).requires_grad_(False)
assert pack_weights(warm).layers == 1
trim()
size, before = storage_bytes(model.parameters()), status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
assert pack_weights(model).layers == 12 * 7 + 1
print(size, status("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_that_were_given_back_are_the_tensors_own(tmp_path: Path) -> None:
    """What comes back is what the file holds; neighbours keep what was written to them."""
    file = tmp_path / "numbers"
    file.write_bytes(np.arange(1 << 16, dtype=np.float32).tobytes())
    whole = torch.from_numpy(np.memmap(file, dtype=np.float32, mode="c"))
    expected = whole.clone()
    whole[:] = -1.0
    assert release_pages(whole[1000:50000])
    changed = torch.nonzero(whole != -1.0).flatten()
    assert int(changed[0]) >= 1000
    assert int(changed[-1]) < 50000
    assert len(changed) > 40000
    assert torch.equal(whole[changed], expected[changed])
    assert not release_pages(whole[::2])
