"""What is suggested in place of a wrong name is really near, or nothing is."""

from __future__ import annotations

import pytest

from kvsim.base.spelling import nearest

OPTIONS = ("--block-size", "--dtype", "--out", "--quiet", "--rate", "--max-length", "--yes", "-y")


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("--blok-size", OPTIONS, "--block-size"),
        ("--BLOCK_SIZE", OPTIONS, "--block-size"),
        ("--block", OPTIONS, "--block-size"),
        ("--length", OPTIONS, "--max-length"),
        ("--out-dir", OPTIONS, "--out"),
        ("--qiuet", OPTIONS, "--quiet"),
        ("rnu", ("run", "render"), "run"),
        ("block_size", ("cache.block_size", "cache.budget"), "cache.block_size"),
    ],
)
def test_a_slip_or_a_part_of_a_name_is_near(word: str, known: tuple[str, ...], near: str) -> None:
    assert nearest(word, known) == (near,)


@pytest.mark.parametrize(
    "word", ["--foo", "--tp", "--dry-run", "--prefix", "--batch-size", "--y", "-x", "", "x" * 5000]
)
def test_what_only_shares_letters_is_not(word: str) -> None:
    assert nearest(word, (*OPTIONS[:-2], "--" + "x" * 99)) == ()


def test_several_are_equally_near() -> None:
    known = ("a10", "a100-40gb", "a100-80gb", "a100-80gb-pcie", "h100")
    assert nearest("a100-", known, 2) == known[1:3]
    assert nearest("a100", ("a10", "h100"), 2) == ("a10", "h100")
    assert nearest("h10", ("a10", "h100"), 2) == ("h100",)
