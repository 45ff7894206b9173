"""The site in a directory: ``python tests/report/make_site.py site [RUN ...]``."""

from __future__ import annotations

import sys
from pathlib import Path

from experiment.report.site.build import build
from experiment.simulate.planner import planner

if __name__ == "__main__":
    build(Path(sys.argv[1]), planner(), map(Path, sys.argv[2:]))
