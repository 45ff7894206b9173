"""How an arm is launched: interpreter, task, and what is refused before it starts.

our arms   this interpreter      experiment.arms
vllm       vLLM's interpreter    experiment.vllm_worker      skipped if there is none
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import experiment
from experiment.config.arms import ARMS
from experiment.config.kv_dtype import ENGINE_ARMS
from experiment.config.schema import Config
from experiment.events import ModelPrepared, WorkloadReady
from experiment.files.bounded_reading import expand_path
from experiment.machine.environment import Environment
from experiment.machine.thread_variables import thread_counts
from experiment.machine.toolchain import c_compiler
from experiment.process.environment import child_environment
from experiment.text.errors import user_error
from experiment.text.messages import Message, message
from experiment.text.redaction import without_names
from experiment.vllm_worker.task import VllmTask
from experiment.workload.prepared import Prepared
from experiment.workload.requests import COMPILED, TRANSFORMERS_LEAST, TRASH_BLOCKS
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.sizing.geometry import KVGeometry
from kvsim.sizing.vllm_capacity import NULL_BLOCKS, vllm_block_size, vllm_capacity

ARM = "experiment.arms"
VLLM = "vllm"
# Results of ``find_vllm`` if there is none.
VLLM_ABSENT = ("vllm.missing", "vllm.not_there", "vllm.cpu_only")
TRANSFORMERS_PAGED = "transformers_paged"
# Head sizes supported by vLLM 0.32's attention on the CPU.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
VLLM_ENVIRONMENT = ".venv-vllm"
VLLM_PYTHON = "PAGEDKV_VLLM_PYTHON"  # environment variable: an interpreter with vLLM
BIND, NOT_BOUND = "VLLM_CPU_OMP_THREADS_BIND", "nobind"
# vLLM 0.32 refuses a GPU with less free memory than this share (default: 0.92), although the
# configured bytes of its cache determine its size.
_GPU_SHARE = 0.01
_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import importlib.metadata as m, json
found = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
print(json.dumps([[name, found[name]] for name in ("vllm", "vllm-cpu", "torch") if name in found]))
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an arm's process is started; ``python`` None: by our interpreter.

    ``variables`` are the environment variables of its thread pools; None: those of our arms.
    """

    module: str
    task: dict[str, Any]
    python: str | None = None
    variables: dict[str, str] | None = None


def plan_launch(
    arm: str, config: Config, device: str, prepared: Prepared, logs: Path
) -> Launch | Message:
    """Plan how to start an arm, or return why it is skipped.

    Raises:
        UserError: the arm cannot run within the budget.
    """
    why = skip_reason(arm, config, device, prepared.model.head_dim)
    if why is not None:
        return why
    if arm == TRANSFORMERS_PAGED and prepared.model.own_attention:
        return message("skip.own_attention")
    if (why := ARMS[arm].refuses(prepared.workload)) is not None:
        return why
    size = prepared.workload.block_size
    if arm == TRANSFORMERS_PAGED and size < TRANSFORMERS_LEAST:
        return message("skip.transformers_block", size=size, least=TRANSFORMERS_LEAST)
    check_capacity(arm, device, prepared.model, prepared.workload)
    if arm == VLLM:
        python = find_vllm(device)
        assert isinstance(python, str)
        task = _vllm_task(config, device, prepared, logs)
        return Launch("experiment.vllm_worker", task, python, _vllm_variables(config))
    task = {
        "arm": arm,
        "config": config.model_dump(mode="json"),
        "device": device,
        "directory": prepared.directory,
        "model": prepared.model.model_dump(mode="json"),
        "workload": prepared.workload.model_dump(mode="json"),
        "logs": str(logs),
    }
    return Launch(ARM, task)


def skip_reason(
    arm: str, config: Config, device: str, head_dim: int | None = None
) -> Message | None:
    """Why an arm does not run, for any requests. ``head_dim`` None: not known yet."""
    if config.sampling.beam_width > 1 and arm not in ENGINE_ARMS:
        return message("skip.beams")
    if arm == COMPILED and device != "cuda":
        return message("skip.compiled")  # Transformers would not compile the model
    if arm == COMPILED and c_compiler() is None:
        return message("skip.no_toolchain")
    if arm != VLLM:
        return None
    if isinstance(found := find_vllm(device), Message):
        return found
    if device == "cuda" and c_compiler() is None:  # its kernels are compiled when they first run
        return message("skip.no_toolchain")
    if head_dim is not None and device == "cpu" and head_dim not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        return message("skip.vllm_head_size", size=head_dim, choices=sizes)
    return None


