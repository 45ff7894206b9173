"""Two hundred quick runs in one process tree.

Every arm is a real one. Of nine runs in ten the machine is not looked at anew nor the model
prepared anew: processes repeat what those of the first run said. What they import is most of the
time, and whatever they leave would be left by the twenty whole runs as well.
"""

from __future__ import annotations

from pathlib import Path

from leak_checks import WARM_UP, leaks, look
from steady import growth

RUNS, WHOLE_EVERY = 200, 10


def test_nothing_is_left_of_two_hundred_runs(tmp_path: Path) -> None:
    found = look(RUNS, tmp_path, "preparation", timeout_s=3 * 3600, whole_every=WHOLE_EVERY)
    gained, noise = growth([each["uss"] for each in found[RUNS // 2 :]])
    print(
        f"{RUNS} runs: {len(found[-1]['files'])} files, {found[-1]['tasks']} threads, "
        f"{len(found[-1]['children'])} children; memory {found[WARM_UP]['uss'] >> 20} MiB after "
        f"run {WARM_UP}, {found[-1]['uss'] >> 20} MiB at the end; second half gained "
        f"{gained / 1024:.0f} KiB, noise {noise / 1024:.0f} KiB"
    )
    assert leaks(found) == {}
