"""What a run showed: verdicts follow the figures, tokens are compared one by one."""

from __future__ import annotations

import pytest
from event_makers import (
    BATCH,
    PAGED,
    SEQUENTIAL,
    TOKENS,
    batch_arm,
    changed,
    head,
    paged_arm,
    record,
    whole_run,
)

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Claim, Results, TokenComparison
from experiment.analysis.throughput_claim import throughput
from experiment.events import (
    ArmFailed,
    ArmFinished,
    Event,
    Notice,
    PoolReserved,
    RequestFinished,
    RunFinished,
)
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message


def claim(results: Results, name: str) -> Claim:
    return next(claim for claim in results.claims if claim.id == name)


def compare(tokens: dict[int, list[int]]) -> TokenComparison:
    """The paged arm with these tokens against the batch."""
    [comparison] = evaluate(record([*head(), *batch_arm(), *paged_arm(tokens)])).tokens
    return comparison


@pytest.mark.parametrize(
    ("tokens", "first", "equal"),
    [
        (TOKENS, None, 2),
        ({1: [20, 21, 22], 0: [10, 11, 12]}, None, 2),
        ({0: [10, 11, 12], 1: [20, 99, 22]}, (1, 1), 1),
        ({0: [10, 11, 99], 1: [99, 21, 22]}, (0, 2), 0),
        ({0: [10, 11], 1: [20, 21, 22]}, (0, 2), 1),
        ({0: [10, 11, 12], 1: [20, 21, 22, 23]}, (1, 3), 1),
        ({0: [], 1: [20, 21, 22]}, (0, 0), 1),
        ({0: [10, 11, 12]}, None, 1),  # a request that is missing
        ({**TOKENS, 2: [1]}, (2, 0), 2),  # one that the other arm does not know
    ],
)
def test_the_first_other_token_is_named_by_request_and_index(
    tokens: dict[int, list[int]], first: tuple[int, int] | None, equal: int
) -> None:
    comparison = compare(tokens)
    assert (comparison.arm, comparison.reference) == (PAGED, BATCH)
    assert (comparison.first_difference, comparison.equal_requests) == (first, equal)
    assert comparison.equal == (sorted(tokens.items()) == sorted(TOKENS.items()))


def test_a_request_reported_twice_does_not_stand_for_another() -> None:
    ended = next(e for e in paged_arm() if isinstance(e, RequestFinished) and e.request == 0)
    events = [*head(), *batch_arm(), *paged_arm({0: TOKENS[0]})]
    events.insert(-1, ended)
    [comparison] = evaluate(record(events)).tokens
    assert not comparison.equal


def test_an_arm_that_failed_is_not_compared() -> None:
    failure = ArmFailed(arm=BATCH, reason=message("failure.exit", code=1))
    events = changed(whole_run(), ArmFinished, lambda e: failure, BATCH)
    results = evaluate(record(events))
    assert results.tokens == []
    assert results.arm(BATCH) is None
    assert {c.verdict for c in results.claims} == {"untested"}
    assert results.headline == message("headline.none")


def test_the_status_is_what_the_last_line_says() -> None:
    assert evaluate(record(whole_run())).status == "complete"
    assert evaluate(record(whole_run()[:-1])).status == "failed"
    assert evaluate(record([*head(), RunFinished(status="interrupted")])).status == "interrupted"


def test_the_headline_has_both_shares_and_what_fits() -> None:
    headline = evaluate(record(whole_run())).headline
    assert headline.key == "headline.both"
    assert headline.params == {
        "arm": message("arm_name.contiguous_batch").model_dump(),
        "contiguous_share": 10 / 16,
        "paged_share": 1.0,
        "contiguous_fits": 2,
        "paged_fits": 3,
        "budget": 64,
    }


def test_less_waste_is_shown_with_its_bytes() -> None:
    found = claim(evaluate(record(whole_run())), "waste")
    assert (found.verdict, found.text.key) == ("shown", "claim.waste.shown")
    assert found.text.params["contiguous"] == pytest.approx(6 / 16)
    assert (found.text.params["paged"], found.text.params["paged_bytes"]) == (0.0, 0)
    assert found.text.params["contiguous_bytes"] == 24


def renamed(events: list[Event], arm: str) -> list[Event]:
    """The arm's events under another name."""
    return [e.model_copy(update={"arm": arm}) if hasattr(e, "arm") else e for e in events]


def elastic(events: list[Event], arm: str) -> list[Event]:
    """With memory that follows what is allocated."""
    return changed(
        events, PoolReserved, lambda pool: pool.model_copy(update={"elastic": True}), arm
    )


@pytest.mark.parametrize(
    ("arms", "waste", "stability"),
    [
        ([*batch_arm(), *paged_arm()], "shown", "not_shown"),  # both are reserved
        ([*renamed(paged_arm(), BATCH), *renamed(batch_arm(), PAGED)], "not_shown", "not_shown"),
        ([*batch_arm(), *renamed(batch_arm(), PAGED)], "not_shown", "not_shown"),
        ([*elastic(renamed(paged_arm(), BATCH), BATCH), *paged_arm()], "not_shown", "shown"),
        ([*batch_arm(), *elastic(paged_arm(), PAGED)], "shown", "not_shown"),
    ],
    ids=["as it is", "swapped", "alike", "batches vary", "blocks vary"],
)
def test_verdicts_on_waste_and_stability_follow_the_figures(
    arms: list[Event], waste: str, stability: str
) -> None:
    results = evaluate(record([*head(), *arms]))
    assert claim(results, "waste").verdict == waste
    found = claim(results, "stability")
    assert found.verdict == stability
    assert found.text.params["contiguous"] == pytest.approx(0.4 if stability == "shown" else 0)