def find_vllm(device: str = "cpu") -> str | Message:
    """Path of an interpreter with vLLM, for GPUs if ``device`` is cuda; or the reason."""
    python = vllm_python()
    if python is None:
        return message("vllm.missing")
    found = _distributions(python)
    if not {"vllm", "vllm-cpu"} & found.keys():
        return message("vllm.not_there", path=without_names(python))
    if device == "cuda" and ("vllm" not in found or "+cpu" in found.get("torch", "")):
        return message("vllm.cpu_only", path=without_names(python))
    return python


def vllm_version() -> str | None:
    """Version of the vLLM that the arm uses; None if there is none."""
    python = vllm_python()
    found = _distributions(python) if python else {}
    return found.get("vllm") or found.get("vllm-cpu")


def vllm_python() -> str | None:
    """The interpreter of ``PAGEDKV_VLLM_PYTHON``, otherwise that of ``make vllm``, if it exists.

    ``--vllm-python`` sets the variable. It cannot be set by a config, a record or the working
    directory.
    """
    if named := os.environ.get(VLLM_PYTHON):
        return str(expand_path(named).absolute())
    root = Path(experiment.__file__).resolve().parent.parent
    found = root / VLLM_ENVIRONMENT / "bin" / "python"
    return str(found) if found.exists() else None


def refusal_reason(config: Config, environment: Environment) -> Message | None:
    """Why this machine does not support the config, before anything is loaded; or None."""
    swap, free = config.engine.swap_space, environment.ram.available_bytes
    engine = set(ENGINE_ARMS).intersection(config.arm_names)
    if swap > free and engine:
        return message("error.swap_space", size=swap, free=free)
    graphs = config.engine.cuda_graphs
    if graphs in ("on", "compiled") and environment.device != "cuda" and engine:
        return message(
            "error.cuda_graphs", asked=graphs, reason=message("graphs.no_gpu").model_dump()
        )
    if VLLM not in config.arm_names:
        return None
    named = os.environ.get(VLLM_PYTHON)
    if named and not expand_path(named).is_file():
        return message("error.vllm_python", path=named)
    ranks, gpus = config.vllm.ranks, sum(gpu.visible for gpu in environment.gpus)
    if ranks > 1 and ranks > gpus:
        return message("error.vllm_ranks", ranks=ranks, gpus=gpus)
    return _budget_exceeds_memory(config, environment)


def adapt_block_size(
    config: Config, arms: Sequence[str], device: str
) -> tuple[Config, list[Message]]:
    """Use a block size that vLLM supports on the device for all arms, unless the config sets one.

    Args:
        arms: the arms that run; skipped ones have no effect.

    Returns:
        The config, and notices about changes and differences.
    """
    if VLLM not in arms:
        return config, []
    notices = []
    size, wanted = config.cache.block_size, vllm_block_size(config.cache.block_size, device)
    if size != wanted and "block_size" in config.cache.model_fields_set:
        notices.append(message("note.vllm_block_size", size=wanted, given=size))
    elif size != wanted:
        cache = config.cache.model_copy(update={"block_size": wanted})
        config = config.model_copy(update={"cache": cache})
        notices.append(message("note.block_size_everywhere", size=wanted))
    if device == "cpu" and not config.vllm.enforce_eager and not has_compiler():
        notices.append(message("note.vllm_eager"))
    return config, notices


def _budget_exceeds_memory(config: Config, environment: Environment) -> Message | None:
    """Whether the budget exceeds the total memory, as a message; or None."""
    budget = config.cache.budget
    sizes = [gpu.total_bytes for gpu in environment.gpus if gpu.visible and gpu.total_bytes]
    total = environment.ram.total_bytes
    if environment.device != "cpu":
        total = min(sizes, default=0) * config.vllm.ranks
    if budget == "auto" or not total or budget <= total:
        return None
    return message("error.vllm_budget", budget=budget, total=total)


