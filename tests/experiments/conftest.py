"""Runs that several files look at; each is made once."""

from __future__ import annotations

import pytest
from in_process import Ran, run, tiny_config


@pytest.fixture(scope="session")
def two_arms(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Slabs and blocks in one cell, three repeats each, on a machine that nobody kept busy."""
    config = tiny_config(
        "capacity",
        experiment__values=[2],
        experiment__repeats=3,
        experiment__options={"lengths": [[5, 4]]},
        cache__max_length=64,
        cache__block_size=4,
        cache__budget=2 * 64 * 1024,
        run__arms=["slabs", "paged"],
    )
    return run(config, tmp_path_factory.mktemp("two_arms") / "run")
