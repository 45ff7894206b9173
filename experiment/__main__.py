"""The command ``pagedkv`` of an installation, and ``python -m experiment``.

From a clone `run_experiment.py` is the front door: it also helps where nothing is installed yet.
"""

from __future__ import annotations

import sys

from experiment.machine.packages import check_packages


def entry() -> int:
    """Run the program on the words of the command line; returns its exit code."""
    try:
        check_packages()
        from experiment.commands.main import main
    except KeyboardInterrupt:  # nothing has begun yet
        return 130
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(entry())
