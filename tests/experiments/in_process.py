"""Runs an experiment as its processes would, real arms on a tiny model, without the processes.

Starting one takes seconds, and what they send is the same: the events of preparation and arms are
gathered here in the order in which the runner writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms_here import Gathered, started, write_arm
from made_up import assert_told, why

from experiment.analysis.experiment_results import (
    CellResult,
    ExperimentResult,
    FigureValue,
    Finding,
)
from experiment.analysis.results import Results
from experiment.children.prepare import main as prepare
from experiment.config.reading import load_config
from experiment.config.schema import Config
from experiment.events import (
    ArmSkipped,
    CellPrepared,
    RunFinished,
)
from experiment.experiments.base import cell_config, planned_cells
from experiment.experiments.evaluate import picture
from experiment.experiments.registry import find_experiment
from experiment.measure.cells import opening
from experiment.record.log import EventLog, Record, read_record
from experiment.workload.prepared import Prepared

CONFIGS = Path(__file__).parent.parent.parent / "configs"


@dataclass(frozen=True)
class Ran:
    """A finished experiment."""

    config: Config
    record: Record
    shown: Record
    results: Results

    @property
    def result(self) -> ExperimentResult:
        assert self.results.experiment is not None
        return self.results.experiment

    def cell(self, **values: object) -> CellResult:
        found = [c for c in self.result.cells if values.items() <= c.values.items()]
        assert len(found) == 1, [c.values for c in self.result.cells]
        return found[0]

    def figure(self, cell: CellResult, arm: str, figure: str) -> FigureValue:
        ran = cell.arm(arm)
        assert ran is not None, [(a.arm, a.status, a.reason) for a in cell.arms]
        return ran.figures[figure]

    def verdicts(self) -> dict[str, str | None]:
        return {finding.id: finding.verdict for finding in self.result.findings}

    def finding(self, name: str) -> Finding:
        return next(finding for finding in self.result.findings if finding.id == name)

    def assert_sound(self, *, skipped: tuple[str, ...] = (), untested: tuple[str, ...] = ("few",),
                     ) -> None:  # fmt: skip
        """Every arm ran, nothing contradicts itself, and all that was foretold is so.

        Of one repeat nothing is said about times; every other finding has its figures.
        """
        for arm in (arm for cell in self.result.cells for arm in cell.arms):
            assert arm.status == "finished" or arm.arm in skipped, (arm.arm, arm.reason)
        assert not self.result.problems
        exact, predicted = self.result.exact_counts
        assert exact == predicted > 0
        without = {why(f) for f in self.result.findings if f.verdict == "untested"}
        assert without <= set(untested)


def tiny_config(name: str, **overrides: Any) -> Config:
    """A shipped experiment in quick size, one repeat, on the CPU; two underscores are a dot."""
    small: dict[str, Any] = {
        "experiment.size": "quick",
        "experiment.repeats": 1,
        "model.name": "tiny-gpt2",
        "model.offline": True,
        "run.device": "cpu",
        "run.threads": 1,
    }
    more = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(CONFIGS / f"{name}.toml", small | more)


def run(config: Config, directory: Path) -> Ran:
    """Run every cell and read back what was written."""
    spec = find_experiment(config.experiment.name or "")
    cells = planned_cells(spec, config)
    configs = [cell_config(config, cell) for cell in cells]
    directory.mkdir(exist_ok=True)
    with EventLog(directory) as log:
        log.write(started(config))
        tasks = [{"config": c.model_dump(mode="json"), "arms": list(c.arm_names)} for c in configs]
        wire = Gathered()
        prepare(wire, {"cells": tasks, "device": "cpu"})  # type: ignore[arg-type]
        for given in (event for event in wire.events if isinstance(event, CellPrepared)):
            mine = configs[given.index]
            cell, first = opening(given.index, cells, mine, given_to(given))
            for event in (cell, *first):
                log.write(event)
            for arm in mine.arm_names:
                if arm in given.refused:
                    log.write(ArmSkipped(arm=arm, reason=given.refused[arm]))
                else:
                    write_arm(log, arm, mine, given_to(given))
        log.write(RunFinished(status="complete"))
    record = read_record(directory)
    shown, results = picture(record)
    ran = Ran(config, record, shown, results)
    for finding in ran.result.findings:
        assert_told(finding)
    return ran


def given_to(cell: CellPrepared) -> Prepared:
    return Prepared(cell.path, cell.model, cell.workload)
