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
    windows = os.name == "nt"
    place = ("Scripts", "python.exe") if windows else ("bin", "python")
    python = os.path.join(HERE, ".venv", *place)
    if not os.path.exists(python) or os.environ.get(INSIDE):
        return
    os.environ[INSIDE] = "1"
    words = [python, os.path.abspath(__file__)] + sys.argv[1:]
    if windows:  # execv would give the prompt back at once
        import subprocess

        sys.exit(subprocess.call(words))  # noqa: S603
    os.execv(python, words)  # noqa: S606


def main():
    """Check what is there, then hand over to the command line."""
    sys.path.insert(0, HERE)
    from experiment.machine.packages import RUN, SIMULATION, check_python, missing

    check_python()
    if missing(SIMULATION + RUN):
        enter_venv()
    from experiment.__main__ import entry

    return entry()


if __name__ == "__main__":
    sys.exit(main())