def test_a_growing_cache_is_named_where_it_ran() -> None:
    growing = elastic(renamed(paged_arm(), "contiguous.growing"), "contiguous.growing")
    events = [*head(), *batch_arm(), *growing, *paged_arm()]
    found = claim(evaluate(record(events)), "stability")
    assert found.text.key == "claim.stability.not_shown_growing"
    assert found.text.params["growing"] == pytest.approx(0.4)


def faster(finished: ArmFinished) -> ArmFinished:
    return finished.model_copy(update={"generate_s": finished.generate_s / 2})


def test_throughput_is_never_shown_because_other_things_differ_too() -> None:
    events = [*head(), *batch_arm(SEQUENTIAL), *batch_arm(), *paged_arm()]
    found = claim(evaluate(record(changed(events, ArmFinished, faster, PAGED))), "throughput")
    assert (found.verdict, found.text.key) == ("untested", "claim.throughput.mixed")
    assert found.text.params["batch_factor"] == pytest.approx(2.0)
    assert found.text.params["sequential_factor"] == pytest.approx(2.0)


def test_a_log_that_does_not_say_what_was_packed_leaves_it_unknown() -> None:
    """As logs of before: no claim that matrix products are the same, or are not."""
    results = evaluate(record(whole_run()))
    assert "differs.products_unknown" in {text.key for text in results.differences}
    assert results.gains[-1].products_differ is None


def test_notices_and_damaged_lines_are_notes() -> None:
    notice = Notice(text=message("note.busy", load=3.0))
    notes = evaluate(record([*whole_run(), notice], damaged=2)).notes
    assert notes == [notice.text, message("note.damaged_lines", n=2)]


def pair(
    seconds: float,
    running: float,
    hits: int = 0,
    others: float | None = None,
    lasted: float = 3.0,
    margin: float | None = None,
) -> Claim:
    """A verdict on slabs that took ``seconds`` with ``running`` requests at a time, against 2.

    ``lasted``: seconds that the arm with blocks really took, which the figures do not follow.
    """
    results = evaluate(record(whole_run()))
    batch, paged = results.arms
    slabs = batch.model_copy(
        update={"arm": "slabs", "tokens_per_s": 6 / seconds, "mean_running": running}
    )
    found = {"hit_cross": hits, "hit_batch": 0}
    paged = paged.model_copy(
        update={
            "tokens_per_s": 2.0, "mean_running": 2.0, "prefix_cache": found if hits else None,
            "generate_s": lasted,
        }
    )  # fmt: skip
    assert slabs.watch is not None
    beside = slabs.watch.model_copy(update={"others_cores": others})
    slabs = slabs.model_copy(update={"watch": beside})
    slabs = slabs.model_copy(update={"generate_s": seconds})
    return throughput(results.model_copy(update={"arms": [slabs, paged]}), margin)


@pytest.mark.parametrize(
    ("seconds", "running", "key", "verdict"),
    [
        (9.0, 1.0, "shown", "shown"),
        (3.0, 1.0, "not_shown", "not_shown"),
        # More at once and faster, but not by more than one arm differs from run to run.
        (3.45, 1.0, "not_shown_small", "untested"),
        (3.45, 2.0, "not_shown", "not_shown"),
        # Faster, but no more at once: chance, and no gain of paging.
        (9.0, 2.0, "not_shown_equal", "untested"),
        (9.0, 2.1, "not_shown_equal", "untested"),
    ],
)
def test_a_faster_run_is_called_paging_only_where_more_ran_at_once(
    seconds: float, running: float, key: str, verdict: str
) -> None:
    found = pair(seconds, running)
    assert (found.text.key, found.verdict) == (f"claim.throughput.{key}", verdict)


@pytest.mark.parametrize(
    ("lasted", "margin", "key", "percent"),
    [
        (3.0, None, "shown", None),  # 1.4 times as fast, and three seconds of it
        (0.3, None, "not_shown_small", 50),  # less than a second
        (0.3, 0.1, "shown", None),
        (3.0, 0.45, "not_shown_small", 45),
    ],
)
def test_how_much_a_single_run_must_gain_follows_from_how_long_it_is_or_from_the_config(
    lasted: float, margin: float | None, key: str, percent: float | None
) -> None:
    found = pair(4.2, 1.0, lasted=lasted, margin=margin)
    assert found.text.key == f"claim.throughput.{key}"
    assert found.text.params.get("percent") == percent


@pytest.mark.parametrize(
    ("seconds", "key", "verdict"),
    [(9.0, "prefix", "shown"), (3.3, "prefix_small", "untested"), (2.5, "prefix", "not_shown")],
)
def test_a_gain_beside_prefix_hits_says_why_it_is_none_yet(
    seconds: float, key: str, verdict: str
) -> None:
    found = pair(seconds, 2.0, hits=32)
    assert (found.text.key, found.verdict) == (f"claim.throughput.{key}", verdict)
    assert found.text.params["hits"] == 32
    for lang in LANGUAGES:
        assert "{" not in Translator(lang).message(found.text)


def test_a_busy_machine_tells_no_speed() -> None:
    """What others took of either arm may be all of the difference."""
    found = pair(9.0, 1.0, others=1.0)
    assert (found.text.key, found.verdict) == ("claim.throughput.busy", "untested")
