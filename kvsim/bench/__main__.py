"""``python -m kvsim.bench``: simulated requests per second."""

import sys

from kvsim.bench.speed import main

if __name__ == "__main__":
    sys.exit(main())
