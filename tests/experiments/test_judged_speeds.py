"""What concurrency and the claims make of speeds: steps of a gain, saturation, verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import (
    SLABS,
    Figures,
    beside,
    budget,
    cell,
    findings,
    found_of,
    notes,
    sides,
    why,
)

from experiment.config.reading import load_config
from experiment.experiments import claims
from experiment.experiments.base import drawn_lengths
from experiment.experiments.claims import Judged, judge
from experiment.experiments.found import Found
from experiment.experiments.parallel_sampling import PAPER
from experiment.experiments.registry import find_experiment
from experiment.files.shipped import CONFIGS
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message
from kvsim.paper.sharing import samples_sharing

SAMPLING = load_config(CONFIGS / "parallel-sampling.toml", {"experiment.size": "quick"})


def speeds(rates: Sequence[float], latencies: Sequence[float]) -> Figures:
    return {
        "tokens_per_s": rates, "loop_latency_s": latencies, "loop_latency_most_s": latencies,
        "running_mean": 3.2, "running_peak": 4,
    }  # fmt: skip


def test_each_step_of_concurrency_says_what_it_does_to_latency() -> None:
    alone, slow = speeds([10, 10, 10], [1.0, 1.1, 1.2]), speeds([20, 20, 20], [4.0, 4.1, 4.2])
    seen = findings(
        "concurrency",
        cell(0, {"concurrency": 1}, contiguous__sequential=alone, contiguous__batch=alone),
        cell(
            1, {"concurrency": 32}, contiguous__batch=slow,
            slabs=speeds([60, 60, 60], [2.0, 2.1, 2.2]),
            paged=speeds([90, 90, 99], [2.1, 2.2, 2.3]),
        ),
    )  # fmt: skip
    told = {name: beside(seen[name]) for name in ("batching", "engine", "paging")}
    assert told["batching"]["loop_latency_s"].estimate == 4.1 / 1.1
    over = "over contiguous_batch contiguous_sequential tokens_per_s"
    assert [*sides(told["batching"][over])] == ["1", "32"]
    engine = told["engine"]["loop_latency_s"]
    assert (engine.estimate, [*sides(engine)]) == (2.1 / 4.1, ["slabs", "contiguous_batch"])
    assert why(told["paging"]["loop_latency_s"]) == "overlap"
    ran = beside(seen["batching"])["contiguous_batch"]
    assert sides(ran) == {"running_mean": 3.2, "running_peak": 4}


@pytest.mark.parametrize(
    ("more", "flat", "sure"),
    [
        ([10.1, 10.2, 10.3], True, True),
        ([10.1, 10.2, 12.0], True, False),  # one repeat grew by a fifth
        ([20, 21, 22], False, True),
        ([10.2, 15, 16], False, False),  # one repeat hardly grew
        ([20, 21], False, False),
    ],
)
def test_where_an_arm_saturates_is_left_open_where_repeats_leave_it_open(
    more: list[float], flat: bool, sure: bool
) -> None:
    rates = ([1.0] * len(more), [10.0] * len(more), more)
    cells = [
        cell(n, {"concurrency": 2 ** (n + 1)}, paged=speeds(rate, [1.0]))
        for n, rate in enumerate(rates)
    ]
    seen = findings("concurrency", *cells)["saturation_paged"]
    assert (why(seen), seen.estimate) == ("growth", 4 if flat else None)
    assert ("saturation_open" not in notes(seen)) is sure


def test_the_least_growth_is_that_of_the_factor_that_is_printed() -> None:
    """Of ten times 1.5 one repeat hardly grew; the least of the medians is the second, 1.3."""
    rates = ([10.0, 10, 10], [10.2, 15, 15.1], [19.5, 19.5, 19.5])
    cells = [cell(n, {"concurrency": 2**n}, paged=speeds(r, [1.0])) for n, r in enumerate(rates)]
    seen = findings("concurrency", *cells)["saturation_paged"]
    assert seen.reason == message("experiments.why.growth", at=2, more=4, factor=1.3, limit=1.1)
    # By its repeats the other one may have grown by less than a tenth.
    assert "saturation_open" in notes(seen)
    sure = [*cells[:1], cell(1, {"concurrency": 2}, paged=speeds([15.0] * 3, [1.0])), cells[2]]
    assert not notes(findings("concurrency", *sure)["saturation_paged"])


def test_fewer_than_three_numbers_say_nothing_of_saturation() -> None:
    ran: Figures = {"tokens_per_s": [10, 11, 12], "running_mean": 3.2, "running_peak": 4}
    more: Figures = {**ran, "tokens_per_s": [20, 21, 22]}
    seen = findings(
        "concurrency",
        cell(0, {"concurrency": 1}, paged=ran),
        cell(1, {"concurrency": 32}, slabs=ran, paged=more),
    )
    told = {name: seen[f"saturation_{name}"] for name in ("slabs", "paged")}
    assert {one.verdict for one in told.values()} == {"untested"}
    assert [why(told[name]) for name in ("slabs", "paged")] == ["missing", "needs"]


@pytest.mark.parametrize(
    ("rates", "verdict"), [([140, 141, 142], "shown"), ([60, 61, 62], "not_shown")]
)
def test_no_claim_is_shown_that_its_finding_does_not_show(rates: list[float], verdict: str) -> None:
    """Four times as many at a time, and slower: of no use."""
    ran = cell(0, {"requests": 24}, slabs=SLABS, paged=budget(16.0, rates))
    claim = next(
        j for j in judge({"capacity": found_of("capacity", ran)}) if j.claim.name == "at_once"
    )
    assert (claim.verdict, claim.seen.value if claim.seen else None) == (verdict, 4.0)
    assert claim.reason is not None
    # How long requests are beside a slab decides it, and somebody chose that.
    key = "claims.why.lengths" if verdict == "shown" else "experiments.found.line"
    assert claim.reason.key == key


@pytest.mark.parametrize(
    ("off", "verdict"), [(0.0, "untested"), (-0.01, "not_shown"), (0.2, "shown")]
)
def test_samples_of_a_few_requests_stand_beside_many_that_are_drawn_alike(
    off: float, verdict: str
) -> None:
    """Ten save less than the paper's, many that are drawn alike more: the draw decides.

    Unless what was saved is not what the closed sum says.
    """
    claim = of_samples(off)
    assert claim.seen is not None
    many = {p.of: p.value for p in claim.seen.parts if p.name == "samples_many"}
    assert many == {n: share(10_000, n) for n in (2, 4)}
    assert claim.verdict == verdict
    assert (claim.reason.key if claim.reason else None) == (
        "claims.why.few_drawn" if verdict == "untested" else None
    )


def test_a_lucky_draw_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten reach what is claimed, and many that are drawn alike would not."""
    for samples in (2, 4):
        monkeypatch.setitem(PAPER, samples, 0.02)
    monkeypatch.setattr(claims, "closed_sums", lambda *_: {2: 0.03, 4: 0.019})
    claim = of_samples(0.0)
    assert claim.verdict == "untested"
    assert claim.reason is not None
    assert claim.reason.key == "claims.why.lucky_draw"
    monkeypatch.setattr(claims, "closed_sums", lambda *_: {2: 0.03, 4: 0.03})
    assert of_samples(0.0).verdict == "shown"


