"""13: the prefix cache can be emptied, but not under the feet of those who use it."""

from __future__ import annotations

import pytest
from tiny_engine import make_engine, solo

from experiment.engine.engine import Engine
from kvsim.core.step import BlockOp, OpKind

PROMPT = list(range(1, 14))  # three full blocks of 4 and a token


@pytest.fixture
def engine() -> Engine:
    """A request has run over an empty cache of 8 blocks of 4."""
    engine = make_engine("gpt2", 8, 4, prefix_caching=True)
    engine.add(0, PROMPT, 2)
    return engine


def run(engine: Engine) -> None:
    while engine.scheduler.has_work:
        engine.step()


def test_reset_is_refused_while_a_block_is_in_use_and_changes_nothing(engine: Engine) -> None:
    engine.step()
    assert engine.scheduler.reset_prefix_cache() is False
    run(engine)
    assert engine.blocks.num_cached == 3


def test_reset_evicts_all_content_from_tables_and_tensors(engine: Engine) -> None:
    run(engine)
    assert engine.pool.written_slots() == 3 * 4
    cached = engine.blocks.cached
    assert engine.scheduler.reset_prefix_cache() is True
    plan = engine.execute().plan
    assert plan.ops == (BlockOp(OpKind.EVICT, None, cached),)
    assert (engine.blocks.num_cached, engine.blocks.num_free) == (0, 8)
    assert engine.pool.written_slots() == 0
    engine.blocks.check_integrity()


def test_after_a_reset_nothing_is_found_and_the_tokens_are_right(engine: Engine) -> None:
    run(engine)
    assert engine.scheduler.reset_prefix_cache()
    engine.add(1, PROMPT, 2)
    run(engine)
    assert engine.scheduler.stats.hit_cross == 0
    assert engine.generated(1) == solo("gpt2", PROMPT, 2)


def test_resetting_an_empty_cache_plans_nothing() -> None:
    engine = make_engine("gpt2", 4, 4, prefix_caching=True)
    assert engine.scheduler.reset_prefix_cache() is True
    assert not engine.scheduler.has_work
