"""25, 35, 36 and 37: when a request stops, how samples differ, share and stay apart."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tiny_engine import make_engine, solo

from experiment.engine.engine import Engine
from experiment.engine.sampling import Sampler, SamplingParams, sample_all
from experiment.gpucheck.tiny_models import VOCABULARY
from kvsim.core.blocks import blocks_needed
from kvsim.core.step import Finish, FinishReason, OpKind

PROMPT = list(range(3, 13))
HOT = SamplingParams(temperature=1.5, seed=11)


def run(engine: Engine) -> list[Finish]:
    finishes: list[Finish] = []
    while engine.scheduler.has_work:
        finishes += engine.step()[1]
    return finishes


def samples(params: SamplingParams, count: int = 6, new: int = 5) -> list[list[int]]:
    """Samples of one prompt."""
    engine = make_engine("gpt2", 60, 4)
    engine.add(0, PROMPT, new, params, children=range(1, count))
    run(engine)
    return [engine.generated(request) for request in range(count)]


def test_25_a_stop_token_of_the_request_ends_it_unless_it_comes_too_early() -> None:
    alone = solo("gpt2", PROMPT, 12)
    stop = alone[3]
    first = alone.index(stop) + 1
    for least, ends in ((0, True), (12, False)):
        engine = make_engine("gpt2", 20, 4)
        params = SamplingParams(stop_token_ids=frozenset({stop}), min_new_tokens=least)
        engine.add(0, PROMPT, 12, params)
        [finish] = run(engine)
        tokens = engine.generated(0)
        assert engine.blocks.num_free == 20
        if ends:
            assert finish.reason is FinishReason.STOP
            assert tokens == alone[:first]
        else:
            assert finish.reason is FinishReason.LENGTH
            assert len(tokens) == 12
            assert stop not in tokens


def test_25_an_end_of_text_token_ends_every_request_or_is_ignored() -> None:
    alone = solo("gpt2", PROMPT, 12)
    eos = alone[3]
    for given, length in (([eos], alone.index(eos) + 1), ([], 12)):
        engine = make_engine("gpt2", 20, 4, eos=given)
        engine.add(0, PROMPT, 12)
        run(engine)
        assert engine.generated(0) == alone[:length]


def test_35_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    first = samples(HOT)
    assert samples(HOT) == first
    assert samples(replace(HOT, seed=12)) != first


def test_35_samples_of_a_prompt_differ_from_their_first_token_on() -> None:
    made = samples(HOT, count=12)
    assert len({tuple(tokens) for tokens in made}) == 12
    assert len({tokens[0] for tokens in made}) > 6
    assert {len(tokens) for tokens in made} == {5}


def test_35_without_temperature_all_samples_are_equal() -> None:
    assert samples(SamplingParams()) == [solo("gpt2", PROMPT, 5)] * 6


def test_35_samples_take_less_memory_than_as_many_copies() -> None:
    engine = make_engine("gpt2", 60, 4)
    engine.add(0, PROMPT, 5, HOT, children=range(1, 6))
    peak = 0
    while engine.scheduler.has_work:
        engine.step()
        peak = max(peak, engine.blocks.num_blocks - engine.blocks.num_free)
    final = blocks_needed(len(PROMPT) + 5 - 1, 4)
    shared = len(PROMPT) // 4
    assert peak == shared + 6 * (final - shared) < 6 * final


@pytest.mark.parametrize(("prompt", "copies"), [(10, 2), (8, 0)])
def test_36_a_shared_partial_block_is_copied_for_all_but_the_last_writer(
    prompt: int, copies: int
) -> None:
    engine = make_engine("gpt2", 40, 4)
    engine.add(0, list(range(1, prompt + 1)), 4, HOT, children=(1, 2))
    engine.step()
    table = list(engine.blocks.table(0))
    before = engine.pool.kv[:, :, table].clone()
    plan = engine.execute().plan
    copied = [op for op in plan.ops if op.kind is OpKind.COPY]
    assert len(copied) == copies
    assert {source for op in copied for source in op.sources} <= {table[-1]}
    # The last owner writes in place, behind what was there; the copies hold the same.
    last = (prompt - 1) // 4
    assert sum(engine.blocks.table(request)[last] == table[last] for request in range(3)) == (
        3 - copies
    )
    after = engine.pool.kv[:, :, table]
    written = torch.isfinite(before)
    assert int(written[0, 0, :, 0, :, 0].sum()) == prompt
    assert torch.equal(before[written], after[written])
    for op in copied:
        old, new = engine.pool.kv[:, :, op.sources[0]], engine.pool.kv[:, :, op.blocks[0]]
        assert torch.equal(old[:, :, :, : prompt % 4], new[:, :, :, : prompt % 4])


def many_params(seed: int) -> SamplingParams:
    draw = random.Random(seed)
    return SamplingParams(
        temperature=draw.choice((0.0, 0.7, 1.3)),
        top_k=draw.choice((0, 3, 20)),
        top_p=draw.choice((1.0, 0.6)),
        seed=seed,
        stop_token_ids=frozenset(draw.sample(range(VOCABULARY), 3)),
        min_new_tokens=draw.randint(0, 4),
    )


def test_37_how_others_in_the_batch_sample_changes_no_token() -> None:
    draw = random.Random(5)
    prompts = [draw.choices(range(VOCABULARY), k=draw.randint(1, 12)) for _ in range(10)]
    alone = []
    for request, prompt in enumerate(prompts):
        engine = make_engine("gpt2", 30, 4)
        engine.add(request, prompt, 8, many_params(request))
        run(engine)
        alone.append(engine.generated(request))
    batch = make_engine("gpt2", 14, 4, max_num_batched_tokens=9)  # preempts, and cuts prompts
    for request, prompt in enumerate(prompts):
        batch.add(request, prompt, 8, many_params(request))
    run(batch)
    assert [batch.generated(request) for request in range(10)] == alone
    assert len({tuple(tokens) for tokens in alone}) == 10


def test_37_top_k_and_top_p_leave_the_likeliest_alone() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0]).log_softmax(-1)
    weights = logits.exp()

    def drawn(**values: float) -> dict[int, int]:
        counts = dict.fromkeys(range(4), 0)
        for seed in range(400):
            params = SamplingParams(temperature=1.0, seed=seed, **values)  # type: ignore[arg-type]
            [token] = sample_all(logits[None], [Sampler(params)], [0])
            counts[token] += 1
        return {token: count for token, count in counts.items() if count}

    assert set(drawn(top_k=2)) == {1, 3}
    assert set(drawn(top_p=float(weights[1]) - 0.01)) == {1}
    assert set(drawn(top_p=float(weights[1]) + 0.01)) == {1, 3}
    free = drawn()
    assert set(free) == {0, 1, 2, 3}
    for token, count in free.items():
        assert abs(count / 400 - float(weights[token])) < 0.1
