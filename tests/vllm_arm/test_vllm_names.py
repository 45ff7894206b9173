"""The names of vLLM that the arm uses are in vLLM's sources, which are read and not imported.

Imports, keywords and overridden methods are found in the arm's own sources; what is reached through
objects is listed. Read are the environment of `make vllm`, and the folder PAGEDKV_VLLM_SOURCE with
a wheel or an unpacked one: `make test-lowest` and `make test-newest` download it.
"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from guide_pages import ROOT
from vllm_runs import invented, pretender

from experiment.arms.launch import BIND, VLLM_PYTHON, Launch, plan_launch
from experiment.config.schema import VLLM_ARGUMENTS, Config
from experiment.vllm_worker.variables import SET, UNSET

ARM = [ast.parse(path.read_text("utf-8")) for path in ROOT.glob("experiment/vllm_worker/*.py")]
# Classes, and what is reached through their objects; "add_request.priority" is a parameter.
REACHED = {
    "vllm.config CacheConfig": "block_size enable_prefix_caching kv_cache_max_concurrency "
    "kv_cache_size_tokens num_gpu_blocks",
    "vllm.config ModelConfig": "max_model_len",
    "vllm.config VllmConfig": "cache_config model_config",
    "vllm.outputs CompletionOutput": "finish_reason token_ids",
    "vllm.outputs RequestOutput": "finished outputs request_id",
    "vllm.v1.core.block_pool BlockPool": "blocks",
    "vllm.v1.core.kv_cache_manager KVCacheManager": "block_pool get_block_ids",
    "vllm.v1.core.kv_cache_utils KVCacheBlock": "block_hash",
    "vllm.v1.core.sched.output SchedulerOutput": "num_scheduled_tokens preempted_req_ids",
    "vllm.v1.core.sched.scheduler Scheduler": "get_request_counts kv_cache_manager requests "
    "running schedule",
    "vllm.v1.engine.core EngineCore": "scheduler",
    "vllm.v1.engine.core_client InprocClient": "engine_core shutdown",
    "vllm.v1.engine.llm_engine LLMEngine": "add_request add_request.priority engine_core "
    "has_unfinished_requests reset_prefix_cache step vllm_config",
    "vllm.v1.executor.multiproc_executor MultiprocExecutor": "collective_rpc vllm_config",
    "vllm.v1.kv_cache_interface KVCacheConfig": "kv_cache_groups",
    "vllm.v1.metrics.stats IterationStats": "num_preempted_reqs",
    "vllm.v1.metrics.stats PrefixCacheStats": "hits queries",
    "vllm.v1.metrics.stats SchedulerStats": "kv_cache_usage num_running_reqs "
    "num_skipped_waiting_reqs num_waiting_reqs prefix_cache_stats",
    "vllm.v1.request Request": "num_computed_tokens num_tokens request_id",
    "vllm.v1.worker.gpu.model_runner GPUModelRunner": "kv_caches",
    "vllm.v1.worker.gpu_model_runner GPUModelRunner": "kv_caches",
    "vllm.v1.worker.gpu_worker Worker": "model_runner",
}


class Used(NamedTuple):
    """A name in a module, or a member of a class there."""

    module: str
    name: str
    member: str = ""


class Sources:
    """vLLM's modules; ``text`` gives a file of vLLM by its path, "" where there is none."""

    def __init__(self, text: Callable[[str], str]) -> None:
        self.text = text
        self.nodes = cache(self._nodes)

    def lacks(self, used: Used) -> bool:
        if used.member:
            return used.member not in self._members(used.module, used.name)
        return all(used.name not in defined(node) for node in self.nodes(used.module))

    def _nodes(self, module: str) -> list[ast.AST]:
        path = module.replace(".", "/")
        return list(
            ast.walk(ast.parse(self.text(f"{path}.py") or self.text(f"{path}/__init__.py")))
        )

    def _members(self, module: str, name: str) -> set[str]:
        """Methods, their parameters and attributes of a class and of its bases in vLLM."""
        for node in self.nodes(module):
            if isinstance(node, ast.ClassDef) and node.name == name:
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                return members(node).union(*(self._members(module, base) for base in bases))
        for node in self.nodes(module):
            for alias, (there, original) in imports(node).items():
                if alias == name:
                    return self._members(there, original)
        return set()


