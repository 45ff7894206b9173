"""Every family through every arm: equal tokens, or refused by name.

python tests/families/matrix.py > experiment/model/families.csv      (`make families`)
"""

from __future__ import annotations

import csv
import gc
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from experiment.arms.base import ArmRun
from experiment.arms.functions import FUNCTIONS
from experiment.arms.task import ArmTask
from experiment.children.prepare import accepted_model
from experiment.children.prepare import main as prepare
from experiment.config.schema import Config
from experiment.events import Event, PoolReserved, RequestFinished, Step
from experiment.model.checks import check_model
from experiment.model.families import Family, reason_of
from experiment.text.errors import UserError
from experiment.workload.prepared import Prepared

sys.path.append(str(Path(__file__).parent))
from tiny import FAMILIES, architecture, default_config, tiny_config, tiny_model

VERSION = transformers.__version__
MAX_LENGTH, SHARED = 128, 16
# Prompt and new tokens; the longer prompts begin with the same 16.
LENGTHS = [(40, 8), (9, 30), (20, 6), (3, 40), (30, 12)]
CONTIGUOUS = ("contiguous.sequential", "contiguous.batch")
# Further settings of the paged arm: steps of 16 tokens, and a budget of few slots, which preempts.
PRESSED: Mapping[str, Any] = {"engine": {"max_num_batched_tokens": 16, "prefix_caching": True}}
TIGHT = {1: 75, 16: 96}


class _Pipe:
    """Stands in for the pipe to the runner."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    mark = emit


class Runs:
    """Arms of one model, run in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slot_bytes = 0
        self.own_attention = False

    def arms(self, arms: Sequence[str], **settings: Any) -> dict[str, list[Event]]:
        """Events of each arm.

        Raises:
            UserError: the model is refused.
        """
        config = Config.model_validate(
            {
                "model": {"name": str(self.directory)},
                "workload": {"lengths": LENGTHS},
                "run": {"arms": arms, "device": "cpu", "threads": 1},
                **settings,
                "cache": {"max_length": MAX_LENGTH, **settings.get("cache", {})},
            }
        )
        prepared = self._prepared(config, arms)
        self.slot_bytes = prepared.model.slot_bytes
        self.own_attention = prepared.model.own_attention
        found = {}
        for arm in arms:
            pipe: Any = _Pipe()
            task = ArmTask(
                arm=arm, config=config, device="cpu", directory=prepared.directory,
                model=prepared.model, workload=prepared.workload,
            )  # fmt: skip
            FUNCTIONS[arm](ArmRun(pipe, task, 0.0))
            found[arm] = pipe.events
        return found

    @staticmethod
    def _prepared(config: Config, arms: Sequence[str]) -> Prepared:
        pipe: Any = _Pipe()
        task = {"config": config.model_dump(mode="json"), "device": "cpu", "arms": list(arms)}
        prepare(pipe, task)
        made = {type(event).__name__: event for event in pipe.events}
        workload = made["WorkloadReady"]
        first = workload.requests[0].token_ids[:SHARED]
        requests = [
            each.model_copy(update={"token_ids": first + each.token_ids[SHARED:]})
            if len(each.token_ids) > SHARED
            else each
            for each in workload.requests
        ]
        workload = workload.model_copy(update={"requests": requests})
        return Prepared(made["ModelDirectory"].path, made["ModelPrepared"], workload)


def saved(family: str, directory: Path) -> Path:
    """Weights and config of the tiny model, as a directory."""
    tiny_model(family).save_pretrained(directory)
    config = tiny_config(family)
    kept = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if kept["model_type"] != config.model_type:  # of its language model alone
        config.save_pretrained(directory)
    return directory


def tokens(events: Iterable[Event]) -> dict[int, list[int]]:
    """Generated tokens by request."""
    return {e.request: e.tokens for e in events if isinstance(e, RequestFinished)}


def run_family(runs: Runs) -> dict[str, dict[int, list[int]]]:
    """Generated tokens of every arm and setting.

    Raises:
        UserError: the model is refused.
        AssertionError: the settings did not preempt, found no prefix, or a cache has other bytes
            than the config says.
    """
    seen = runs.arms((*CONTIGUOUS, "slabs", "paged"))
    found = {arm: tokens(events) for arm, events in seen.items()}
    for events in seen.values():
        pool = next(each for each in events if isinstance(each, PoolReserved))
        assert pool.tensor_bytes == pool.blocks * pool.block_size * runs.slot_bytes
    for block_size, slots in TIGHT.items():
        cache = {"block_size": block_size, "budget": slots * runs.slot_bytes}
        events = runs.arms(("paged",), cache=cache, **PRESSED)["paged"]
        plans = [each.plan for each in events if isinstance(each, Step)]
        assert any(plan.preempted for plan in plans)
        assert any(op.kind.value == "share" for plan in plans for op in plan.ops)
        found[f"paged, blocks of {block_size}"] = tokens(events)
    return found


def outcome(family: str) -> Family:
    """A row of the table."""
    name = architecture(family)
    try:
        config = tiny_config(family)
    except Exception:  # whatever a family's own checks raise
        try:
            check_model(default_config(family), family, MAX_LENGTH)
        except UserError as refusal:
            return Family(family, name, "refused", _reason(refusal), VERSION)
        raise
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        try:
            config.save_pretrained(directory)
            accepted_model(directory, family, MAX_LENGTH)  # some cannot be made small
            runs = Runs(saved(family, directory))
            found = run_family(runs)
        except UserError as error:
            return Family(family, name, "refused", _reason(error), VERSION)
    reference, *others = found.values()
    alike = all(other == reference for other in others)
    distinct = len({tuple(made[:6]) for made in reference.values()}) == len(LENGTHS)
    attention = "own" if runs.own_attention else "paged"
    result = "equal" if alike and distinct else "unequal"
    return Family(family, name, result, attention, VERSION)


def _reason(error: UserError) -> str:
    """The reason of a refusal; the key of an error that is none."""
    return reason_of(error.text) or error.text.key


def main(families: Sequence[str]) -> None:
    """Print the table as CSV."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    gc.freeze()  # arms collect garbage at each stage
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(Family._fields)
    for family in families or FAMILIES:
        out.writerow(outcome(family))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
