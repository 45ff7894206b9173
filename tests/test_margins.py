"""The child that looks at the logits where two arms' tokens first differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from real_parts import prepare, session_in

from experiment.config.schema import Config
from experiment.events import (
    ArmFinished,
    ArmStarted,
    Event,
    PoolReserved,
    RequestFinished,
    TokenMargin,
)
from experiment.machine.environment import Environment
from experiment.measure.token_margins import explain_differences, find_differences
from experiment.model.load import load_model
from experiment.record.log import read_record
from experiment.runner.session import Session
from experiment.workload.prepared import Prepared

CONFIG = Config.model_validate(
    {"model": {"name": "tiny-gpt2"}, "run": {"device": "cpu", "threads": 1}}
)
NAMES = ("contiguous.batch", "paged")


def finished(arm: str, tokens: list[int], budget: int) -> list[Event]:
    return [
        ArmStarted(arm=arm, pid=1),
        PoolReserved(
            arm=arm, blocks=1, block_size=1, slot_bytes=1, tensor_bytes=1, budget_bytes=budget
        ),
        RequestFinished(
            arm=arm, request=0, reason="length", prompt_tokens=1, tokens=tokens, text="",
            wait_s=0, first_token_s=0, latency_s=1,
        ),
        ArmFinished(
            arm=arm, import_s=0, load_s=0, generate_s=1, threads=1, device_name="cpu"
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("prepared"), CONFIG, environment, ["Hello there"])


@pytest.fixture
def session(tmp_path: Path, prepared: Prepared) -> Iterator[Session]:
    """A run that is prepared."""
    with session_in(tmp_path) as made:
        made.emit(prepared.model)
        made.emit(prepared.workload)
        yield made


def test_the_margin_is_that_of_plain_transformers(session: Session, prepared: Prepared) -> None:
    ours, theirs = [11, 12, 13, 14], [11, 12, 900, 14]
    for arm in NAMES:
        for event in finished(arm, ours, 1):
            session.emit(event)
    explain_differences(session, CONFIG, "cpu", prepared)
    assert not read_record(session.directory).of(TokenMargin)  # equal tokens: nobody looked
    for event in finished("vllm", theirs, 1):
        session.emit(event)
    found = find_differences(session, prepared)
    explain_differences(session, CONFIG, "cpu", prepared)
    assert [(one.arm, one.request, one.index, one.tokens) for one in found] == [
        ("vllm", 0, 2, (13, 900))
    ]
    prompt = prepared.workload.requests[0].token_ids
    assert found[0].ids == [*prompt, 11, 12]
    margin = read_record(session.directory).of(TokenMargin)[0]
    model = load_model(prepared.directory, "float32", "cpu", "sdpa")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, 11, 12]])).logits[0, -1]
    best = logits.topk(2).values
    torch.testing.assert_close(margin.margin, float(best[0] - best[1]), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(margin.logits[1], float(logits[900]), rtol=1e-3, atol=1e-5)


def test_every_request_that_parts_is_looked_at(session: Session, prepared: Prepared) -> None:
    def ended(arm: str, request: int, tokens: list[int]) -> Event:
        first = finished(arm, tokens, 1)[2]
        return first.model_copy(update={"request": request})

    answers = {NAMES[0]: ([1, 2, 3], [4, 5, 6], [7, 8]), NAMES[1]: ([1, 9, 3], [4, 5, 6], [9, 8])}
    one = prepared.workload.requests[0]
    requests = [one.model_copy(update={"id": request}) for request in range(3)]
    workload = prepared.workload.model_copy(update={"requests": requests})
    for arm, tokens in answers.items():
        start, pool, _, end = finished(arm, [], 1)
        ends = (ended(arm, request, each) for request, each in enumerate(tokens))
        for event in (start, pool, *ends, end):
            session.emit(event)
    found = find_differences(session, replace(prepared, workload=workload))
    assert [(each.request, each.index, each.tokens) for each in found] == [
        (0, 1, (2, 9)), (2, 0, (7, 9))
    ]  # fmt: skip