def imports(node: ast.AST) -> dict[str, tuple[str, str]]:
    """What a statement imports from vLLM: name here, module and name there."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("vllm"):
        return {}
    return {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}


def defined(node: ast.AST) -> set[str]:
    """Names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def members(of: ast.ClassDef) -> set[str]:
    """Methods of a class, their parameters, its fields and the attributes that it sets."""
    found = set[str]().union(*map(defined, of.body))
    for node in ast.walk(of):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        if isinstance(node, ast.FunctionDef):
            taken = [*node.args.args, *node.args.kwonlyargs]
            found |= {f"{node.name}.{argument.arg}" for argument in taken}
    return found


def in_arm() -> Iterator[Used]:
    """What the arm imports, calls with keywords and overrides."""
    for tree in ARM:
        nodes = list(ast.walk(tree))
        imported = {name: place for node in nodes for name, place in imports(node).items()}
        yield from (Used(*place) for place in imported.values())
        for node in nodes:
            owner = getattr(getattr(node, "value", None), "id", None)
            if isinstance(node, ast.Attribute) and owner in imported:
                yield Used(*imported[owner], node.attr)
            if isinstance(node, ast.Call):
                yield from keywords(node, imported)
            if isinstance(node, ast.ClassDef):
                yield from overrides(node, imported)


def keywords(call: ast.Call, imported: dict[str, tuple[str, str]]) -> Iterator[Used]:
    """Fields of a class that is made, or parameters of its method that is called."""
    on, method = call.func, ""
    if isinstance(on, ast.Attribute):
        on, method = on.value, f"{on.attr}."
    if isinstance(on, ast.Name) and on.id in imported:
        given = [keyword.arg for keyword in call.keywords if keyword.arg]
        yield from (Used(*imported[on.id], f"{method}{name}") for name in given)


def overrides(of: ast.ClassDef, imported: dict[str, tuple[str, str]]) -> Iterator[Used]:
    """Methods of a class that it does not call itself: vLLM does."""
    called = {
        node.attr
        for node in ast.walk(of)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    methods = [node.name for node in of.body if isinstance(node, ast.FunctionDef)]
    for base in of.bases:
        if isinstance(base, ast.Name) and base.id in imported:
            yield from (Used(*imported[base.id], name) for name in methods if name not in called)


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[Used]:
    """Every name that the arm uses, with all that it may give the engine."""
    monkeypatch.setenv(VLLM_PYTHON, str(pretender(tmp_path / "python", "", {"vllm": "0"})))
    given = Config.model_validate({"cache": {"watermark_blocks": 1}})
    launch = plan_launch("vllm", given, "cuda", invented(tmp_path), tmp_path)
    assert isinstance(launch, Launch)
    assert "watermark" in launch.task["arguments"]
    arguments = {
        Used("vllm.engine.arg_utils", "EngineArgs", name)
        for name in VLLM_ARGUMENTS.union(launch.task["arguments"])
    }
    reached = {Used(*of.split(), name) for of, names in REACHED.items() for name in names.split()}
    variables = {Used("vllm.envs", name) for name in (*SET, *UNSET, BIND) if name[:5] == "VLLM_"}
    return {*in_arm(), *arguments, *reached, *variables}


@pytest.fixture(scope="module", params=["installed", "PAGEDKV_VLLM_SOURCE"])
def sources(request: pytest.FixtureRequest) -> Sources:
    if request.param == "installed":
        python = Path(request.getfixturevalue("real_vllm"))
        found = list(python.parent.parent.glob("lib/python*/site-packages"))
    else:
        found = [Path(os.environ[name]) for name in [request.param] if name in os.environ]
    if not found:
        pytest.skip(f"there are no sources: {request.param}")
    wheel = next(found[0].glob("vllm-*.whl"), None)
    root = zipfile.Path(wheel) if wheel else found[0]

    def text(path: str) -> str:
        file = root / path
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    return Sources(text)


def test_vllm_has_every_name_that_the_arm_uses(used: set[Used], sources: Sources) -> None:
    assert len(used) > 100
    assert sorted(filter(sources.lacks, used)) == []


def test_what_is_listed_is_used() -> None:
    nodes = [node for tree in ARM for node in ast.walk(tree)]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named |= {node.arg or "" for node in nodes if isinstance(node, ast.keyword)}
    named |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    listed = {name.split(".")[-1] for names in REACHED.values() for name in names.split()}
    assert listed - named == set()
