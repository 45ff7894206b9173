"""A process that takes and gives back memory in known patterns, one for each word on stdin.

    ramp    sixteen times 8 MiB, 30 ms apart
    spike   128 MiB for 50 ms
    child   a process below that holds 64 MiB
    keep    64 MiB in blocks of 96 KiB, freed again but for a few: the C library keeps them
    trim    malloc_trim
    drop    everything that is held, and every process below

Each answer is one line.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time

MIB = 2**20
RAMP_STEPS, RAMP_BYTES = 16, 8 * MIB
SPIKE_BYTES, SPIKE_S = 128 * MIB, 0.05
BELOW_BYTES = 64 * MIB
BLOCK_BYTES = 96 * 1024
BLOCKS = BELOW_BYTES // BLOCK_BYTES
KEPT = 14

held: list[object] = []
below: list[subprocess.Popen[str]] = []


def start() -> None:
    process = subprocess.Popen(
        [sys.executable, __file__, "hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    process.stdout.readline()
    below.append(process)


def ramp() -> None:
    for _ in range(RAMP_STEPS):
        held.append(b"\1" * RAMP_BYTES)
        time.sleep(0.03)


def spike() -> None:
    data = b"\1" * SPIKE_BYTES
    time.sleep(SPIKE_S)
    del data


def keep() -> None:
    blocks = [b"\1" * BLOCK_BYTES for _ in range(BLOCKS)]
    # One every so often, and the last, pins the heap from the end of which memory is given back.
    held.extend([*blocks[:: BLOCKS // KEPT], blocks[-1]])
    del blocks


def trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def drop() -> None:
    held.clear()
    for process in below:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    below.clear()


def main() -> None:
    if sys.argv[1:]:
        held.append(b"\1" * BELOW_BYTES)
    print("ready", flush=True)
    patterns = {
        "ramp": ramp, "spike": spike, "keep": keep, "trim": trim, "drop": drop,
        "child": start,
    }  # fmt: skip
    for line in sys.stdin:
        patterns[line.strip()]()
        print("done", flush=True)
    drop()


if __name__ == "__main__":
    main()
