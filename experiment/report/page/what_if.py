"""What the sliders of a run's page start with, and what its script computes with.

    block size   1                 the growing cache: exact tokens
                 2, 4, 8 …         the paged cache
                 maximum length    the contiguous cache: one block per request

``templates/run_what_if.js`` computes other positions, by the rules of
:func:`kvsim.core.request.final_tokens` and :func:`kvsim.sizing.geometry.max_concurrent_requests`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from experiment.analysis.experiment_results import Number
from experiment.analysis.metrics import METRICS
from experiment.analysis.results import ArmResult, Results
from experiment.config.arms import ARMS
from experiment.events import ModelPrepared, WorkloadReady
from experiment.record.log import Record
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.values import written
from experiment.report.html.embed import safe_json
from experiment.report.html.svg import drawing, tag
from experiment.text import LANGUAGES, catalogue
from experiment.text.messages import Message, arm_message, message
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.sizing.geometry import max_concurrent_requests

# Generated tokens, in quarters of those of the run.
QUARTERS = (1, 2, 3, 4, 6, 8, 12, 16)
_AS_RUN = 4
_MOST_REQUESTS = 5000  # 60 kB of the page, and some milliseconds of script for each move
# Texts of the script.
_SAID = ("block_size", "saves", "one_block", "exact", "cut")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The section of a run's page, at the run's own settings.

    Attributes:
        sliders: name, label, last position and own position.
        answer: the sentence that compares the block size with the contiguous cache.
        rows: label of each figure, and its values for growing, paged and contiguous.
        measured: arms whose peaks are in the chart.
        data: what the script computes with, and its texts.
    """

    requests: int
    budget: int
    sliders: list[tuple[str, Message, int, int]]
    answer: Message
    rows: list[tuple[Message, list[str]]]
    chart: Markup
    measured: list[str]
    data: Markup


def what_if(b: Bilingual, record: Record, results: Results) -> WhatIf | None:
    """The section; None where blocks of a request are not those of its length alone.

    Lengths are those that requests ask for, as in the metric ``fits``: an arm whose requests end
    earlier has no measured point. Left out:

        beams, parallel samples    they share blocks of their prompt
        prefix caching             what is shared depends on the block size
        quantized caches           arms have slots of different sizes, and scales for each block
        experiments                each cell has requests and settings of its own
        no requests, or too many   nothing to compute, or too much for a page

    Models with windows shorter than the maximum length are refused before a run.
    """
    workload, model = record.first(WorkloadReady), record.first(ModelPrepared)
    if workload is None or model is None or results.experiment is not None:
        return None
    sampling, requests = workload.sampling, workload.requests
    if sampling.n > 1 or sampling.beam_width > 1 or any(map(_shares, results.arms)):
        return None
    slots = {arm.slot_bytes for arm in results.arms} - {None, model.slot_bytes}
    if slots or any(arm.scale_bytes for arm in results.arms):
        return None
    if not 0 < len(requests) <= _MOST_REQUESTS:
        return None
    pairs = [(len(one.token_ids), one.max_new_tokens) for one in requests]
    shape = _Shape([final_tokens(*pair) for pair in pairs], model.slot_bytes, workload.budget_bytes)
    longest = workload.max_length
    own = min(workload.block_size, longest)
    lengths = _max_lengths(max(shape.lengths), max(model.max_positions, longest), longest)
    sizes = _block_sizes(own, longest)
    points = list(_measured(results.arms, sum(shape.lengths)))
    data = {
        "requests": pairs,
        "slot_bytes": shape.slot_bytes,
        "budget": shape.budget,
        "max_lengths": lengths,
        "quarters": QUARTERS,
        "start": {"block": own, "max_length": longest, "quarters": _AS_RUN},
        "measured": _dots(b, points),
        "texts": {lang: _texts(lang) for lang in LANGUAGES},
    }
    return WhatIf(
        requests=len(pairs),
        budget=shape.budget,
        sliders=[
            _slider("block_size", sizes, own),
            _slider("max_length", lengths, longest),
            _slider("lengths", QUARTERS, _AS_RUN),
        ],
        answer=_answer(shape, own, longest),
        rows=_rows(shape, (1, own, longest)),
        chart=drawing(
            b, "what-if-chart", (760, 214), message("what_if.chart_title"),
            message("what_if.chart_desc"), [tag("g")], table="what-if-numbers", class_="chart",
        ),
        measured=[arm.arm for arm in points],
        data=safe_json(data),
    )  # fmt: skip


