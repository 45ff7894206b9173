"""A block that an engine keeps for itself, as vLLM does, is no free block in the player."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import event_makers
from event_makers import SLOT_BYTES, TOKENS, head, whole_run
from pages import Opened, OpenPage
from sample import write_page

from experiment.events import Event, PoolReserved, RunFinished, Step
from experiment.text import LANGUAGES, catalogue
from kvsim.accounting.ledger import PoolShape
from kvsim.core.step import BlockOp, StepPlan


def behind(plan: StepPlan) -> StepPlan:
    """The same with every block one place further on."""

    def moved(op: BlockOp) -> BlockOp:
        return op._replace(blocks=tuple(block + 1 for block in op.blocks))

    return replace(plan, ops=tuple(map(moved, plan.ops)))


def with_null_block() -> list[Event]:
    """The paged arm of a small log, in a pool whose first block is the engine's."""
    steps = [e for e in whole_run() if isinstance(e, Step) and e.arm == event_makers.PAGED]
    plans = [behind(step.plan) for step in steps]
    shape = PoolShape(9, 2, SLOT_BYTES, engine_blocks=1)
    arm = [
        event.model_copy(update={"engine_blocks": 1}) if isinstance(event, PoolReserved) else event
        for event in event_makers.arm_events("vllm", shape, plans, TOKENS)
    ]
    return [*head(), *arm, RunFinished(status="complete")]


def opened(open_page: OpenPage, directory: Path, events: list[Event]) -> Opened:
    """The page of a log."""
    record = replace(event_makers.record(events), directory=directory)
    return open_page(write_page(record), viewport={"width": 1300, "height": 900})


def test_the_null_block_is_said_to_be_the_engines_own(open_page: OpenPage, tmp_path: Path) -> None:
    page = opened(open_page, tmp_path, with_null_block()).page
    for lang in LANGUAGES:
        said = catalogue(lang)
        page.click(f'[data-language="{lang}"]')
        page.evaluate("pagedkv.player.go(0)")
        page.focus(".side canvas")
        page.keyboard.press("Escape")
        told = []
        for _ in range(9):
            page.keyboard.press("ArrowRight")
            told.append(page.inner_text("#player-block"))
        for text, key, block in ((told[0], "block_engine", 0), (told[-1], "block_free", 8)):
            name = said["player.block_one"].format(list=block)
            assert text.strip() == said[f"player.{key}"].format(blocks=name[0].upper() + name[1:])
        legend = page.locator("li:has(> .sample-engine)")
        assert legend.inner_text() == said["player.legend.engine"]


def test_a_player_without_such_a_block_does_not_speak_of_one(
    open_page: OpenPage, tmp_path: Path
) -> None:
    one = opened(open_page, tmp_path, whole_run())
    assert one.page.locator(".sample-written").is_visible()
    assert not one.page.locator(".sample-engine").is_visible()
