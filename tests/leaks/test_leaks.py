"""Ten runs in one process leave nothing behind; tests/full does two hundred, with real arms."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from leak_checks import leaks, look

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
RUNS = 10


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return look(RUNS, tmp_path_factory.mktemp("leaks"), replayed="all", timeout_s=500)


def test_nothing_is_left_of_ten_runs(found: list[dict[str, Any]]) -> None:
    assert leaks(found) == {}


def test_no_run_leaves_a_temporary_file(found: list[dict[str, Any]]) -> None:
    names = {name for each in found for name in each["temporary"]}
    assert names == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("files", ["/tmp/x"]), ("threads", ["MainThread", "Thread"]), ("tasks", 99),
        ("children", [["-m", "x"]]), ("temporary", ["pagedkv-x"]),
    ],
)  # fmt: skip
def test_the_check_sees_what_is_left(found: list[dict[str, Any]], name: str, value: Any) -> None:
    assert name in leaks([*found[:-1], {**found[-1], name: value}])


def test_the_check_sees_shared_memory(found: list[dict[str, Any]]) -> None:
    late = [{**each, "shared": [*each["shared"], "sem.x"]} for each in found[-3:]]
    assert leaks([*found[:-3], *late]).get("shared") == ["sem.x"]


def test_the_check_sees_memory_grow(found: list[dict[str, Any]]) -> None:
    first = found[0]  # what one run takes more than another one may hide a growth
    growing = [{**first, "uss": first["uss"] + n * (4 << 20)} for n in range(len(found))]
    assert "uss" in leaks(growing)
    kept = [{**first, "objects": first["objects"] + 1000 * n} for n in range(len(found))]
    assert "objects" in leaks(kept)
