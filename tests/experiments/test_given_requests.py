"""Requests of serving that are given: a trace, prompts, and when each comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import tiny_config

from experiment.config.schema import Config
from experiment.events import WorkloadRequest
from experiment.experiments.base import cell_config
from experiment.experiments.serving import SERVING
from experiment.text.errors import UserError
from experiment.text.messages import message
from experiment.workload.requests import choose_prompts, with_arrivals


def test_what_of_a_trace_is_left_out_is_said(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:00:0{second}.0000000,{8 + 900 * second},3" for second in (0, 1, 5)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(rows) + "\n", encoding="utf-8")

    def told(requests: int) -> dict[str, dict[str, object]]:
        options = {"step_s": 0.5, "trace": str(trace), "requests": requests}
        config = tiny_config("serving", experiment__values=[2], experiment__options=options)
        return {notice.key.rpartition(".")[2]: notice.params for notice in SERVING.notices(config)}

    longest = tiny_config("serving").cache.max_length // 2
    assert told(2) == {
        "first_requests": {"n": 2},
        "trace_cut": {"n": 1, "of": 2, "longest": longest},
    }
    assert told(3) == {"trace_cut": {"n": 2, "of": 3, "longest": longest}}
    # Nothing but the trace is set: as many as the file would draw.
    alone = tiny_config("serving", **{"experiment__options.trace": str(trace)})
    assert alone.experiment.options["draw"]["requests"] == 48
    assert SERVING.notices(alone)[-1].params["of"] == 3
    assert SERVING.notices(tiny_config("serving")) == []


def test_a_trace_keeps_its_own_clock(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:00:0{second}.0000000,8,3" for second in (0, 1, 5)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(rows) + "\n", encoding="utf-8")
    options = {"step_s": 0.5, "trace": str(trace), "requests": 3}
    config = tiny_config("serving", experiment__values=[2], experiment__options=options)
    cells = SERVING.cells(config)
    assert [c.overrides["workload.arrivals"] for c in cells] == [[0, 0.4, 2.0], [0, 0.2, 1.0]]
    assert cells[0].overrides["workload.lengths"] == [[8, 3]] * 3


@pytest.mark.parametrize(
    ("arrivals", "key"),
    [((0, 1), "error.workload.as_many"), ((0, 2, 1), "error.workload.arrivals_order")],
)
def test_arrivals_that_do_not_fit_are_refused(arrivals: tuple[float, ...], key: str) -> None:
    config = Config.model_validate({"workload": {"arrivals": arrivals}})
    requests = [WorkloadRequest(id=i, prompt="", token_ids=[1], max_new_tokens=1) for i in range(3)]
    with pytest.raises(UserError) as raised:
        with_arrivals(config, requests)
    assert raised.value.text.key == key


def test_arrivals_are_those_of_the_usable_prompts_of_sharegpt(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": []}]), encoding="utf-8")
    config = tiny_config("serving", experiment__values=[2], workload__prompts_file=str(file))
    cells = SERVING.cells(config)
    assert cells[0].overrides["workload.arrivals"] == [0]


def test_of_prompts_the_first_so_many_are_taken_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"prompt": f"{number} is a number"}) for number in range(30)]
    file.write_text("\n".join(rows), encoding="utf-8")

    def asked(**options: int) -> Config:
        given = {"step_s": 0.5, **options}
        return tiny_config("serving", experiment__values=[2], experiment__options=given,
                           workload__prompts_file=str(file))  # fmt: skip

    ten = asked(requests=10)
    one = cell_config(ten, SERVING.cells(ten)[0])
    assert len(one.workload.arrivals) == 10
    assert choose_prompts(one) == choose_prompts(ten)[:10]
    (told,) = SERVING.notices(ten)
    assert told == message("experiments.serving.first_requests", n=10)
    for config in (asked(), asked(requests=30), asked(requests=99)):
        assert len(SERVING.cells(config)[0].overrides["workload.arrivals"]) == 30
        assert SERVING.notices(config) == []
    for count in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="requests is 1 or more"):
            SERVING.cells(asked(requests=count))  # type: ignore[arg-type]