def check_capacity(arm: str, device: str, model: ModelPrepared, workload: WorkloadReady) -> None:
    """Refuse early what another engine would refuse after half a minute of loading.

    Both reserve blocks for themselves: vLLM the null block, Transformers the trash blocks.

    Raises:
        UserError: the remaining budget cannot hold the longest request.
    """
    geometry = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    if arm == VLLM:
        size = vllm_block_size(workload.block_size, device)
        there = geometry.blocks_in(workload.budget_bytes, size)
        capacity = vllm_capacity(there, size, workload.max_length)
        if not capacity.starts:
            blocks = capacity.request_blocks + NULL_BLOCKS
            needed = blocks * size * geometry.bytes_per_token
            raise user_error("error.vllm_budget_small", budget=workload.budget_bytes, needed=needed)
    elif arm == TRANSFORMERS_PAGED:
        size = workload.block_size
        blocks = max(0, geometry.blocks_in(workload.budget_bytes, size) - TRASH_BLOCKS)
        tokens = max(final_tokens(len(r.token_ids), r.max_new_tokens) for r in workload.requests)
        needed = blocks_needed(tokens, size)
        if blocks < needed:
            raise user_error(
                "error.transformers_paged_small", blocks=blocks, needed=needed, tokens=tokens
            )


def _vllm_variables(config: Config) -> dict[str, str]:
    """Environment variables of vLLM's threads; a binding in the environment overrides the config.

    With a binding, its workers have one thread per core. A thread count in the environment would
    also apply to its engine process, which should have one thread and not compete with them.
    """
    bind = os.environ.get(BIND, config.vllm.threads_bind)
    counts = thread_counts(config.run.threads) if bind == NOT_BOUND else {}
    return counts | {BIND: bind}


def has_compiler() -> bool:
    """Whether torch will find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"))


def _watermark(config: Config, size: int, prepared: Prepared) -> dict[str, float]:
    """The watermark of the other arms, as a share of vLLM's blocks.

    Set only if there is one: older versions of vLLM do not support it.
    """
    workload = prepared.workload
    slots = workload.block_size * config.cache.watermark_for(
        workload.block_size, workload.max_length
    )
    held, blocks = -(-slots // size), workload.budget_bytes // (size * prepared.model.slot_bytes)
    # Half a block more, since vLLM rounds the product down; and less than all blocks.
    return {"watermark": (min(held, blocks - 1) + 0.5) / blocks} if held and blocks else {}


def _vllm_task(config: Config, device: str, prepared: Prepared, logs: Path) -> dict[str, Any]:
    """Task of the vLLM worker: the same budget, lengths and dtype as the other arms."""
    model, workload, vllm = prepared.model, prepared.workload, config.vllm
    size = vllm_block_size(workload.block_size, device)
    engine = config.engine.scheduling()
    del engine["preemption"], engine["scheduler"]  # its own
    arguments = {
        "model": prepared.directory,
        "skip_tokenizer_init": True,  # token ids in and out
        "dtype": model.dtype,
        "max_model_len": workload.max_length,
        "block_size": size,
        # Per rank; the budget is for all ranks together.
        "kv_cache_memory_bytes": workload.budget_bytes // vllm.ranks,
        "disable_log_stats": False,  # read after each step
        "async_scheduling": False,  # a step has ended when its tables are read
        "generation_config": "vllm",  # no sampling defaults from the model's directory
        "enable_prefix_caching": engine.pop("prefix_caching"),
        "scheduler_reserve_full_isl": engine.pop("admission") == "full",
        "scheduling_policy": engine.pop("policy"),
        # Older versions have no such argument where it is None.
        **{name: value for name, value in engine.items() if value is not None},
        "enforce_eager": vllm.enforce_eager or (device == "cpu" and not has_compiler()),
        "pipeline_parallel_size": vllm.pipeline_parallel_size,
        "quantization": vllm.quantization,
        "seed": config.run.seed,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        **({} if device == "cpu" else {"gpu_memory_utilization": _GPU_SHARE}),
        **_watermark(config, size, prepared),
        **vllm.args,
    }
    task = VllmTask(
        arm=VLLM,
        directory=prepared.directory,
        device=device,
        model=model,
        workload=workload,
        block_size=size,
        ignore_eos=config.workload.ignore_eos,
        timed=config.workload.timed,
        arguments=arguments,
        log=str(logs / f"{VLLM}.log"),
        repeats=config.experiment.measured_repeats,
    )
    return task.model_dump(mode="json")


@cache
def _distributions(python: str) -> dict[str, str]:
    """Versions of an interpreter's vLLM and torch; importing them would take seconds."""
    try:
        done = subprocess.run(  # noqa: S603 - the person named it, or we built it
            [python, "-P", "-c", _PROBE],
            env=child_environment({}, packages=""),
            capture_output=True,
            encoding="utf-8",
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, TypeError, ValueError):
        return {}