def _shares(arm: ArmResult) -> bool:
    """Whether requests of an arm shared blocks, or might have with another block size."""
    asked = arm.engine.prefix_queries if arm.engine else 0
    return bool(arm.prefix_cache is not None or arm.shared_peak or asked)


class _Shape(NamedTuple):
    """Slots of each request at its end, bytes of a slot, and the KV budget in bytes."""

    lengths: list[int]
    slot_bytes: int
    budget: int

    def in_blocks(self, block: int) -> dict[str, Number]:
        """Figures of all requests at their ends, in blocks of one size."""
        slots = sum(blocks_needed(length, block) for length in self.lengths) * block
        blocks = self.budget // (block * self.slot_bytes)
        return {
            "allocated_bytes": slots * self.slot_bytes,
            "allocated_slots": slots,
            "live_share": sum(self.lengths) / slots,
            "fits": max_concurrent_requests(self.lengths, blocks, block),
        }


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _max_lengths(least: int, most: int, own: int) -> list[int]:
    """Powers of two from the longest request to the model's positions, and ``own``."""
    return sorted({own, *(length for length in _powers(most) if length >= least)})


def _block_sizes(own: int, longest: int) -> list[int]:
    """Powers of two below the maximum length, ``own``, and the maximum length."""
    return sorted({own, longest, *(size for size in _powers(longest) if size < longest)})


def _slider(name: str, values: Sequence[int], own: int) -> tuple[str, Message, int, int]:
    return name, message(f"what_if.{name}"), len(values) - 1, values.index(own)


def _answer(shape: _Shape, own: int, longest: int) -> Message:
    if own == longest:
        return message("what_if.one_block", block=own)
    if own == 1:
        return message("what_if.exact")
    whole, blocks = (shape.in_blocks(size)["allocated_slots"] for size in (longest, own))
    factor = whole / blocks
    return message("what_if.saves", factor=factor, block=own)


def _rows(shape: _Shape, sizes: Sequence[int]) -> list[tuple[Message, list[str]]]:
    """A column for each block size, in the order in which the script writes them."""
    columns = [shape.in_blocks(size) for size in sizes]
    rows = [(message("what_if.block_size"), [written(size, "count") for size in sizes])]
    for name in columns[0]:
        metric = METRICS[name]
        rows.append((metric.label, [written(column[name], metric.unit) for column in columns]))
    return rows


def _measured(arms: list[ArmResult], live: int) -> Iterator[ArmResult]:
    """Arms with all requests at their ends at the peak, and those that allocate exact tokens."""
    for arm in arms:
        if arm.arm not in ARMS or arm.peak is None or not arm.block_size or not arm.peak.allocated:
            continue
        if arm.elastic or arm.peak.live == live:
            yield arm


def _dots(b: Bilingual, arms: list[ArmResult]) -> list[dict[str, Any]]:
    """A point for each block size and share, with the names of its arms in both languages."""
    places: dict[tuple[int | None, float | None], list[Message]] = {}
    for arm in arms:
        share = arm.peak.utilisation if arm.peak else None
        places.setdefault((arm.block_size, share), []).append(arm_message(arm.arm))
    return [
        {
            "block": block,
            "share": share,
            "names": {
                lang: " · ".join(b.plain(lang, name) for name in names) for lang in LANGUAGES
            },
        }
        for (block, share), names in places.items()
    ]


def _texts(lang: str) -> dict[str, str]:
    return {name: catalogue(lang)[f"what_if.{name}"] for name in _SAID}