def share(requests: int, samples: int) -> float:
    drawn = drawn_lengths(SAMPLING, requests, cut=requests < 10_000)
    lengths = [(prompt, new) for prompt, new in drawn]
    return samples_sharing(lengths, samples, 16).share or 0.0


def of_samples(off: float) -> Judged:
    """The claim on samples; ``off`` by so much from what the closed sum says."""
    cells = [
        cell(i, {"samples": n}, paged={"saved": share(10, n) + off}).model_copy(
            update={"block_size": 16}
        )
        for i, n in enumerate((2, 4))
    ]
    found = {"parallel-sampling": Found(SAMPLING, cells)}
    return next(one for one in judge(found) if one.claim.name == "samples")


@pytest.mark.parametrize("name", ["parallel-sampling", "beam", "serving"])
def test_how_lengths_were_drawn_is_said_with_what_came_of_it(name: str) -> None:
    """Pairs that are too long are drawn again, which shortens answers: who reads it has to know."""
    config = load_config(CONFIGS / f"{name}.toml", {})
    said = find_experiment(name).terms(config)[-1]
    lengths = drawn_lengths(config)
    assert said.params["most"] == config.experiment.options["draw"]["max_length"]  # type: ignore[index, call-overload]
    assert said.params["outputs"] == sum(new for _, new in lengths) / len(lengths)
    assert said.params["output_mean"] == 58.45  # as the paper's Fig. 11 prints it
    long = [sum(pair) for pair in drawn_lengths(config, 2000, cut=False)]
    assert max(map(sum, drawn_lengths(config, 2000))) <= said.params["most"] < max(long)
    for lang in LANGUAGES:
        assert "58.5" in Translator(lang).message(said)


def test_prompts_that_are_given_were_not_drawn() -> None:
    config = load_config(CONFIGS / "serving.toml", {"workload.prompts": ["Hello"]})
    assert "experiments.drawn" not in {
        each.key for each in find_experiment("serving").terms(config)
    }
