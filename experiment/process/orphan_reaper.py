"""Orphan reaper: kills orphaned children when this program dies.

``python orphan_reaper.py MARK SCRATCH PATHS...``

    stdin   paths of shared memory, one a line; a line with a dot: everything has ended, nothing
            to do. Closed without that line: the program is dead.

It imports only built-in modules until then, since it sleeps while arms are measured. ``SCRATCH`` is
the child's temporary directory, or empty; ``PATHS`` is the import path of this program's packages.
"""

from __future__ import annotations

import os
import signal
import sys

_DONE = b"."
_SHARED = "/dev/shm"  # noqa: S108 - only looked at


def main(mark: str, scratch: str, paths: list[str]) -> None:
    """Wait, then end all processes with the mark and remove their temporary files."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # signals for the program also reach this process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        others = os.listdir(_SHARED)  # noqa: PTH208 - pathlib takes memory
    except OSError:  # not Linux
        others = []
    lines = sys.stdin.buffer.read().splitlines()
    if _DONE in lines:
        return
    sys.path[:] = paths
    from pathlib import Path

    from experiment.files.scratch import remove_scratch
    from experiment.process.process_tree import end_marked
    from experiment.process.shared_memory import remember_existing

    remember_existing(others)
    end_marked(mark, [Path(os.fsdecode(line)) for line in lines])
    remove_scratch(Path(scratch) if scratch else None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
