#!/usr/bin/env python3
"""The front door: ``python run_experiment.py [run|render|selfcheck] ...``.

This file must be readable by any Python 3 and import nothing that needs installing, so that a
person who has installed nothing gets one clear line instead of a traceback.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
INSIDE = "PAGEDKV_IN_VENV"


def enter_venv():
    """Go on inside .venv when `make` has built one and we were started outside of it."""
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = os.path.join(HERE, ".venv", scripts, "python")
    if not os.path.exists(python) or os.environ.get(INSIDE):
        return
    os.environ[INSIDE] = "1"
    os.execv(python, [python, os.path.abspath(__file__)] + sys.argv[1:])  # noqa: S606


def main():
    """Check what is there, then hand over to the command line."""
    sys.path.insert(0, HERE)
    from experiment.packages import RUN, SIMULATION, check_python, missing

    check_python()
    if missing(SIMULATION + RUN):
        enter_venv()
    from experiment.__main__ import entry

    return entry()


if __name__ == "__main__":
    sys.exit(main())
