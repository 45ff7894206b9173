"""A claim without a verdict says what is missing: not an arm, where all of them ran."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import Figures, assert_told, cell, why

from experiment.analysis.experiment_results import CellResult
from experiment.config.reading import load_config
from experiment.experiments.found import Found
from experiment.experiments.registry import find_experiment
from experiment.files.shipped import CONFIGS


def reasons(name: str, *cells: CellResult, **asked: Any) -> dict[str, str]:
    """Of each finding without a verdict the key of its text, below ``experiments``."""
    config = load_config(CONFIGS / f"{name}.toml", {f"experiment.{k}": v for k, v in asked.items()})
    found = find_experiment(name).findings(Found(config, list(cells)))
    for finding in found:
        assert_told(finding)
    return {finding.id: why(finding) or "" for finding in found if finding.verdict == "untested"}


def context(index: int, length: int, slabs: int, paged: int) -> CellResult:
    def ran(peak: int) -> Figures:
        return {"running_peak": peak, "preemptions": 0, "generate_s": [1, 2, 3]}

    return cell(index, {"context": length}, slabs=ran(slabs), paged=ran(paged))


def test_requests_that_never_ran_all_at_a_time_are_no_arm_that_failed() -> None:
    cells = [context(0, 768, 2, 4), context(1, 1024, 1, 4)]
    assert reasons("context", *cells) == {"together": "never_together"}
    # Of an arm that ended well nowhere it is said so.
    failed = cell(0, {"context": 768}, paged={"running_peak": 4, "preemptions": 0})
    assert reasons("context", failed)["together"] == "missing"


def test_preemptions_that_there_were_none_of_are_no_arm_that_failed() -> None:
    figures: Figures = {"preemptions": 0, "recomputed": 0, "swapped_blocks": 0, "steps": 9,
                        "generate_s": [1, 1, 1]}  # fmt: skip
    cells = [
        cell(n, {"block_size": 4, "preemption": way}, paged=figures)
        for n, way in enumerate(("ample", "recompute", "swap", "first_chunk"))
    ]
    ran = [
        one.model_copy(
            update={"arms": [arm.model_copy(update={"outputs": ["a"]}) for arm in one.arms]}
        )
        for one in cells
    ]
    assert reasons("preemption", *ran) == {"outputs": "never_preempted"}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((16,), dict.fromkeys(("waste", "table", "speed"), "needs")),
        ((16, 64), {}),
        ((4, 64), {}),
    ],
)
def test_block_sizes_that_cannot_be_compared(
    sizes: tuple[int, ...], expected: dict[str, str]
) -> None:
    figures: Figures = {"waste": 0.1, "table_entries": 4.0, "step_s": [1, 2, 3]}
    cells = [
        cell(n, {"block_size": size}, paged=figures).model_copy(update={"block_size": size})
        for n, size in enumerate(sizes)
    ]
    told = reasons("block-size", *cells, values=sizes)
    assert told == expected
    # Where the sizes were asked for, one of them is missing for another reason.
    assert reasons("block-size", *cells[:1], values=[4, 16, 64])["speed"] == "missing"


def test_one_number_alone_is_no_arm_that_failed() -> None:
    one = cell(0, {"concurrency": 4}, paged={"tokens_per_s": [1, 2, 3]})
    told = {values: reasons("concurrency", one, values=values)["saturation_paged"]
            for values in ((4,), (4, 8))}  # fmt: skip
    assert told == {(4,): "needs", (4, 8): "missing"}
    both = [one, cell(1, {"concurrency": 8}, paged={"tokens_per_s": [2, 3, 4]})]
    for values in ((4, 8), (4, 8, 16)):
        two = reasons("concurrency", *both, values=values)["saturation_paged"]
        assert two == "needs"


@pytest.mark.parametrize(
    ("name", "axis", "values", "key"),
    [
        ("quantised", "kv_dtype", ("int8",), "needs"),
        ("quantised", "kv_dtype", ("auto",), "needs"),
        ("priority", "policy", ("fcfs",), "needs"),
        ("beam", "beam_width", (3,), "paper"),
        ("parallel-sampling", "samples", (3,), "paper"),
    ],
)
def test_values_that_a_comparison_takes_are_named(
    name: str, axis: str, values: tuple[Any, ...], key: str
) -> None:
    cells = [cell(n, {axis: value}, paged={"saved": 0.1}) for n, value in enumerate(values)]
    assert key in reasons(name, *cells, values=values).values()
    gone = [one.model_copy(update={"arms": []}) for one in cells]
    all_of_them = load_config(CONFIGS / f"{name}.toml", {}).experiment.values
    assert set(reasons(name, *gone, values=all_of_them).values()) == {"missing"}


@pytest.mark.parametrize(("questions", "key"), [(1, "needs"), (6, "missing")])
def test_one_question_has_no_later_one(questions: int, key: str) -> None:
    cells = [
        cell(n, {"rows": 25, "prefix_cache": cache}, paged={"first_ttft_s": [1, 1, 1]})
        for n, cache in enumerate(("off", "on"))
    ]
    told = reasons("prefix", *cells, options={"questions": questions})
    assert (told["later"], told["first"]) == (key, key)


def test_a_shape_of_ones_own_that_did_not_run_is_named() -> None:
    shapes = ["chat", "short"]
    asked = {"experiment.values": shapes, "experiment.options.chat": [[9, 4]]}
    config = load_config(CONFIGS / "lengths.toml", asked)
    cells = [cell(n, {"shape": name}, slabs={"waste": 0.5}) for n, name in enumerate(shapes)]
    _, own, short = find_experiment("lengths").findings(Found(config, cells))
    for finding in (own, short):
        assert_told(finding)
    assert [own.verdict, short.verdict] == ["untested"] * 2
    assert own.title is not None
    assert own.title.params == {"shape": "chat"}
    assert why(short) == "missing"
