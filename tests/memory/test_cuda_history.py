"""torch's allocation history of an arm: a file, whatever becomes of the arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiment.events import Event, Notice
from experiment.memory.cuda_history import cuda_history


class FakeHistory:
    """Stands in for the functions of torch.cuda.memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.error = error
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", self.dump)

    def record(self, enabled: str | None = "all", max_entries: int = 0) -> None:
        self.calls.append(("record", enabled))

    def dump(self, path: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("dump", path))


def test_a_snapshot_is_saved_also_of_an_arm_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeHistory(monkeypatch)
    path = tmp_path / "paged.cuda_history.pickle"
    with pytest.raises(MemoryError), cuda_history(path, lambda event: None):
        raise MemoryError
    assert fake.calls == [("record", "all"), ("dump", str(path)), ("record", None)]


def test_a_snapshot_that_cannot_be_saved_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeHistory(monkeypatch, OSError("disk full"))
    events: list[Event] = []
    with cuda_history(tmp_path / "x.pickle", events.append):
        pass
    (notice,) = events
    assert isinstance(notice, Notice)
    assert notice.text.key == "usage.history_failed"
    assert fake.calls[-1] == ("record", None)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_torch_writes_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    with cuda_history(path, lambda event: None):
        torch.zeros(2**20, device="cuda")
    assert path.stat().st_size > 0
