"""Texts on sampling and sharing, for console and page."""

from __future__ import annotations

from experiment.analysis.conclusions import sampling_figures
from experiment.analysis.results import ArmResult, Results
from experiment.events.sampling import SamplingConfig
from experiment.text.messages import Message, arm_message, message


def sampling_message(sampling: SamplingConfig) -> Message:
    """How arms choose tokens."""
    how = message("sampling.greedy")
    if sampling.beam_width > 1:
        how = message("sampling.beams", width=sampling.beam_width)
    if not sampling.greedy:
        how = message("sampling.random", **sampling_figures(sampling))
    summary = message("sampling.summary", how=how, n=sampling.n)
    if not sampling.stop_token_ids:
        return summary
    stops = ", ".join(map(str, sampling.stop_token_ids))
    first = sampling.min_new_tokens + 1
    return message("sampling.stops", summary=summary, stops=stops, first=first)


def explanations(results: Results) -> dict[str, list[Message]]:
    """Observations of this run for each part of ``explain``, by arm."""
    shared = [arm for arm in results.arms if arm.shared_peak or arm.copied_blocks]
    cached = [arm for arm in results.arms if arm.prefix_cache]
    return {
        "paging": [],
        "cow": [_copies(arm) for arm in shared] or [message("explain.cow.off")],
        "prefix": [_hits(arm) for arm in cached] or [message("explain.prefix.off")],
    }


def _copies(arm: ArmResult) -> Message:
    figures = {"shared": arm.shared_peak, "copied": arm.copied_blocks}
    return message("explain.cow.on", arm=arm_message(arm.arm), **figures)


def _hits(arm: ArmResult) -> Message:
    cache = arm.prefix_cache or {}
    figures = {
        "queried": cache["queried"],
        "hits": cache["hit_cross"] + cache["hit_batch"],
    }
    return message("explain.prefix.on", arm=arm_message(arm.arm), **figures)
