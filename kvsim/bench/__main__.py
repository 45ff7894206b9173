"""``python -m kvsim.bench``: how many requests are simulated in a second."""

import sys

from kvsim.bench.speed import main

if __name__ == "__main__":
    sys.exit(main())
