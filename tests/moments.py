"""Something that happens at one step of the interpreter, and at each of them in turn.

A signal is answered between two steps of Python. No test from outside can choose which two; here
the interpreter itself says when it takes one, so that none is left out.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def at_step(number: int, functions: set[Any], happens: Callable[[], object]) -> Iterator[list[int]]:
    """Let something happen before the step of this number within these functions, from 1 on.

    The list holds how many steps were taken up to then: fewer than ``number`` if there are no more.
    """
    codes = {_code(function) for function in functions}
    taken = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode" and taken[0] < number:
            taken[0] += 1
            if taken[0] == number:
                happens()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield taken
    finally:
        sys.settrace(before)


def each_step(functions: set[Any], happens: Callable[[], object]) -> Iterator[Any]:
    """For each step of what the caller does with it: a context in which something happens at it.

    It ends behind the step that is none any more, so that what is done once more with nothing
    happening is tried as well.
    """
    for number in itertools.count(1):
        taken = [0]

        @contextmanager
        def moment(number: int = number, taken: list[int] = taken) -> Iterator[None]:
            with at_step(number, functions, happens) as counted:
                try:
                    yield
                finally:
                    taken[:] = counted

        yield moment
        if taken[0] < number:
            return


def _code(function: Any) -> CodeType:
    code = getattr(function, "__wrapped__", function).__code__
    assert isinstance(code, CodeType)
    return code
