"""How idle threads should wait: arms under each policy, interleaved. Asked for by name.

    default    what the library does: spin some milliseconds, then sleep; arms have it on a quiet
               machine
    bounded    spin while the threads of an operation wait for the last; arms have it on a busy one
    longer     ten times that, which spans the gaps between the operations of a step
    passive    sleep at once; every operation that uses threads wakes them
    active     spin on

A thread that spins takes the core from whoever could work, which costs most where another program
runs; one that sleeps must be woken, a hundred times a step. What is best for our engine need not be
best for other arms: ``--arms`` names those that are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from experiment.machine.thread_variables import GIVEN, WAITING

POLICIES: dict[str, dict[str, str]] = {
    "default": {},
    "bounded": WAITING,
    "longer": {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "active": {"OMP_WAIT_POLICY": "active"},
}
WORKLOADS = ("A", "B")
ARM = "paged"
# What any of the libraries reads.
NAMES = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})


@contextmanager
def waiting_as(policy: Mapping[str, str]) -> Iterator[None]:
    """Let child processes be born with a policy; afterwards the environment is as it was."""
    before = {name: os.environ.get(name) for name in NAMES}
    for name in NAMES:
        os.environ.pop(name, None)
    os.environ.update({GIVEN: "1"} | dict(policy))
    try:
        yield
    finally:
        os.environ.pop(GIVEN)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
