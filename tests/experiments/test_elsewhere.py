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


def test_of_a_run_on_a_cpu_it_is_said_what_holds_elsewhere() -> None:
    def on(device: str, name: str, **changes: Any) -> list[str]:
        config = tiny_config(name, **changes)
        model = ModelPrepared.model_construct(device=device)
        mine = cell_config(config, planned_cells(EXPERIMENTS[name], config)[-1])
        cell_events = SimpleNamespace(events=(model,), config=mine)
        told = _other_machines([cell_events])  # type: ignore[list-item]
        return [note.key.rpartition(".")[2] for note in told]

    # What scores decide is not the same on any machine.
    assert {name for name in EXPERIMENTS if on("cpu", name) == ["cpu_scores"]} == {"beam"}
    assert on("cpu", "capacity") == ["cpu"]
    assert on("cpu", "capacity", workload__ignore_eos=False) == ["cpu_scores"]
    assert on("cuda", "capacity") == []


def test_errors_are_measured_once_and_are_no_counts() -> None:
    """They are rounding of floats, by the kernels of a machine: no gate may hold by them."""
    for name in ("attention_error", "logit_error", "same_token", "error_positions"):
        assert (
            FIGURES[name].about.kind
            == parse_id(f"quantised/kv_dtype=int8/paged/{name}").kind
            == "measured"
        )
