"""Synthetic traces: arrivals, lengths and samples from a seed.

:data:`PRESETS` has the lengths of two published workloads. Their means are those of Fig. 11 of the
PagedAttention paper (arXiv 2309.06180); their shapes are not published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvsim.traces.distributions import ArrivalProcess, Ints, LengthDistribution
from kvsim.traces.types import TraceInfo, TraceRequest


@dataclass(frozen=True, slots=True)
class Preset:
    """Lengths of a workload, and the provenance of each number."""

    prompt: LengthDistribution
    output: LengthDistribution
    provenance: Mapping[str, str]


_MEANS = "published: arXiv 2309.06180, Fig. 11"
PRESETS = {
    "sharegpt-like": Preset(
        LengthDistribution("lognormal", 161.31, 1.0),
        LengthDistribution("gamma", 337.99, 297.0),
        {
            "prompt.mean": _MEANS,
            "prompt.kind": "assumed",
            "prompt.spread": "assumed",
            "output.mean": _MEANS,
            "output.kind": "assumed",
            "output.spread": "fitted: to the reservation share of Orca (Max) in Fig. 2",
        },
    ),
    "alpaca-like": Preset(
        LengthDistribution("gamma", 19.31, 19.31 / 6**0.5),
        LengthDistribution("lognormal", 58.45, 0.9),
        {
            "prompt.mean": _MEANS,
            "prompt.kind": "assumed",
            "prompt.spread": "assumed",
            "output.mean": _MEANS,
            "output.kind": "assumed",
            "output.spread": "assumed",
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Parameters of a synthetic trace.

    Attributes:
        requests: number of requests.
        max_length: most prompt + output tokens; longer pairs are sampled again and counted.
            None: no limit.
        samples: sequences from each prompt.
        preset: name of the preset, for the info.
    """

    requests: int
    arrivals: ArrivalProcess
    prompt: LengthDistribution
    output: LengthDistribution
    seed: int = 0
    max_length: int | None = None
    samples: int = 1
    preset: str | None = None


def from_preset(name: str, requests: int, arrivals: ArrivalProcess, **more: Any) -> Recipe:
    """Return a recipe with the lengths of a preset; ``more`` are other fields of it."""
    preset = PRESETS[name]
    return Recipe(requests, arrivals, preset.prompt, preset.output, preset=name, **more)


class SyntheticTrace:
    """A synthetic trace; the same recipe gives the same requests.

    Raises:
        ValueError: hardly any pair of lengths is within ``max_length``.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        # Separate random streams: another rate must not change the lengths.
        seeds = np.random.SeedSequence(recipe.seed).spawn(2)
        times, lengths = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds)
        self._arrivals = recipe.arrivals.sample(recipe.requests, times)
        self._prompts, self._outputs, self._resampled, self._raised = _sample_lengths(
            recipe, lengths
        )

    @property
    def info(self) -> TraceInfo:
        """The recipe, its seed, and a hash over all sampled numbers."""
        recipe = self.recipe
        digest = hashlib.sha256()
        # The zeros stand for groups of shared prefixes, which earlier versions sampled.
        zeros = np.zeros_like(self._arrivals)
        for column in (self._arrivals, self._prompts, self._outputs, zeros):
            digest.update(column.astype("<i8").tobytes())
        parameters = {key: value for key, value in asdict(recipe).items() if value is not None} | {
            "redrawn_for_max_length": self._resampled,
            "raised_to_one_token": self._raised,
        }
        if recipe.preset is not None:
            parameters["provenance"] = dict(PRESETS[recipe.preset].provenance)
        return TraceInfo(
            name=recipe.preset or "generated",
            format="generated",
            format_source="declared",
            unit="ns",
            unit_source="declared",
            block_size=None,
            block_size_source="none",
            rows=recipe.requests,
            accepted=recipe.requests,
            sha256=digest.hexdigest(),
            origin_ns=0,
            span_ns=int(self._arrivals[-1]),
            seed=recipe.seed,
            parameters=parameters,
        )

    def __iter__(self) -> Iterator[TraceRequest]:
        columns = (self._arrivals, self._prompts, self._outputs)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (arrival, prompt, output) in enumerate(rows):
            yield TraceRequest(index, arrival, prompt, output, samples=self.recipe.samples)


def _sample_lengths(recipe: Recipe, random: np.random.Generator) -> tuple[Ints, Ints, int, int]:
    """Sample (prompts, outputs); also count pairs sampled again and lengths raised to 1."""
    prompts = recipe.prompt.sample(recipe.requests, random)
    outputs = recipe.output.sample(recipe.requests, random)
    limit = recipe.max_length
    resampled = 0
    while limit is not None:
        # A length of 0 is raised to 1 below.
        (over,) = np.nonzero(np.maximum(prompts, 1) + np.maximum(outputs, 1) > limit)
        if not len(over):
            break
        resampled += len(over)
        if resampled > 20 * recipe.requests + 1_000:
            raise ValueError(f"lengths of this recipe hardly ever stay within {limit} tokens")
        prompts[over] = recipe.prompt.sample(len(over), random)
        outputs[over] = recipe.output.sample(len(over), random)
    raised = int((prompts < 1).sum() + (outputs < 1).sum())
    return np.maximum(prompts, 1), np.maximum(outputs, 1), resampled, raised
