"""Synthetic traces: arrivals, lengths, samples and shared prefixes from a seed.

    prefix group 0   [ shared p0 ][ own ............ ]
    prefix group 1   [ shared p1 ][ own .... ]
    request          [ p0 0 | p0 1 | 100 | 101 ]        its hash ids: the group's, then its own

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
class Prefixes:
    """Shared prompt prefixes.

    Attributes:
        groups: number of different prefixes, equally likely.
        tokens: length of each prefix; the sampled prompt length is added to it.
        block_size: of the hash ids; a block is shared if it lies fully in the prefix.
    """

    groups: int
    tokens: int
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.groups < 1 or self.tokens < 1 or self.block_size < 1:
            raise ValueError(f"prefixes need groups, tokens and a block size: {self}")


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
    prefixes: Prefixes | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.requests < 1 or self.samples < 1:
            raise ValueError("a trace needs requests, and each a sample")


def from_preset(name: str, requests: int, arrivals: ArrivalProcess, **more: Any) -> Recipe:
    """Return a recipe with the lengths of a preset; ``more`` are other fields of it.

    Raises:
        ValueError: no preset of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name}; there are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    return Recipe(requests, arrivals, preset.prompt, preset.output, preset=name, **more)


class SyntheticTrace:
    """A synthetic trace; the same recipe gives the same requests.

    Raises:
        ValueError: hardly any pair of lengths is within ``max_length``.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        # Separate random streams: adding a prefix group must not change the lengths.
        seeds = np.random.SeedSequence(recipe.seed).spawn(3)
        times, lengths, groups = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds)
        self._arrivals = recipe.arrivals.sample(recipe.requests, times)
        self._prompts, self._outputs, self._resampled, self._raised = _sample_lengths(
            recipe, lengths
        )
        shared = recipe.prefixes.groups if recipe.prefixes else 1
        self._groups = groups.integers(0, shared, recipe.requests)

    @property
    def info(self) -> TraceInfo:
        """The recipe, its seed, and a hash over all sampled numbers."""
        recipe = self.recipe
        digest = hashlib.sha256()
        for column in (self._arrivals, self._prompts, self._outputs, self._groups):
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
            block_size=recipe.prefixes.block_size if recipe.prefixes else None,
            block_size_source="declared" if recipe.prefixes else "none",
            rows=recipe.requests,
            accepted=recipe.requests,
            sha256=digest.hexdigest(),
            origin_ns=0,
            span_ns=int(self._arrivals[-1]),
            seed=recipe.seed,
            parameters=parameters,
        )

    def __iter__(self) -> Iterator[TraceRequest]:
        prefixes, samples = self.recipe.prefixes, self.recipe.samples
        columns = (self._arrivals, self._prompts, self._outputs, self._groups)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        shared = prefixes.tokens // prefixes.block_size if prefixes else 0
        own = prefixes.groups * shared if prefixes else 0
        for index, (arrival, prompt, output, group) in enumerate(rows):
            ids, size = None, None
            if prefixes is not None:
                size = prefixes.block_size
                first, count = group * shared, -(-prompt // size) - shared
                ids = (*range(first, first + shared), *range(own, own + count))
                own += count
            yield TraceRequest(index, arrival, prompt, output, ids, size, samples=samples)


def _sample_lengths(recipe: Recipe, random: np.random.Generator) -> tuple[Ints, Ints, int, int]:
    """Sample (prompts, outputs); also count pairs sampled again and lengths raised to 1."""
    prompts = recipe.prompt.sample(recipe.requests, random)
    outputs = recipe.output.sample(recipe.requests, random)
    before = recipe.prefixes.tokens if recipe.prefixes else 0
    limit = recipe.max_length
    resampled = 0
    while limit is not None:
        # A length of 0 is raised to 1 below.
        total = before + np.maximum(prompts, 0 if before else 1) + np.maximum(outputs, 1)
        (over,) = np.nonzero(total > limit)
        if not len(over):
            break
        resampled += len(over)
        if resampled > 20 * recipe.requests + 1_000:
            raise ValueError(f"lengths of this recipe hardly ever stay within {limit} tokens")
        prompts[over] = recipe.prompt.sample(len(over), random)
        outputs[over] = recipe.output.sample(len(over), random)
    prompts += before
    raised = int((prompts < 1).sum() + (outputs < 1).sum())
    return np.maximum(prompts, 1), np.maximum(outputs, 1), resampled, raised
