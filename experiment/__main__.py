"""The command ``pagedkv`` of an installation, and ``python -m experiment``.

From a clone `run_experiment.py` is the front door: it also helps where nothing is installed yet.
"""

from __future__ import annotations

import sys

from experiment.cli import main


def entry() -> int:
    """Run the program on the words of the command line; returns its exit code."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(entry())
