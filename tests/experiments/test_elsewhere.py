"""What of a run holds elsewhere: counts of lengths do, what scores decide and errors do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from in_process import tiny_config

from experiment.compare.names import parse_id
from experiment.events import ModelPrepared
from experiment.experiments.base import cell_config, planned_cells
from experiment.experiments.evaluate import _other_machines
from experiment.experiments.figures import FIGURES
from experiment.experiments.registry import EXPERIMENTS
from experiment.text.messages import Message


def test_of_a_run_on_a_cpu_it_is_said_what_a_gpu_would_change() -> None:
    def on(device: str, name: str, **changes: Any) -> list[Message]:
        config = tiny_config(name, **changes)
        model = ModelPrepared.model_construct(device=device)
        mine = cell_config(config, planned_cells(EXPERIMENTS[name], config)[-1])
        cell_events = SimpleNamespace(events=(model,), config=mine)
        return _other_machines(name, [cell_events])  # type: ignore[list-item]

    told = {repr(on("cpu", name)[1]) for name in EXPERIMENTS}
    assert len(told) == len(EXPERIMENTS)  # each its own
    # What scores decide, and errors, are not the same on any machine.
    first = {name: on("cpu", name)[0].key.rpartition(".")[2] for name in EXPERIMENTS}
    others = {name: key for name, key in first.items() if key != "cpu"}
    assert others == {"beam": "cpu_scores", "quantised": "cpu_errors"}
    for name, key in (("capacity", "cpu_scores"), ("quantised", "cpu_scores_errors")):
        scored = on("cpu", name, workload__ignore_eos=False)[0]
        assert scored.key == f"experiments.note.{key}"
    assert on("cuda", "capacity") == []


def test_errors_are_measured_once_and_are_no_counts() -> None:
    """They are rounding of floats, by the kernels of a machine: no gate may hold by them."""
    for name in ("attention_error", "logit_error", "same_token", "error_positions"):
        assert (
            FIGURES[name].about.kind
            == parse_id(f"quantised/kv_dtype=int8/paged/{name}").kind
            == "measured"
        )
