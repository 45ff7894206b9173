"""The PTX in the Triton kernels, which the interpreter does not run: its instructions in Python."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton (Linux on x86-64)"
)
ALL_INT8 = torch.arange(-128, 128, dtype=torch.int8)


def words(*bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int64)


def halves(word: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The two 16-bit numbers of each 32-bit word, [words, 2]."""
    both = torch.stack((word & 0xFFFF, word >> 16), -1)
    return torch.where(both > 0x7FFF, both - 0x10000, both).to(torch.int16).view(dtype)


def lop3(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, table: int) -> torch.Tensor:
    """Any function of three bits: bit 4a + 2b + c of ``table``."""
    done = torch.zeros_like(a)
    for bit in range(32):
        index = ((a >> bit & 1) << 2) | ((b >> bit & 1) << 1) | (c >> bit & 1)
        done |= (torch.tensor(table) >> index & 1) << bit
    return done


def execute(ptx: str, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs $0 and $1 for the input $2, 32-bit words in int64."""
    registers = {"$2": given}

    def value(name: str) -> torch.Tensor:
        return registers[name] if name in registers else words(int(name, 0))

    for operation, operands in re.findall(r"^\s*(\w[\w.]*) (.*);$", ptx, re.MULTILINE):
        target, *rest = operands.split(", ")
        if operation == "mov.b32":
            registers[target] = value(rest[0])
        elif operation == "shr.u32":
            registers[target] = value(rest[0]) >> int(rest[1])
        elif operation == "lop3.b32":
            a, b, c = (value(name).expand_as(given) for name in rest[:3])
            registers[target] = lop3(a, b, c, int(rest[3], 0))
        else:
            assert operation == "fma.rn.bf16x2"
            a, b, c = (halves(value(name), torch.bfloat16).double() for name in rest)
            bits = (a * b + c).to(torch.bfloat16).view(torch.int16).long() & 0xFFFF
            registers[target] = bits[..., 0] | bits[..., 1] << 16
    return registers["$0"], registers["$1"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_int8_comes_out_at_every_place_of_a_word(dtype: torch.dtype) -> None:
    from experiment.engine.cuda import triton_tile

    half = dtype == torch.float16
    ptx = triton_tile._TO_FLOAT16 if half else triton_tile._TO_BFLOAT16
    for place in range(4):
        quadruples = torch.zeros(256, 4, dtype=torch.int8)
        quadruples[:, place] = ALL_INT8
        quadruples[:, place - 1] = -77
        given = quadruples.view(torch.int32)[:, 0].long() & 0xFFFFFFFF
        low, high = (halves(word, dtype) for word in execute(ptx.value, given))
        found = torch.stack((low, high), -1).flatten(1).float() - (1152 if half else 0)
        assert torch.equal(found, quadruples.float())
