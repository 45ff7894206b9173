"""A real arm that may take little more memory than it has; run as ``python -m limited_arm``."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from experiment.process.wire import Wire, serve

MORE = 512 << 20


def main(wire: Wire, task: dict[str, Any]) -> None:
    import torch  # noqa: F401 - what it maps is not what is limited

    from experiment.arms import functions  # noqa: F401
    from experiment.arms.__main__ import main as run

    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + MORE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    run(wire, task)


if __name__ == "__main__":
    sys.exit(serve("arm", main))
