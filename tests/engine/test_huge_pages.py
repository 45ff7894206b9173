"""Weights on huge pages: the kernel says that they are, and what is in them stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiment.engine.cpu import huge_pages
from experiment.engine.cpu.huge_pages import onto_huge_pages, page_bytes
from experiment.engine.cpu.packed_layers import PackedLinear
from experiment.engine.cpu.packed_weights import pack_weights

PAGE = page_bytes()
needs_pages = pytest.mark.skipif(PAGE is None, reason="huge pages: none here, or not to be used")


def on_huge_pages(address: int) -> int:
    """Bytes on huge pages in the mapping that holds an address, as the kernel counts them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(part, 16) for part in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == "AnonHugePages:":
            return int(words[1]) * 1024
    raise AssertionError("the address is not mapped")


@needs_pages
def test_memory_lies_on_huge_pages_and_holds_what_it_held() -> None:
    assert PAGE is not None
    numbers = torch.arange(4 * PAGE, dtype=torch.float32)  # 16 pages, and 15 whole ones at least
    middle = numbers.data_ptr() + numbers.nbytes // 2
    before = on_huge_pages(middle)
    done = onto_huge_pages([(numbers.data_ptr(), numbers.data_ptr() + numbers.nbytes)])
    assert done is not None
    if done == 0:
        pytest.skip("the system had no huge page to spare")
    assert done in (15 * PAGE, 16 * PAGE)
    assert on_huge_pages(middle) >= max(before, done)
    assert torch.equal(numbers, torch.arange(4 * PAGE, dtype=torch.float32))


@needs_pages
def test_memory_that_is_not_there_is_refused_without_an_error() -> None:
    assert PAGE is not None
    assert onto_huge_pages([(PAGE, 3 * PAGE)]) == 0  # the lowest addresses are nobody's
    assert onto_huge_pages([]) == 0


def test_a_system_without_huge_pages_is_unknown_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    assert onto_huge_pages([(0, 1 << 30)]) is None
    (tmp_path / "hpage_pmd_size").write_text("2097152\n", encoding="ascii")
    (tmp_path / "enabled").write_text("always madvise [never]\n", encoding="ascii")
    assert onto_huge_pages([(0, 1 << 30)]) is None
    (tmp_path / "enabled").write_text("always [madvise] never\n", encoding="ascii")
    if PAGE is not None:
        assert onto_huge_pages([]) == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_packing_says_how_much_of_the_weights_lies_on_huge_pages() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048)).requires_grad_(False)
    packing = pack_weights(model)
    assert type(model[0]) is PackedLinear
    if PAGE is None:
        assert packing.huge_bytes is None
    else:
        assert packing.huge_bytes is not None
        assert packing.huge_bytes % PAGE == 0
        assert packing.huge_bytes <= 2048 * 2048 * 4
    tiny = torch.nn.Sequential(torch.nn.Linear(8, 8)).requires_grad_(False)
    assert not pack_weights(tiny).huge_bytes  # smaller than a page
